"""From a recipe to its model, steered as the variant says."""

from __future__ import annotations

import dataclasses

from oversmooth.safety.errors import InputError
from oversmooth.safety.randomness import seeded
from oversmooth.steering import steer
from oversmooth_papers.tasks.segmentation.model import Encoder, MaskDecoder, Segmenter
from oversmooth_papers.tasks.segmentation.pretrained import resized_positions, vit_from_checkpoint
from oversmooth_papers.tasks.segmentation.recipe import Recipe


def plain_model_of(recipe: Recipe) -> Segmenter:
    """Unsteered, on the CPU, with random weights."""
    return Segmenter(Encoder(recipe.shape), MaskDecoder(recipe.decoder_shape))


def model_of(recipe: Recipe) -> Segmenter:
    """On the CPU, with the weights that the seed gives on any machine; the caller's random state is left alone.

    The encoder's are those of the checkpoint that the recipe names, if it does.
    """
    with seeded(recipe.seed):
        model = plain_model_of(recipe)
        if recipe.encoder:
            _take_weights(model.encoder, recipe)
        methods = recipe.methods()
        if methods:
            for stack in recipe.steer.split("+"):
                steer(model.get_submodule(stack), methods)
    return model


def _take_weights(encoder: Encoder, recipe: Recipe) -> None:
    vit = vit_from_checkpoint(recipe.encoder)
    shape = dataclasses.replace(vit.shape, image=vit.shape.patch, classes=recipe.shape.classes)
    if shape != (wanted := dataclasses.replace(recipe.shape, image=recipe.shape.patch)):
        raise InputError(
            f"the encoder {recipe.encoder} is {shape} and the recipe is for {wanted}; fit it with recipe.fitted(splits)"
        )
    arrays = {name: value for name, value in vit.state_dict().items() if not name.startswith("head.")}
    arrays["pos_embed"] = resized_positions(arrays["pos_embed"], recipe.crop // recipe.shape.patch)
    encoder.load_state_dict(arrays)
