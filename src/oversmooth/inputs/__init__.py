"""What a model is run on: batches of pictures or of tokens, from the user's data or made here.

Importing this imports no image, parquet or model library; each is borrowed when data needs it.
"""

from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.inputs.images import image_inputs
from oversmooth.inputs.pictures import picture
from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.inputs.text import PROSE, REACTIONS, text_inputs

__all__ = ["PROSE", "REACTIONS", "Batch", "Inputs", "Preprocessing", "image_inputs", "picture", "text_inputs"]
