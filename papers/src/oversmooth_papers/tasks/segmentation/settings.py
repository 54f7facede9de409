"""What recipe and data both know, without torch."""

from __future__ import annotations

IGNORE = 255
"""The label of pixels that are neither learned from nor counted."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
