"""Models whose attention nobody knows: tokens are measured from what blocks get and give."""

import pytest
import torch
from support import watched
from torch import nn

import oversmooth
from oversmooth.diagnosis.result import Diagnosis


class Heads(nn.Module):
    """One module per head."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, 3 * 4) for _ in range(heads))
        self.out = nn.Linear(4 * heads, width)

    def forward(self, x):
        mixed = []
        for head in self.heads:
            q, k, v = head(x).chunk(3, -1)
            mixed.append((q @ k.mT).softmax(-1) @ v)
        return x + self.out(torch.cat(mixed, -1))


class StateSpace(nn.Module):
    """A running mean, which is no attention at all; it gives a tuple."""

    def __init__(self, width=8):
        super().__init__()
        self.decay = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        state, out = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = self.decay * state + token
            out.append(state)
        return x + torch.stack(out, 1), state


class Stack(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


MODELS = {"one module per head": Heads, "raw parameters": lambda: watched.Block(8), "state space": StateSpace}


@pytest.mark.parametrize("kind", MODELS)
def test_any_module_that_passes_tokens_on(kind, tmp_path):
    model, x = Stack(MODELS[kind]).eval(), torch.randn(3, 6, 8)
    before = model(x)
    diagnosis = oversmooth.diagnose(model, x, blocks="layers.*", spectra=False)
    assert torch.equal(model(x), before)
    stream = x
    model.requires_grad_(False)
    for layer, block in zip(diagnosis.layers, [None, *model.layers], strict=True):
        if block is not None:
            stream = block(stream)
            stream = stream[0] if isinstance(stream, tuple) else stream
        for name in ("cos", "abs_cos"):
            expected = oversmooth.metrics.cosine(stream, absolute=name == "abs_cos").mean()
            assert layer.tokens[name] == pytest.approx(float(expected), abs=1e-5)
        assert layer.tokens["effective_rank"] == pytest.approx(
            float(oversmooth.metrics.effective_rank(stream).mean()), rel=1e-4
        )
    assert [layer.name for layer in diagnosis.layers] == ["embedding", "layers.0", "layers.1", "layers.2"]
    assert diagnosis.verdict[1].startswith("Measured, first block to last: ")
    diagnosis.save(tmp_path / "d.json")
    assert Diagnosis.load(tmp_path / "d.json").curve("cos") == diagnosis.curve("cos")
    diagnosis.to_html(tmp_path / "d.html")
    assert "layers.2" in (tmp_path / "d.html").read_text(encoding="utf-8")


def test_several_batches_are_one_mean():
    model, x = Stack(Heads).eval(), torch.randn(4, 6, 8)
    whole = oversmooth.diagnose(model, x, blocks="layers.*", spectra=False)
    parts = oversmooth.diagnose(model, [x[:3], (x[3:], torch.tensor([1]))], blocks="layers.*", spectra=False)
    assert parts.curve("cos") == pytest.approx(whole.curve("cos"), abs=1e-6)
    assert parts.curve("effective_rank") == pytest.approx(whole.curve("effective_rank"), rel=1e-5)
    assert parts.provenance["inputs"] == 4


REFUSED = {
    "spectra": (dict(blocks="layers.*"), "attention is unknown: no spectra; pass spectra=False"),
    "no such blocks": (dict(blocks="h.*", spectra=False), r"no module of this Stack is called 'h\.\*'; choose such as"),
    "no text": (dict(blocks=3, spectra=False), "blocks is 3; give the names of modules"),
}


@pytest.mark.parametrize(("settings", "sentence"), REFUSED.values(), ids=REFUSED)
def test_bad_input(settings, sentence):
    with pytest.raises(oversmooth.InputError, match=sentence):
        oversmooth.diagnose(Stack(Heads), torch.randn(2, 4, 8), **settings)


def test_an_array_that_is_no_tokens_is_refused():
    with pytest.raises(oversmooth.InputError, match="does not run on this input"):
        oversmooth.diagnose(Stack(Heads), torch.randn(2, 4, 7), blocks="layers.*", spectra=False)
    with pytest.raises(oversmooth.InputError, match="there are no inputs"):
        oversmooth.diagnose(Stack(Heads), blocks="layers.*", spectra=False)
