"""The nouns of anatomy: one attention layer and its norm, and a model's layers in order.

They hold names and shapes; weights are read when asked for, one layer at a time, from wherever they live.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from oversmooth.anatomy.layouts import Layout
from oversmooth.safety.errors import InputError
from oversmooth.theory.weights import all_finite, repeat_shared_heads

NormPosition = Literal["pre", "post", "none", "unknown"]
"""Before attention, after the addition, or nowhere; unknown: the files do not say, and nothing has run."""
_LATENT_EPS = 1e-6
SINKS, GATE = "sinks", "a gate"


def joined_name(*parts: str) -> str:
    """With dots, leaving out empty parts."""
    return ".".join(part for part in parts if part)


class Weights(Protocol):
    """Named arrays of a live module or of a checkpoint."""

    shapes: dict[str, tuple[int, ...]]

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """One array, or some of its rows."""
        ...


@dataclass(frozen=True)
class Norm:
    """LayerNorm or RMSNorm on the way into attention (pre) or after the addition (post)."""

    name: str
    """Of its module."""
    kind: Literal["layer", "rms"]
    """LayerNorm or RMSNorm."""
    offset: float
    """Added to the stored weight: 1 in Gemma's norms, otherwise 0."""
    weights: Weights = field(repr=False, compare=False)
    """Where its arrays are read from."""
    weight: str = "weight"
    """The name of its weight."""

    @property
    def gamma(self) -> Tensor:
        """``(d,)``, the factor on each feature, offset included."""
        return _finite(self.weights.read(f"{self.name}.{self.weight}"), self.name, self.weight) + self.offset

    @property
    def beta(self) -> Tensor | None:
        """``(d,)``, what is added to each feature; None: nothing."""
        name = f"{self.name}.bias"
        return self.weights.read(name) if name in self.weights.shapes else None


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer, as it acts on the residual stream."""

    name: str
    """Of the module that holds the weights."""
    block: str
    """The name of the block around it, with the MLP, where there is one."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Heads of keys and values; fewer than `heads` where queries share them."""
    head_dim: int
    """k, the features of one head's values."""
    width: int
    """d, the features of the stream."""
    causal: bool | None
    """Whether tokens see only earlier ones; None: not known before it runs."""
    norm_position: NormPosition
    """Where its norm stands."""
    norm: Norm | None
    """None: it has none, or its position is unknown."""
    layer_scale: str | None
    """The name of the per-channel factor on what attention adds; W_O has it folded in."""
    layout: Layout
    """How its weights are named and packed."""
    weights: Weights = field(repr=False, compare=False)
    """Where its arrays are read from."""
    window: int | None = None
    """The number of tokens in its sliding window, according to the module; None: no window, or not known before it
    runs.
    """
    factor: float | Tensor | None = field(default=None, compare=False)
    """What multiplies attention's output on its way into the stream, besides the layer scale: a number from the
    configuration, or, once the model has run, what was observed, ``()`` or ``(d,)``. W_O has it folded in.
    """
    keep: float = 1.0
    """What multiplies the stream that attention adds to: 1 almost everywhere; 0 where it replaces the stream."""
    feed: float = 1.0
    """What multiplies tokens on their way into the value projection; W_V has it folded in."""
    values_normed: bool = False
    """Whether its values are normed token by token, so that H is known up to a factor per token."""
    modules_idle: bool = False
    """Whether the modules of its projections never run, since their weights are passed to a function."""
    value_runs: bool = True
    """Whether a module computes the values, so that hooks see them; False: the value weight is a bare parameter."""
    output_runs: bool = True
    """Whether a module computes the output projection; False: its weight is a bare parameter."""
    mixing: str | None = None
    """What is done to values, or to what attention mixes, besides what the weights say, in words (a norm, clipping);
    None: nothing that names or settings show.
    """
    on_branch: str | None = None
    """What acts token by token or channel by channel where attention enters the stream, in words (a norm); None:
    nothing that names show.
    """
    leak: str | None = None
    """What keeps the rows of A from summing to one, in words (sinks, a gate); None: nothing that the weights show."""

    def __str__(self) -> str:
        return self.name

    def _name(self, part: str) -> str:
        return joined_name(self.name, part)

    def _weight(self, part: str, role: str) -> Tensor:
        return _finite(self.weights.read(self._name(part)), self.name, role)

    @property
    def value_module(self) -> tuple[str, str]:
        """The module that holds the value weight, and the weight's name there."""
        module, _, weight = self._name(self.layout.value).rpartition(".")
        return module, weight

    @property
    def output_module(self) -> tuple[str, str]:
        """The module that holds the output weight, and the weight's name there."""
        module, _, weight = self._name(self.layout.output).rpartition(".")
        return module, weight

    @property
    def W_V(self) -> Tensor:
        """``(heads, d, k)``, the value weight, one slice per query head; shared value heads repeated."""
        return repeat_shared_heads(self.shared_W_V, self.heads)

    @property
    def shared_W_V(self) -> Tensor:
        """``(kv_heads, d, k)``, the value weight, one slice per value head."""
        W = self._values().mT
        return W if self.feed == 1 else W * self.feed

    @property
    def raw_W_V(self) -> Tensor:
        """``(heads, d, k)``, without the factor on the way into the value projection."""
        return repeat_shared_heads(self._values().mT, self.heads)

    def values(self, x: Tensor) -> Tensor:
        """The exact values.

        Args:
            x: ``(..., n, d)``, what enters the value projection.

        Returns:
            ``(..., heads, n, k)``, one slice per query head.
        """
        W = self.raw_W_V.to(x)
        V = x[..., None, :, :] @ W
        if (bias := self.value_bias) is not None:
            V = V + bias.to(V)[:, None]
        if not self.values_normed:
            return V
        rows = slice(0, self.latent_rank)
        z = x @ self.weights.read(self._name(self.layout.value), rows).mT.to(x)
        if (name := self._name(self.layout.value_bias)) in self.weights.shapes:
            z = z + self.weights.read(name, rows).to(z)
        return V / (z.square().mean(-1, keepdim=True) + _LATENT_EPS).sqrt()[..., None, :, :]

    @property
    def cannot_steer(self) -> str | None:
        """Why values cannot be changed where the value module returns them; None: they can."""
        if self.layout.packing == "latent":
            return "its value weight is a product of several"
        if self.layout.own_bias:
            return "its value bias is added outside its value module"
        if self.leak == GATE:
            return "what it mixes is gated before the output projection"
        if self.mixing is not None:
            return self.mixing
        if self.modules_idle:
            return "its projections' weights are passed to a function, and their modules never run"
        return None if self.feed == 1 else "the input of its values is multiplied on the way"

    @property
    def W_O(self) -> Tensor:
        """``(heads, k, d)``, the output weight, one slice per head, with the layer scale and other factors included."""
        W, scale = self.raw_W_O, self.scale
        return W if scale is None else W * scale.to(W)

    @property
    def scale(self) -> Tensor | None:
        """``()`` or ``(d,)``, all that multiplies attention's output on its way into the stream; None: nothing."""
        scale = None
        if self.layer_scale is not None:
            scale = _finite(self.weights.read(self.layer_scale), self.name, "layer scale")
        if self.factor is not None:
            factor = torch.as_tensor(self.factor, device=None if scale is None else scale.device)
            scale = factor if scale is None else scale * factor.to(scale)
        return scale

    @property
    def raw_W_O(self) -> Tensor:
        """``(heads, k, d)``, without the layer scale and other factors."""
        W = self._weight(self.layout.output, "output weight")
        return (W if self.layout.output_transposed else W.mT).unflatten(0, (self.heads, self.head_dim))

    @property
    def value_bias(self) -> Tensor | None:
        """``(heads, k)``, one row per query head; None: there is none."""
        if self._name(self.layout.value_bias) not in self.weights.shapes:
            return None
        bias = self._weight(self.layout.value_bias, "value bias")
        if self.layout.packing == "latent":
            E = self._expanded()
            return E @ bias[: self.latent_rank].to(E)
        by_head = bias.unflatten(0, (self.kv_heads, -1)) if self.layout.own_bias else self.split(bias)[1]
        return repeat_shared_heads(by_head[..., None], self.heads)[..., 0]

    @property
    def output_bias(self) -> Tensor | None:
        """``(d,)``, as stored; None: there is none."""
        name = self._name(self.layout.output_bias)
        return self.weights.read(name) if name in self.weights.shapes else None

    def _values(self) -> Tensor:
        """The rows of the value weight by head, ``(kv_heads, k, d)``; of a stacked weight only those are read."""
        name = self._name(self.layout.value)
        if self.layout.packing == "latent":
            E, down = self.latent_parts
            W = E @ down
        elif self.layout.packing == "stacked" and not self.layout.value_transposed:
            start = (self.heads + self.kv_heads) * self.head_dim
            W = self.weights.read(name, slice(start, start + self.kv_heads * self.head_dim))
            W = W.unflatten(0, (self.kv_heads, self.head_dim))
        else:
            W = self.weights.read(name)
            W = self.split(W.mT if self.layout.value_transposed else W)[1]
        return _finite(W, self.name, "value weight")

    @property
    def latent_rank(self) -> int:
        """Latent attention: the number of features that keys and values are computed from."""
        return self.weights.shapes[self._name(self.layout.latent_norm)][0]

    @property
    def latent_parts(self) -> tuple[Tensor, Tensor]:
        """Latent attention: from latent features to values, ``(heads, k, rank)``, and from the stream to them, ``(rank,
        d)``.
        """
        E = self._expanded()
        return E, self.weights.read(self._name(self.layout.value), slice(0, self.latent_rank)).to(E)

    def _expanded(self) -> Tensor:
        """The map from latent features to values, the latent norm's γ folded in, ``(heads, k, rank)``."""
        W, gamma = (
            self._weight(self.layout.expand, "value weight"),
            self._weight(self.layout.latent_norm, "latent norm"),
        )
        W = W.to(torch.promote_types(W.dtype, torch.float32))  # a product of half precision has too few digits
        # A head's keys stand before its values.
        return W.unflatten(0, (self.heads, -1))[:, -self.head_dim :] * gamma.to(W)

    @property
    def _packed_as(self) -> tuple[tuple[int, int, int], int]:
        """How queries, keys and values are packed: groups of parts of features, and which part the values are."""
        parts = self.heads // self.kv_heads + 2  # the queries that share a key and a value, and these
        if self.layout.packing == "quarters":
            return (4, 3, -1), 1
        if self.layout.packing == "per head":
            return (self.kv_heads, parts, self.head_dim), parts - 1
        return (1, parts, self.kv_heads * self.head_dim), parts - 1

    def split(self, packed: Tensor, dim: int = 0) -> tuple[Tensor | None, Tensor]:
        """Split the value projection's weight, bias or output into queries and keys, and values.

        Args:
            packed: the weight, bias or output.
            dim: the dimension along which queries, keys and values are packed.

        Returns:
            Queries and keys, None where the values have a projection of their own, and the values, in which dim becomes
            the two dimensions ``(kv_heads, k)``.

        Raises:
            InputError: latent attention, whose value weight is a product of several.
        """
        dim, by_head = dim % packed.ndim, (self.kv_heads, self.head_dim)
        if self.layout.packing == "latent":
            raise InputError(f"{self.name}: {self.cannot_steer}; take one whose values have a weight of their own")
        if self.layout.packing == "separate":
            return None, packed.unflatten(dim, by_head)
        shape, place = self._packed_as
        parts = packed.unflatten(dim, shape)
        values, rest = parts.select(dim + 1, place), parts.narrow(dim + 1, 0, place)
        if self.layout.packing == "per head":
            return rest, values
        values = values.flatten(dim, dim + 1).unflatten(dim, by_head)
        if self.layout.packing == "stacked":
            return rest.flatten(dim, dim + 2), values
        return torch.cat([rest, parts.narrow(dim + 1, place + 1, 1)], dim + 1), values

    def join(self, rest: Tensor | None, values: Tensor, dim: int = 0) -> Tensor:
        """The inverse of `split`.

        Args:
            rest: queries and keys as `split` returned them, or None.
            values: with the two dimensions ``(kv_heads, k)`` from dim on.
            dim: the dimension along which they are packed.
        """
        dim = dim % (values.ndim - 1)
        if rest is None:
            return values.flatten(dim, dim + 1)
        if self.layout.packing == "stacked":
            return torch.cat([rest, values.flatten(dim, dim + 1)], dim)
        (groups, _, size), place = self._packed_as
        before, after = rest.narrow(dim + 1, 0, place), rest.narrow(dim + 1, place, rest.shape[dim + 1] - place)
        parts = values.flatten(dim, dim + 1).unflatten(dim, (groups, 1, size))
        return torch.cat([before, parts, after], dim + 1).flatten(dim, dim + 2)


@dataclass(frozen=True)
class Anatomy:
    """The attention layers of one stack, in the order they run; a shared layer appears as often as it runs."""

    layers: tuple[AttentionLayer, ...]
    """Also reached by iteration."""
    stack: str
    """The name of the stack: the layers' names with * for the number."""
    remarks: tuple[str, ...] = ()
    """What was seen and left out: other stacks, cross-attention, partial matches."""
    alone: bool = True
    """Whether the model has no other stack."""
    others: tuple[str, ...] = ()
    """The blocks between these that have no attention (Mamba, convolutions): of them tokens alone are measured."""

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[AttentionLayer]:
        return iter(self.layers)

    @property
    def order(self) -> list[str]:
        """The names of all blocks, in the order they run."""
        names = [*(layer.block for layer in self), *self.others]
        return sorted(names, key=lambda name: int(name.rpartition(".")[2])) if self.others else names

    @property
    def blocks(self) -> dict[str, AttentionLayer | None]:
        """All blocks in order, with their attention where they have any."""
        layers = {layer.block: layer for layer in self}
        return {name: layers.get(name) for name in self.order}

    @property
    def shared(self) -> bool:
        """Whether a layer runs more than once."""
        return len({layer.name for layer in self.layers}) < len(self.layers)


def _finite(W: Tensor, layer: str, role: str) -> Tensor:
    if not W.is_floating_point() or W.element_size() < 2:
        raise InputError(f"{layer}: the {role} has dtype {W.dtype}; give a model whose weights are not quantized")
    if W.device.type == "meta":
        raise InputError(f"{layer}: the {role} is not in memory (meta device); load the weights first")
    check_all_finite(W, f"{layer}: the {role}")
    return W


def check_all_finite(W: Tensor, what: str) -> None:
    """Refuse NaN and infinity."""
    if not all_finite(W):
        bad = int((~torch.isfinite(W)).sum())
        raise InputError(f"{what} has NaN or infinity in {bad:,} of {W.numel():,} entries; fix the checkpoint first")
