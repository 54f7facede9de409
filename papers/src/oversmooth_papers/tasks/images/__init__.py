"""Images classified by small vision transformers, as in Dovonon et al."""
