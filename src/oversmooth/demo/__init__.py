"""What `oversmooth demo` shows: three small ViTs of our own, which tell the first paper's story, and two pretrained
language models.
"""
