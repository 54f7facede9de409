"""What can be trained. A new task is a folder here, a line below that makes its recipe known, and one in `registry`."""

from oversmooth_papers.tasks.imagenet import recipe as _imagenet
from oversmooth_papers.tasks.images import recipe as _images
from oversmooth_papers.tasks.language import recipe as _language
from oversmooth_papers.tasks.segmentation import recipe as _segmentation

__all__: list[str] = []
_ = (_imagenet, _images, _language, _segmentation)
