"""Encoders from transformers' files: the logits are theirs, and what does not fit is refused."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.places import DATA
from support.segmentation_example import RECIPE

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.segmentation.model import model_of
from oversmooth_papers.tasks.segmentation.pretrained import resized_positions, shape_of

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A random ViT of transformers, in its folder."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=40, image_size=24, patch_size=4,
        num_labels=7, layer_norm_eps=1e-3, initializer_range=0.3,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("small")
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(folder)
    return folder, model


def last_tokens_are_theirs(folder, theirs, side):
    """At the size it was made for, where positions stay as they are."""
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs.vit(x).last_hidden_state[:, 1:]
        torch.testing.assert_close(model_of(recipe_for(folder, side)).encoder(x), expected, rtol=1e-4, atol=1e-4)


def test_the_encoder_gives_the_last_tokens_of_transformers(small):
    shape = shape_of(str(small[0]))
    assert (shape.eps, shape.qkv_bias, shape.hidden, shape.patch) == (1e-3, True, 40, 4)
    last_tokens_are_theirs(*small, 24)


@pytest.mark.realdata
def test_deit_tiny_gives_its_last_tokens():
    folder = DATA / "weights" / "deit-tiny"
    if not folder.is_dir():
        pytest.skip("OVERSMOOTH_DATA does not name a folder with weights/deit-tiny")
    last_tokens_are_theirs(folder, transformers.ViTForImageClassification.from_pretrained(folder).eval(), 224)


def recipe_for(folder, crop):
    shape = shape_of(str(folder))
    shape = replace(shape, image=shape.patch, classes=5)
    return replace(RECIPE, encoder=str(folder), variant="plain", shape=shape, crop=crop)


def test_positions_are_interpolated_to_the_crop(small):
    folder, theirs = small
    with torch.no_grad():
        own = model_of(recipe_for(folder, 40)).encoder.pos_embed
        before = theirs.vit.embeddings.position_embeddings
    assert torch.equal(own[:, :1], before[:, :1])
    grid = before[0, 1:].reshape(6, 6, 16)
    for row, column in ((0, 0), (3, 7), (9, 4)):  # of 10 by 10
        y, x = ((place + 0.5) * 0.6 - 0.5 for place in (row, column))
        y, x = min(max(y, 0.0), 5.0), min(max(x, 0.0), 5.0)
        top, left = int(y), int(x)
        down, right = y - top, x - left
        expected = sum(
            weight * grid[min(top + i, 5), min(left + j, 5)]
            for i, j, weight in ((0, 0, (1 - down) * (1 - right)), (0, 1, (1 - down) * right),
                                 (1, 0, down * (1 - right)), (1, 1, down * right))
        )  # fmt: skip
        torch.testing.assert_close(own[0, 1 + 10 * row + column], expected)


def test_positions_of_the_right_size_are_left_alone():
    positions = torch.randn(1, 17, 8)
    assert resized_positions(positions, 4) is positions
    image = positions[:, 1:].mT.unflatten(2, (4, 4))
    down = resized_positions(positions, 2)[:, 1:].mT.unflatten(2, (2, 2))
    torch.testing.assert_close(down, F.interpolate(image, (2, 2), mode="bilinear"))


def test_an_encoder_is_found_by_its_name(small, tmp_path, monkeypatch):
    folder, _ = small
    shutil.copytree(folder, tmp_path / "weights" / "mine")
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path))
    assert shape_of("mine") == shape_of(str(folder))
    with pytest.raises(InputError, match="the encoder 'other' is no folder and not in OVERSMOOTH_DATA"):
        shape_of("other")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "swin"}, "has model_type 'swin'"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"hidden_size": "many"}, "hidden_size is 'many'"),
        ({"num_hidden_layers": 4}, r"vit\.encoder\.layer\.3"),
        ({"intermediate_size": 48}, "size mismatch for blocks.0.mlp.fc1.weight"),
    ],
)
def test_files_that_do_not_fit_are_refused(small, tmp_path, changes, said):
    folder, _ = small
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(InputError, match=said):
        model_of(recipe_for(copy, 24))
