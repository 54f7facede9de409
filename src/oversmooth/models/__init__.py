"""Models by name or path, with the inputs they take; only these modules use transformers and timm.

Nothing is loaded but safetensors or, through torch's restricted loader, arrays. Code that comes with a checkpoint is
run only on request.
"""

from oversmooth.models.from_timm import is_timm_name
from oversmooth.models.hub import fetch
from oversmooth.models.loaded import DATA_COUNT, DEFAULT_BATCH, DEFAULT_COUNT, DEFAULT_LENGTH, Loaded, default_inputs
from oversmooth.models.loading import check_device, check_loadable, dtype_named, load, load_steered
from oversmooth.models.saving import save
from oversmooth.models.sources import check_there

__all__ = [
    "DATA_COUNT", "DEFAULT_BATCH", "DEFAULT_COUNT", "DEFAULT_LENGTH", "Loaded", "check_device", "check_loadable",
    "check_there", "default_inputs", "dtype_named", "fetch", "is_timm_name", "load", "load_steered", "save",
]  # fmt: skip
