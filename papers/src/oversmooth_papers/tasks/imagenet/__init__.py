"""Classifying images at ImageNet's size, which no device holds: decoded and augmented by workers, as timm does it."""
