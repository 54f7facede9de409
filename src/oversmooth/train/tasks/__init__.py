"""What can be trained. A new task is a folder here with a recipe, and a line below that makes it known."""

from oversmooth.train.tasks.images import recipe as _images

__all__: list[str] = []
_ = (_images,)
