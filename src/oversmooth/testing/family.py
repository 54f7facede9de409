"""Check that a model is measured correctly, by slow and independent computations."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import Anatomy
from oversmooth.diagnosis.diagnose import diagnose
from oversmooth.testing.compare import check_untouched, outputs, same_bits
from oversmooth.trace.layout import as_tokens, first_tensor


def check_family(model: nn.Module, inputs: Any, *, tolerance: float = 1e-3, **how: Any) -> None:
    """Check that `oversmooth.diagnose` measures a model correctly and leaves it unchanged.

    Located weights have consistent shapes, outputs stay bit-identical, and HFC/LFC after every block and the share of
    eigenvalues of H with a negative real part agree with numpy.

    Args:
        model: as for `oversmooth.diagnose`; a copy is checked.
        inputs: a tensor, or a dict of the model's arguments, without padding.
        tolerance: relative, of HFC/LFC.
        how: options of `oversmooth.diagnose` that the model needs, such as heads or stack.

    Raises:
        AssertionError: with what is wrong.
    """
    model = copy.deepcopy(model).eval()
    anatomy = locate(model, **{key: how[key] for key in ("heads", "stack") if key in how})
    assert len(anatomy), "no attention layer was found"
    for layer in anatomy:
        heads, width, size = layer.W_V.shape
        assert (heads, size) == (layer.heads, layer.head_dim), f"{layer.name}: W_V has shape {tuple(layer.W_V.shape)}"
        assert layer.W_O.shape == (heads, size, width), f"{layer.name}: W_O has shape {tuple(layer.W_O.shape)}"
    expected = outputs(model, inputs)
    diagnosis = diagnose(model, inputs, depth=0, **how)
    check_untouched(model, "after a diagnosis")
    same_bits(outputs(model, inputs), expected, "after a diagnosis")
    streams = _streams(model, anatomy, inputs)
    if len(streams) == len(diagnosis.layers):  # shared blocks have one hook here
        for depth, (seen, x) in enumerate(zip(diagnosis.layers, streams, strict=True)):
            ours, theirs = seen.tokens.get("hfc_lfc"), _ratio(x)
            assert ours is not None, f"{seen.name}: HFC/LFC is missing"
            off = abs(ours - theirs) / theirs
            assert off < tolerance, f"after {depth} blocks HFC/LFC is {ours:.6g} in the diagnosis and {theirs:.6g}"
    for seen, layer in zip(diagnosis.layers[1:], anatomy, strict=False):
        if seen.spectrum is not None:
            _check_signs(seen.name, seen.spectrum.negative_share, layer.W_V, layer.W_O)


def _check_signs(name: str, ours: float | None, W_V: Tensor, W_O: Tensor) -> None:
    """Compare the share of eigenvalues of the joint H with a negative real part."""
    product = sum(v.double().numpy() @ o.double().numpy() for v, o in zip(W_V, W_O, strict=True))
    values = np.linalg.eigvals(np.asarray(product))
    share = float((values.real < 0).mean())
    near = float((np.abs(values.real) < 1e-5 * np.abs(values).max()).mean())  # rounding may give either sign
    assert ours is not None, f"{name}: the spectrum of H is missing"
    assert abs(ours - share) <= near + 1e-6, (  # a diagnosis has seven digits
        f"{name}: {ours} of the eigenvalues of H have a negative real part in the diagnosis and {share} by numpy"
    )


def _streams(model: nn.Module, anatomy: Anatomy, inputs: Any) -> list[Tensor]:
    """The input of the first block, and the output of every block, ``(batch, n, d)``."""
    streams: list[Tensor] = []
    modules = dict(model.named_modules())
    blocks = [layer.block for layer in anatomy]
    batch_first = bool(getattr(modules[anatomy.layers[0].name], "batch_first", True))

    def enters(_: nn.Module, args: Any, kwargs: Any) -> None:
        streams.append(as_tokens(first_tensor(args, kwargs), batch_first).clone())

    def leaves(_: nn.Module, __: Any, out: Any) -> None:
        stream = first_tensor(out if isinstance(out, tuple) else (out,), {})
        streams.append(as_tokens(stream, batch_first).clone())

    handles = [modules[blocks[0]].register_forward_pre_hook(enters, with_kwargs=True)]
    handles += [modules[name].register_forward_hook(leaves) for name in blocks]
    outputs(model, inputs)
    for handle in handles:
        handle.remove()
    return streams


def _ratio(x: Tensor) -> float:
    """‖x − mean over tokens‖ / ‖mean over tokens‖, its mean over inputs."""
    tokens = x.double().numpy()
    mean = tokens.mean(1, keepdims=True)
    high = np.sqrt(((tokens - mean) ** 2).sum((1, 2)))
    low = np.sqrt(tokens.shape[1] * (mean**2).sum((1, 2)))
    return float(np.mean(high / low))
