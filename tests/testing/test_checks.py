"""The checks for others: they pass what is right, and each kind of mistake is found."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import oversmooth
from oversmooth.models.vit import ViT
from oversmooth.steering import METHODS, AttnScale, NeuTRENO, Spectral, register
from oversmooth.steering.methods.base import MethodWithStrength, Part
from oversmooth.testing import check_family, check_method


@pytest.fixture
def vit():
    torch.manual_seed(0)
    return ViT(image=8, patch=4, channels=3, width=16, depth=2, heads=2, classes=3).eval()


@pytest.fixture
def images():
    return torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize(
    "method", [Spectral("sharpen"), NeuTRENO(0.5), NeuTRENO(0.3, learned=True), AttnScale(0.4)], ids=str
)
def test_our_own_methods_pass(method, vit, images):
    check_method(method, vit, images)


@pytest.fixture
def doubled():
    """A method of one's own: values times 1 + strength."""

    class Times(Part):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, V, _V0):
            return V * self.factor

    @register
    @dataclass(frozen=True)
    class Louder(MethodWithStrength):
        place = "values"
        why_no_fold = "this is a test"

        def part(self, _layer):
            return Times(1 + self.strength)

    yield Louder
    del METHODS["Louder"]


def test_a_method_of_ones_own_is_one_class(doubled, vit, images):
    from oversmooth.steering.methods.registry import method_named

    check_method(doubled(0.5), vit, images)
    assert method_named("louder:strength=0.25") == doubled(0.25)


def test_a_method_that_does_nothing_is_found_out(doubled, vit, images, monkeypatch):
    part = doubled.part
    monkeypatch.setattr(doubled, "part", lambda self, layer: part(dataclasses.replace(self, strength=0.0), layer))
    with pytest.raises(AssertionError, match="changes nothing, but changes_nothing"):
        check_method(doubled(0.5), vit, images)


def test_a_method_that_moves_something_at_zero_is_found_out(doubled, vit, images, monkeypatch):
    part = doubled.part
    monkeypatch.setattr(doubled, "changes_nothing", lambda _self: False)
    monkeypatch.setattr(doubled, "part", lambda self, layer: part(dataclasses.replace(self, strength=0.1), layer))
    with pytest.raises(AssertionError, match="with strength 0: outputs differ by"):
        check_method(doubled(0.5), vit, images)


def test_a_method_that_is_not_registered_is_told(doubled, vit, images):
    METHODS["Louder"] = NeuTRENO
    with pytest.raises(AssertionError, match="is not registered; decorate it"):
        check_method(doubled(0.5), vit, images)


def test_our_vit_is_seen_as_it_is(vit, images):
    check_family(vit, images)


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_encoder_is_seen_as_it_is_however_its_tokens_lie(batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first, norm_first=True)
    check_family(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(3, 9, 16))


@pytest.mark.parametrize("what", ["tokens", "spectrum", "hook"])
def test_a_family_that_is_misread_is_found_out(vit, images, monkeypatch, what):
    def wrong(model, *given, **how):
        found = oversmooth.diagnose(model, *given, **how)
        if what == "tokens":
            found.layers[1].tokens["hfc_lfc"] *= 1.01
        elif what == "spectrum":
            found.layers[2].spectrum.negative_share += 0.1
        else:
            model.blocks[0].register_forward_hook(lambda *_: None)
        return found

    monkeypatch.setattr("oversmooth.testing.family.diagnose", wrong)
    said = {"tokens": "after 1 blocks HFC/LFC is", "spectrum": "negative real part", "hook": "still has a hook"}
    with pytest.raises(AssertionError, match=said[what]):
        check_family(vit, images)
