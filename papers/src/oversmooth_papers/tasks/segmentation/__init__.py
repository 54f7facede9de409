"""Naming every pixel: a Segmenter, a ViT with a decoder of two blocks in which every class is a token."""
