"""Tables of trained models, one file each; `reproduce.table_registry` imports every one of them."""
