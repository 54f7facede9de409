"""Images classified by small vision transformers, as in the first paper."""
