"""Tables of trained models, one file each; `registry` finds every one of them."""
