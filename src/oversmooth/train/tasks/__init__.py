"""What can be trained. A new task is a folder here, a line below that makes its recipe known, and one in `registry`."""

from oversmooth.train.tasks.images import recipe as _images
from oversmooth.train.tasks.language import recipe as _language
from oversmooth.train.tasks.segmentation import recipe as _segmentation

__all__: list[str] = []
_ = (_images, _language, _segmentation)
