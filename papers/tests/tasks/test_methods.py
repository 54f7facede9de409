"""Every steering method on every task's model: it runs, or is refused by a sentence that says why."""

from dataclasses import replace

import pytest
import torch

from oversmooth import anatomy
from oversmooth.safety.errors import InputError
from oversmooth.steering import METHODS
from oversmooth_papers.tasks.imagenet import recipe as imagenet
from oversmooth_papers.tasks.images import recipe as images
from oversmooth_papers.tasks.language import recipe as language
from oversmooth_papers.tasks.registry import untrained_model
from oversmooth_papers.tasks.segmentation import recipe as segmentation

_WORDS = replace(language.QUICK.shape, vocabulary=20, length=8, width=16, depth=2, heads=2, hidden=16)
RECIPES = {
    "images": images.QUICK,
    "language, causal, Pre-LN": replace(language.QUICK, shape=_WORDS),
    "language, causal, Post-LN": replace(language.QUICK, shape=replace(_WORDS, norm="post")),
    "language, masked, Pre-LN": replace(language.QUICK, shape=replace(_WORDS, causal=False)),
    "language, masked, Post-LN": replace(language.QUICK, shape=replace(_WORDS, causal=False, norm="post")),
    "segmentation": segmentation.QUICK,
    "imagenet": imagenet.QUICK,
}
AVERAGING = {"AttnScale", "Centred", "ContraNorm", "FeatScale"}
"""What docs/training.md names as refused on causal attention."""


def refusal_of(task, method):
    """What the sentence says, or None where the method works."""
    if "Post-LN" in task and method == "LayerNormScaling":
        return "its norms stand after the addition"
    return "averages over all tokens" if "causal" in task and method in AVERAGING else None


def inputs(recipe):
    if isinstance(recipe, language.Recipe):
        return torch.arange(8)[None]
    return torch.linspace(-1, 1, 3 * recipe.shape.image**2).view(1, 3, recipe.shape.image, recipe.shape.image)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_anatomy_knows_where_a_language_models_norms_stand(norm):
    model = untrained_model(replace(language.QUICK, shape=replace(_WORDS, norm=norm)))
    assert {layer.norm_position for layer in anatomy.locate(model).layers} == {norm}


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("task", RECIPES)
@torch.no_grad()
def test_a_method_works_or_is_refused(task, method):
    words = "spectral:mode=sharpen" if method == "Spectral" else method.lower()
    recipe = replace(RECIPES[task], variant=words)
    if (why := refusal_of(task, method)) is None:
        out = untrained_model(recipe)(inputs(recipe))
        assert bool(out.isfinite().all())
    else:
        with pytest.raises(InputError, match=why):
            untrained_model(recipe)(inputs(recipe))
