"""Weights computed from free parameters, through torch's parametrizations: all layers of a forward pass at once.

The value weight holds Θ (beside queries and keys, where they are fused with it), the output weight ψ. A weight that is
read outside a forward pass is computed by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_eval_mode, random_states
from oversmooth.steering.attention_calls import values_unreadable
from oversmooth.steering.forward_state import ForwardStates
from oversmooth.steering.methods import orthogonal
from oversmooth.steering.methods.spectral import Spectral
from oversmooth.steering.warm_start import Start

_REMEDY = "go back to the last checkpoint, with a lower learning rate"


class SingularError(InputError):
    """Weights that are not finite, because V is about to become singular or what is learned is not finite."""


class _Weight(nn.Module):
    """A weight of a layer, from what is learned and a buffer, if there is one."""

    def __init__(self, layer: ReparametrizedLayer, initial: Tensor, **buffer: Tensor | None) -> None:
        super().__init__()
        self._layer, self._initial = [layer], [initial]  # in lists, so that nothing they refer to becomes a submodule
        for name, value in buffer.items():
            self.register_buffer(name, value)


class _ValueWeight(_Weight):
    """``(queries and keys,) Θ -> weight``, in the layout of the model."""

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        layer, free = self._layer[0], self._initial.pop().to(weight)
        rest, _ = layer.attention.split(weight.mT if layer.attention.layout.value_transposed else weight)
        return (free,) if rest is None else (rest.clone(memory_format=torch.contiguous_format), free)

    def forward(self, *originals: Tensor) -> Tensor:
        layer = self._layer[0]
        rows, _ = layer.rows()
        weight = layer.attention.join(None if len(originals) == 1 else originals[0], rows)
        return weight.mT if layer.attention.layout.value_transposed else weight


class _OutputWeight(_Weight):
    """``ψ -> weight``."""

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        return (self._initial.pop().to(weight),)

    def forward(self, _psi: Tensor) -> Tensor:
        layer = self._layer[0]
        _, rows = layer.rows()
        weight = rows.flatten(0, 1)
        return weight if layer.attention.layout.output_transposed else weight.mT


class ReparametrizedLayer:
    """One layer's two weights, between `attach` and `detach`."""

    def __init__(
        self,
        index: int,
        method: Spectral,
        attention: AttentionLayer,
        modules: Mapping[str, nn.Module],
        states: ForwardStates,
    ) -> None:
        self.index, self.method, self.attention, self.states = index, method, attention, states
        weights = (attention.value_module, attention.output_module)
        self.value, self.output = ((modules[holder], weight) for holder, weight in weights)
        """The modules that hold the value and the output weight, and the weights' names there."""
        self.originals: list[tuple[nn.Module, str, Tensor, list[str]]] = []
        """Module, name of the weight, the weight itself, and the order of the module's parameters."""
        self.bias: Tensor | None = None
        """The output bias as it was, where a warm start changed it."""

    @property
    def group(self) -> int:
        return self.attention.heads // self.attention.kv_heads

    def attach(self, start: Start) -> None:
        """Replace the two weights."""
        method, d = self.method, self.attention.width
        theta, base, signs = start.theta, None, None
        if method.form == "symmetric" and method.orthogonal != "qr":
            theta = torch.zeros(d * (d - 1) // 2)
            base = orthogonal.completed(start.V).to(self.value[0].get_parameter(self.value[1]))
        if method.signs == "fixed":
            signs = torch.where(start.eigenvalues < 0, -1.0, 1.0).to(self.output[0].get_parameter(self.output[1]))
        value = _ValueWeight(self, theta, base=base)
        output = _OutputWeight(self, method.psi(start.eigenvalues, self.group), signs=signs)
        for (module, name), new in ((self.value, value), (self.output, output)):
            original = (module, name, getattr(module, name), list(module._parameters))
            parametrize.register_parametrization(module, name, new, unsafe=True)
            self.originals.append(original)

    @torch.no_grad()
    def shift_output_bias(self, W_O: Tensor) -> None:
        """Value biases reach every token through the output weight, W_O ``(heads, k, d)`` before: what the new one
        changes goes into the output bias.
        """
        values, outputs = self.attention.value_bias, self._output_bias()
        if values is None or outputs is None:
            return
        change = torch.einsum("hk,hkd->d", values.double(), (W_O - self.attention.raw_W_O).double())
        self.bias = outputs.detach().clone()
        outputs += change.to(outputs)

    def _output_bias(self) -> Tensor | None:
        return self.output[0]._parameters.get(self.attention.layout.output_bias.rpartition(".")[2])

    def detach(self, *, fold: bool) -> None:
        """Plain weights again: as they are computed now (fold), or the original ones."""
        if not self.originals:
            return
        folded: list[Tensor] = []
        if fold:  # both before either: each weight needs both parametrizations
            folded = [getattr(module, name).detach() for module, name, _, _ in self.originals]
        elif self.bias is not None and (bias := self._output_bias()) is not None:
            bias.data.copy_(self.bias)
        while self.originals:
            module, name, original, order = self.originals.pop()
            if fold:
                value = folded.pop().clone(memory_format=torch.contiguous_format)
                parameter = nn.Parameter(value, original.requires_grad)
            else:
                parameter = cast(nn.Parameter, original)
                like = _parametrization(module, name).original0
                if original.device != like.device or original.dtype != like.dtype:  # the model was moved since
                    parameter.data = original.data.to(like.device, like.dtype)
            restore_parameters(module, {name: parameter}, order)

    @property
    def theta(self) -> Tensor:
        """Θ, or the entries of the skew-symmetric matrix."""
        originals = _parametrization(*self.value)
        return getattr(originals, f"original{originals.ntensors - 1}")

    @property
    def psi(self) -> Tensor:
        return _parametrization(*self.output).original0

    @property
    def base(self) -> Tensor | None:
        return _parametrization(*self.value)[0].base

    @property
    def signs(self) -> Tensor | None:
        return _parametrization(*self.output)[0].signs

    def problems(self, *computed: Tensor) -> list[str]:
        """NaN and infinity in what is learned or, where that is finite, in the weights computed from it."""
        bad = bad_numbers(self.index, self.attention.name, {"Θ": self.theta, "ψ": self.psi})
        if bad or all(bool(weight.isfinite().all()) for weight in computed):
            return bad
        where = f"layer {self.index} ({self.attention.name})"
        return [f"{where}: V is nearly singular (columns of V depend on each other); {_REMEDY}"]

    def rows(self) -> tuple[Tensor, Tensor]:
        """Value rows ``(kv_heads, k, d)`` and output rows ``(heads, k, d)``: of this forward pass, or computed."""
        return self.states.weights(self.attention.name) or compute([self])[0]


def _parametrization(module: nn.Module, weight: str) -> Any:
    return module.parametrizations[weight]  # type: ignore[index]


def bad_numbers(index: int, layer: str, learned: Mapping[str, Tensor]) -> list[str]:
    """One sentence for each array of a layer that has NaN or infinity."""
    bad = {name: int((~value.isfinite()).sum()) for name, value in learned.items()}
    where = f"layer {index} ({layer})"
    return [
        f"{where}: {name} has NaN or infinity in {count:,} of {learned[name].numel():,} entries; {_REMEDY}"
        for name, count in bad.items()
        if count
    ]


def compute(layers: list[ReparametrizedLayer]) -> list[tuple[Tensor, Tensor]]:
    """The weights of layers of one method and one shape, in batched operations."""
    method, first = layers[0].method, layers[0]
    free = torch.stack([layer.theta for layer in layers])
    psi = torch.stack([layer.psi for layer in layers])
    base = None if first.base is None else torch.stack([layer.base for layer in layers])  # type: ignore[misc]
    signs = None if first.signs is None else torch.stack([layer.signs for layer in layers])  # type: ignore[misc]
    V = method.V(free, base)[..., : first.attention.kv_heads * first.attention.head_dim]
    rows, back = method.weights(V, method.eigenvalues(psi, first.group, signs), first.attention.kv_heads)
    return list(zip(rows.unbind(), back.unbind(), strict=True))


def weights_of_all(layers: list[ReparametrizedLayer], *, check: bool = False) -> dict[str, tuple[Tensor, Tensor]]:
    """The weights of all layers by name, those of one shape in batched operations. check: refuse numbers that are not
    finite, even where the method does not.
    """
    groups: dict[tuple[object, ...], list[ReparametrizedLayer]] = {}
    for layer in layers:
        sizes, theta = layer.attention, layer.theta
        same = (sizes.width, sizes.heads, sizes.kv_heads, sizes.head_dim, theta.device, theta.dtype)
        groups.setdefault(same, []).append(layer)
    weights: dict[str, tuple[Tensor, Tensor]] = {}
    for group in groups.values():
        method = group[0].method
        computed = compute(group)
        if (check or method.check_passes or method.form == "general") and not values_unreadable():
            finite = torch.stack([rows.isfinite().all() & back.isfinite().all() for rows, back in computed])
            if False in (known := finite.tolist()):
                worst = known.index(False)
                raise SingularError(group[worst].problems(*computed[worst])[0])
        weights |= {layer.attention.name: W for layer, W in zip(group, computed, strict=True)}
    return weights


def restore_parameters(module: nn.Module, restored: dict[str, nn.Parameter], order: list[str]) -> None:
    """Parameters in place of parametrizations, in the order that the module had them in.

    torch's remove_parametrizations takes the property off a class that copies of the model share.
    """
    for name in restored:
        del module.parametrizations[name]  # type: ignore[operator, union-attr]
        cls = type(module)
        if len(module.parametrizations):  # type: ignore[arg-type]
            module.__class__ = type(cls.__name__, cls.__bases__, {k: v for k, v in vars(cls).items() if k != name})
        else:
            del module.parametrizations
            module.__class__ = cls.__bases__[0]
    parameters = {**module._parameters, **restored}
    module._parameters.clear()
    module._parameters.update({key: parameters[key] for key in order})


def check_products(index: int, attention: AttentionLayer, value: nn.Module, output: nn.Module) -> None:
    """Refuse projections, given as modules, that do more than multiply by their weight and add a bias."""
    layout = attention.layout
    for (name, weight), module, runs, transposed in (
        (attention.value_module, value, attention.value_runs, layout.value_transposed),
        (attention.output_module, output, attention.output_runs, layout.output_transposed),
    ):
        if runs and not _returns_product(module, weight, transposed):
            raise InputError(
                f"{name} of layer {index} ({type(module).__name__}) does not return its input times its weight, as one "
                "with LoRA does not; merge what it adds into the weight first"
            )


def _returns_product(module: nn.Module, weight: str, transposed: bool) -> bool:
    """Whether a projection returns its input times its weight, plus a bias; yes where that cannot be tried."""
    W = getattr(module, weight).detach()  # also where it is computed
    if type(module) is nn.Linear or isinstance(module, nn.MultiheadAttention) or W.is_meta:
        return True
    W = W if transposed else W.mT
    x = torch.linspace(-1, 1, 3 * len(W), dtype=W.dtype, device=W.device).sin().view(1, 3, -1)
    with torch.no_grad(), in_eval_mode(module), random_states():
        try:
            bias, output, product = (y.double() for y in (module.forward(0 * x), module.forward(x), x @ W))
            error, size, rounded = (float(y.norm()) for y in (output - bias - product, product, bias))
        except Exception:  # it takes other arrays
            return True
    exact = W.dtype in (torch.float32, torch.float64)
    return not error > (1e-3 if exact else 0.1) * size + 8 * torch.finfo(W.dtype).eps * rounded
