"""What `oversmooth demo` shows: three small ViTs of our own, which tell the story of Dovonon et al., and two pretrained
language models.
"""
