"""Models by name or path, with the inputs they take; only these modules use transformers and timm.

Nothing is loaded but safetensors or, through torch's restricted loader, arrays. Code that comes with a checkpoint is
run only on request.
"""

from oversmooth.models.loaded import Loaded, default_inputs
from oversmooth.models.loading import load, load_steered
from oversmooth.models.saving import save

__all__ = ["Loaded", "default_inputs", "load", "load_steered", "save"]
