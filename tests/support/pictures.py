"""Pictures as they lie in files."""

import io

import numpy as np


def encoded(picture, form="PNG", **settings) -> bytes:
    """A file of a picture of Pillow's, or of bytes ``(h, w)`` or ``(h, w, 3)``."""
    from PIL import Image

    file = io.BytesIO()
    (Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture).save(file, form, **settings)
    return file.getvalue()
