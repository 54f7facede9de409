"""The written formulas, on a model that is not steered: explicit matrices in float64, hooks and packing of our own.

Attention methods: ``A'`` is formed as a matrix (THEORY §6 and §7), V from the value weight's rows, and what comes of
them takes the place of the output module's output, so that every layer gets what a steered model would give it.
Spectral: V, Λ and the two weights from Θ and ψ by other routes than the product's (THEORY §5).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.linalg
import torch
from adversary.numbers import family_oracle as oracle
from support.conformance_methods import (
    KeepDouble,
    Row,
    close,
    counted,
    make,
    numbers,
    output_weight,
    outputs,
    places,
    value_weight,
)
from support.families import HEADS, WIDTH, Family, run, tensors
from torch import Tensor, nn

from oversmooth import steering

# Attention methods


class ByHand:
    """Own hooks on a model that is not steered; calling it runs the model."""

    def __init__(self, family: Family, tested: Row, set_to: dict[int, dict[str, Any]], seen: list[Tensor]) -> None:
        """set_to: what the methods are set to, by layer; seen: A of every run, where hooks cannot see it."""
        self.family, self.tested, self.set_to = family, tested, set_to
        self.attention = list(seen)
        self.model = make(family.name, torch.float64)
        self.run = -1
        self.read: Tensor | None = None
        self.stream: Tensor | None = None
        self.first: Tensor | None = None
        modules = dict(self.model.named_modules())
        if family.library == "transformers":
            self.model.set_attn_implementation("eager")
        for place in places(family):
            self._listen(modules, place)

    def __call__(self) -> list[Tensor]:
        with KeepDouble():
            if self.family.library != "transformers":
                return outputs(self.model, self.family)
            out = dict(run(self.model, self.family.inputs(torch.float64), output_attentions=True))
            for used, own in zip(self.attention, out.pop("attentions"), strict=True):
                close(own, used, 1e-9, "attention at this place")  # so by induction it is what this model has
            return [counted(self.family, part) for part in tensors(out)]

    def _listen(self, modules: dict[str, nn.Module], place: int) -> None:
        family = self.family

        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.run += 1
            x = next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point())
            self.stream = self._ordered(x)

        def read(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.read = self._ordered(args[0] if args else next(iter(kwargs.values())))

        modules[family.block.format(place)].register_forward_pre_hook(enter, with_kwargs=True)
        modules[family.value.format(place)].register_forward_pre_hook(read, with_kwargs=True)
        if family.library == "timm":
            attention = modules[f"blocks.{place}.attn"]
            attention.fused_attn = False
            attention.attn_drop.register_forward_pre_hook(lambda _, args: self._keep(args[0]))
        modules[family.output.format(place)].register_forward_hook(
            functools.partial(self._replace, modules=modules, place=place)
        )

    def _keep(self, A: Tensor) -> None:
        del self.attention[self.run :]
        self.attention.append(A)

    def _ordered(self, x: Tensor) -> Tensor:
        x = x if self.family.batch_first else x.transpose(0, 1)
        return x.reshape(2, -1, x.shape[-1])

    def _replace(self, _: nn.Module, _args: Any, out: Any, *, modules: dict[str, nn.Module], place: int) -> Any:
        family = self.family
        assert self.read is not None
        W_V, b_V = oracle.value_weight(family, modules, place)
        V = self.read[:, None] @ W_V + (0.0 if b_V is None else b_V[:, None])
        if family.library in ("torch", "toy"):
            q, k = queries_and_keys(modules, family, place, self.read)
            scores = q @ k.mT / family.head_dim**0.5
            mask = family.mask()
            if mask is not None:
                scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
            self._keep(scores.softmax(-1))
        Y = self._formula(self.attention[self.run], V, place, *oracle.output_weight(family, modules, place))
        Y = Y if family.batch_first else Y.transpose(0, 1)
        return (Y, None) if isinstance(out, tuple) else Y.reshape(out.shape)

    def _formula(self, A: Tensor, V: Tensor, place: int, W_O: Tensor, b_O: Tensor | None) -> Tensor:
        """A ``(batch, heads, n, n)``, V ``(batch, heads, n, k)``, W_O ``(heads, k, d)``."""
        n, mask, at = A.shape[-1], self.family.mask(), self.set_to[place]
        eye = torch.eye(n, dtype=A.dtype)
        counts = torch.ones(len(A), n, dtype=A.dtype) if mask is None else mask.to(A.dtype)
        J = (counts / counts.sum(-1, keepdim=True))[:, None, None, :].expand(-1, 1, n, -1)
        if self.run == 0:
            self.first = V
        first, later = self.first, self.run > 0
        assert first is not None
        source: Tensor | float = 0.0
        for method in self.tested.methods:
            name = type(method).__name__.lower()
            strength = _by_head(at.get(f"{name}.strength", 0.0))
            if isinstance(method, steering.NeuTRENO) and later:
                A, source = A - strength * eye, strength * first
            elif isinstance(method, steering.AttnScale):
                A = J + (1 + strength) * (A - J)
            elif isinstance(method, steering.Centred):
                A = A - strength * J
            elif isinstance(method, steering.Laplacian):
                A = A - strength * eye
            elif isinstance(method, steering.ValueResidual) and later:
                V = (1 - strength) * V + strength * first
        U = A @ V + source
        for method in self.tested.methods:
            if isinstance(method, steering.Inversion):
                assert self.read is not None
                low, high = at["inversion.low"], at["inversion.high"]
                per_head = []
                for h in range(HEADS):
                    b, g = self.read @ low[h], self.read @ high[h]
                    B = torch.diag_embed(1 + torch.tanh(b)) @ A[:, h] + torch.diag_embed(g) @ (eye - A[:, h])
                    per_head.append(B @ V[:, h])
                U = torch.stack(per_head, 1)
            elif isinstance(method, steering.GatedAttention):
                assert self.read is not None
                k = V.shape[-1]
                gates = [self.read @ at["gatedattention.gate"][h * k : (h + 1) * k].T for h in range(HEADS)]
                U = torch.stack([U[:, h] * 2 / (1 + (-gate).exp()) for h, gate in enumerate(gates)], 1)
        Y = (U @ W_O).sum(1) + (0.0 if b_O is None else b_O)
        J = J[:, 0]
        for method in self.tested.methods:
            if isinstance(method, steering.FeatScale):
                s, t = torch.as_tensor(at["featscale.s"]), torch.as_tensor(at["featscale.t"])
                term = s * (J @ Y) + t * ((eye - J) @ Y)
                Y = Y + (term + term if method.as_published else term)
            elif isinstance(method, steering.OrthogonalUpdate):
                assert self.stream is not None
                unit = self.stream / self.stream.norm(dim=-1, keepdim=True)
                along = (unit[..., :, None] * unit[..., None, :]) @ Y[..., None]  # P = x xᵀ/⟨x, x⟩, token by token
                Y = Y - at["orthogonalupdate.strength"] * along[..., 0]
            elif isinstance(method, steering.ContraNorm):
                unit = Y / Y.square().sum(-1, keepdim=True).sqrt()
                close_by = (unit @ unit.mT / method.temperature).exp() * counts[:, None, :]
                Y = Y - at["contranorm.strength"] * ((close_by / close_by.sum(-1, keepdim=True)) @ Y)
        return Y


def _by_head(value: Tensor | float) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).reshape(-1, 1, 1)


def queries_and_keys(modules: dict[str, nn.Module], family: Family, place: int, x: Tensor) -> list[Tensor]:
    """``(batch, heads, n, k)``, of weights that make values too, one after another."""
    module, name = value_weight(family, place)
    W, b = (getattr(modules[module], each) for each in (name, name.replace("weight", "bias")))
    return [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (x @ W.mT + b).chunk(3, -1)[:2]]


def written(family: Family, tested: Row, model: nn.Module) -> list[Tensor]:
    """What a model steered like this one must give. float64; its attention is asked for where hooks cannot see it."""
    seen: list[Tensor] = []
    if family.library == "transformers":
        with KeepDouble():
            before = model.config._attn_implementation
            model.set_attn_implementation("eager")
            out = run(model, family.inputs(torch.float64), output_attentions=True)
            model.set_attn_implementation(before)
        seen = [A.detach() for A in out.attentions]
    set_to = {place: numbers(model, family, tested, place) for place in places(family)}
    return ByHand(family, tested, set_to, seen)()


# Spectral


def basis(tested: Row, free: Tensor, base: Tensor | None, columns: int) -> Tensor:
    """V ``(d, m)``."""
    method = tested.spectral
    assert method is not None
    if method.form == "general":
        return free
    if method.orthogonal == "qr":
        Q, R = torch.linalg.qr(free)
        return Q * R.diagonal().sign()
    assert base is not None
    S = np.zeros((WIDTH, WIDTH))
    entries = iter(free.tolist())
    for i in range(WIDTH):
        for j in range(i):
            S[i, j] = next(entries)
            S[j, i] = -S[i, j]
    eye = np.eye(WIDTH)
    turn = scipy.linalg.expm(S) if method.orthogonal == "exp" else (eye + S) @ np.linalg.inv(eye - S)
    return base @ torch.from_numpy(turn)[:, :columns]


def eigenvalues(tested: Row, psi: Tensor, group: int) -> Tensor:
    """Λ ``(heads, k)``, entry by entry."""
    method = tested.spectral
    assert method is not None
    out = torch.empty_like(psi)
    low, high = (-1.0, 0.0) if method.mode == "sharpen" else (0.0, 1.0)
    for h in range(len(psi)):
        mates = [m for m in range(len(psi)) if m // group == h // group]
        for j in range(psi.shape[1]):
            if method.form == "general":
                out[h, j] = min(max(float(psi[h, j]), low / group), high / group)
                continue
            square = float(psi[h, j]) ** 2
            if method.bounded:
                square /= 1 + sum(float(psi[m, j]) ** 2 for m in mates) / method.bound
            out[h, j] = -square if method.mode == "sharpen" else square
    return out


def spectral_weights(
    family: Family, tested: Row, free: Tensor, psi: Tensor, base: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """W_V ``(kv_heads, d, k)``, W_O ``(heads, k, d)`` and Λ ``(heads, k)``."""
    method, k, group = tested.spectral, family.head_dim, HEADS // family.kv_heads
    assert method is not None
    V = basis(tested, free, base, family.kv_heads * k)
    L = eigenvalues(tested, psi, group)
    if method.wiring == "code":
        W_V, W_O = V.T, V @ torch.diag(L.flatten())
    else:
        back = torch.from_numpy(np.linalg.pinv(V.numpy())) if method.form == "general" else V.T
        W_V = V
        slices = [torch.diag(L[h]) @ back[(h // group) * k : (h // group + 1) * k] for h in range(HEADS)]
        W_O = torch.cat(slices)
    return W_V.unflatten(1, (family.kv_heads, k)).movedim(1, 0), W_O.unflatten(0, (HEADS, k)), L


def put(modules: dict[str, nn.Module], family: Family, place: int, W_V: Tensor, W_O: Tensor) -> None:
    """Into a model that is not steered; queries and keys that share the weight stay."""
    value, output = (
        getattr(modules[m], name) for m, name in (value_weight(family, place), output_weight(family, place))
    )
    with torch.no_grad():
        oracle.value_rows(family, value).copy_(W_V.mT)
        oracle.output_rows(family, output).copy_(W_O)


def free_of(modules: dict[str, nn.Module], family: Family, place: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Θ or the skew entries, ψ, and the base beside the former."""
    module, name = value_weight(family, place)
    held = modules[module].parametrizations[name]
    theta = list(held.parameters(recurse=False))[-1]
    base = dict(held.named_buffers()).get("0.base")
    module, name = output_weight(family, place)
    psi = modules[module].parametrizations[name].original0
    return theta.detach(), psi.detach(), None if base is None else base.double()
