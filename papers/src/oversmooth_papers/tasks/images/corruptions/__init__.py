"""The corruptions of CIFAR-100-C, made on the spot for whole batches on CPU or GPU, and the official files read.

>>> import torch
>>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
>>> corrupt(images, "gaussian_noise", 3).shape
torch.Size([4, 3, 32, 32])

``KINDS`` are the 15 standard types, ``EXTRA`` the four held out beside them, with the settings their authors published
for 32 pixels (apply.py). What differs from the published procedure:

* The random numbers are others: each belongs to an image by its number in the data set (draws.py), where the official
  files were drawn in one stream without a seed. No picture with chance in it equals its official one.
* Frost's five textures are made here, with the measured colour and contrast of the photographs, which are not shipped
  (weather.py). Figures on frost compare with the official ones in size, not pixel by pixel. With the photographs
  (`read_frost`, ``corrupt(..., frost_from=...)``) only the random windows differ from the published procedure.
* A value that is whole but for rounding error keeps its level; the published cast to bytes may lower it by one.
* The affine part of the elastic transform is sampled exactly, where OpenCV takes the nearest 1/32 pixel; motion blur
  rounds once, to bytes, where ImageMagick first rounds to 16 bits.
* Pictures of other sizes take the same settings; those of the elastic transform and pixelate alone go with the side.

CPU and GPU share every random bit and compute in float64, so their bytes agree but where a value lies within rounding
error of a step. Not for training: the corruptions are for testing what training never saw.
"""

from oversmooth_papers.tasks.images.corruptions.apply import CONSTANTS, EXTRA, KINDS, SEVERITIES, corrupt
from oversmooth_papers.tasks.images.corruptions.official import FrostPictures, read_frost, read_official

__all__ = ["CONSTANTS", "EXTRA", "KINDS", "SEVERITIES", "FrostPictures", "corrupt", "read_frost", "read_official"]
