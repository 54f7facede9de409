"""Where weights live, as `locate` and `assemble` ask for them; and a live torch module as such a source."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from oversmooth.anatomy.layer import check_all_finite, joined_name
from oversmooth.anatomy.quantised import QuantisedWeights, of_module
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library
from oversmooth.safety.model_state import caches_of_their_own, in_eval_mode, random_states, restoring

NormForm = tuple[Literal["layer", "rms"], float]
"""The kind of a norm, and the offset that it adds to its stored weight."""


class Source(QuantisedWeights):
    """Where the weights live, and what is known besides them."""

    what: str
    """Its name in messages."""
    modules: Mapping[str, nn.Module] = MappingProxyType({})
    """Of a live model, by all their names: where its norms stand is observed when it runs, and a first guess will do.
    Empty where only weights are known.
    """

    @abstractmethod
    def setting(self, module: str, name: str) -> Any:
        """A setting of the module's configuration, or of its tower's; None where there is none."""

    def attribute(self, module: str, names: tuple[str, ...]) -> Any:
        """A number: the first of these that the module, one near it or its configuration has; None: no one has it."""
        own, rest = config_parts(self.config, module)
        found = (part.get(name) for part in (*own[::-1], *rest) for name in names)
        return next((value for value in found if isinstance(value, (bool, int, float))), None)


def model_type(source: Source, prefix: str) -> str | None:
    """As the configuration has it; None where it does not say."""
    name = source.setting(prefix, "model_type")
    return name if isinstance(name, str) else None


# Where a wrapper keeps the module it wraps.
_WRAPPED = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module", "DataParallel": "module"}


class LiveModel(Source):
    """Names, shapes and attributes of a module; parameters are returned as they are.

    stored: reads a parameter that is on the meta device, by its name and rows.
    """

    def __init__(self, model: nn.Module, stored: Callable[[str, slice | None], Tensor] | None = None) -> None:
        self.model, self.stored = model, stored
        self.what = f"this {type(model).__name__}"
        if _is_split(model):
            raise InputError(
                f"{self.what} is tensor-parallel, and no process has whole heads; diagnose it in one process or "
                "sharded by FSDP2, or measure tokens alone: blocks='layers.*', spectra=False"
            )
        config: Any = getattr(model, "config", None)
        self.config: dict[str, Any] = config.to_dict() if hasattr(config, "to_dict") else {}
        # Duplicates too: a module used twice runs twice.
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, module in self.modules.items():
            if ".parametrizations" in name or name.startswith("parametrizations"):
                continue
            own = [key for key, value in module._parameters.items() if value is not None]
            own += list(getattr(module, "parametrizations", {}))  # reparametrized: the attribute has the value
            self.shapes |= {joined_name(name, key): _shape(_computed(module, key)) for key in own}
        self.find_packed()

    @torch.no_grad()
    def _read(self, name: str, rows: slice | None = None) -> Tensor:
        module, _, key = name.rpartition(".")
        with aligned(self.modules[module]):
            value = of_module(self.modules[module], _computed(self.modules[module], key)).detach()
        if value.is_meta and self.stored is not None:
            return self.stored(name, rows)
        value = whole(value)
        return value if rows is None else value[rows]

    def attribute(self, module: str, names: tuple[str, ...]) -> Any:
        """Looked up on the attention module, its children, the modules around it up to the model, then the config."""
        inside = [joined_name(module, child) for child, _ in self.modules[module].named_children()]
        _, *around = upwards(module)
        for module_name in [module, *inside, *around]:
            for name in names:
                value = getattr(self.modules[module_name], name, None)
                if isinstance(value, (bool, int, float)):
                    return value
        return super().attribute(module, names)

    def setting(self, module: str, name: str) -> Any:
        """A setting of the nearest configuration: a tower in a larger model has its own."""
        for here in upwards(module):
            config = getattr(self.modules.get(here), "config", None)
            if isinstance(getattr(config, "model_type", None), str):
                return getattr(config, name, None)
        return None


def _shape(value: Tensor) -> tuple[int, ...]:
    """Of what a weight stands for: in 4 bits it is stored as a column of bytes."""
    return tuple(getattr(value, "quant_state", value).shape)


def upwards(module: str) -> Iterator[str]:
    """The names of a module and of those around it, up to the model's, which is empty."""
    while module:
        yield module
        module = module.rpartition(".")[0]
    yield ""


def _is_split(model: nn.Module) -> bool:
    """Whether processes share the heads: its weights are sharded along more axes of processes than FSDP's one."""
    gathered = any(hasattr(module, "unshard") for module in model.modules())
    layouts: list[Any] = [getattr(p, "placements", ()) for p in model.parameters()]
    return any(sum(placement.is_shard() for placement in layout) > gathered for layout in layouts)


def whole(value: Tensor) -> Tensor:
    """A weight that is sharded over processes, gathered: all of them must ask for it."""
    gather: Any = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def aligned(module: nn.Module) -> AbstractContextManager[None]:
    """While the module's own weights are in memory, where accelerate keeps them elsewhere between its calls."""
    hook: Any = getattr(module, "_hf_hook", None)
    if not getattr(hook, "offload", False):
        return nullcontext()
    return import_library("accelerate", "a model with offloaded weights").utils.align_module_device(module)


def _computed(module: nn.Module, key: str) -> Tensor:
    """A weight. A parametrization may count or draw while it computes one, as spectral norm does in training."""
    made: Any = getattr(module, "parametrizations", {})
    if key not in made:
        return getattr(module, key)
    with random_states(), in_eval_mode(made[key]), restoring(made[key]), caches_of_their_own():
        return getattr(module, key)


@torch.no_grad()
def norm_form(norm: nn.Module, weight: str = "weight") -> NormForm | None:
    """What a norm does: torch's own are known, of others two tokens are normed, as classes and names do not say whether
    γ or 1 + γ multiplies.
    """
    if type(norm) in (nn.LayerNorm, nn.RMSNorm):
        return "layer" if isinstance(norm, nn.LayerNorm) else "rms", 0.0
    with aligned(norm):
        gamma, beta = norm._parameters.get(weight), norm._parameters.get("bias")
        # One with buffers, or with modules inside, may do more than norm when it runs.
        if gamma is None or gamma.ndim != 1 or gamma.device.type == "meta" or norm._modules or norm._buffers:
            return None
        x = (torch.randn(2, len(gamma), generator=torch.Generator().manual_seed(0)) + 0.5).to(gamma)
        try:
            y = norm.forward(x)
        except Exception:  # someone else's code, which may want more than tokens
            return None
    if not isinstance(y, Tensor) or y.shape != x.shape:
        return None
    off: dict[NormForm, float] = {}
    for kind in ("layer", "rms"):
        z = x.float() - x.float().mean(-1, keepdim=True) if kind == "layer" else x.float()
        z = z / z.square().mean(-1, keepdim=True).sqrt()
        for offset in (0.0, 1.0):
            expected = z * (gamma.float() + offset) + (0.0 if beta is None else beta.float())
            off[kind, offset] = float((expected - y.float()).norm() / y.float().norm().clamp(min=1e-12))
    best = min(off, key=off.__getitem__)
    return best if off[best] < 0.02 else None  # bfloat16 is 0.004 off


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside the wrappers of torch.compile and data parallelism."""
    inner = getattr(model, _WRAPPED.get(type(model).__name__, ""), None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


_TOWERS = {
    "vision_config": ("vision", "visual"),
    "text_config": ("text", "language"),
    "audio_config": ("audio",),
    "encoder": ("encoder",),
    "decoder": ("decoder",),
}


def config_parts(config: dict[str, Any], module: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The parts of a configuration for the tower that a module's name puts it in, and the whole with the rest."""
    own: list[dict[str, Any]] = []
    rest = [config]
    for key, towers in _TOWERS.items():
        part = config.get(key)
        if isinstance(part, dict):
            (own if any(tower in module for tower in towers) else rest).append(part)
    return own, rest


def check_is_module(model: object) -> nn.Module:
    """The model, refused if it is not a module."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is {arguments.kind(model)}; give a torch.nn.Module, or a path")
    return model


def check_finite(model: nn.Module) -> None:
    """Refuse a model with NaN or infinity anywhere, naming the weight."""
    check_weights_finite(model.named_parameters())


def check_weights_finite(weights: Iterable[tuple[str, Tensor]]) -> None:
    """The same for some of its weights, by their names."""
    for name, p in weights:
        if p.is_floating_point() and p.device.type != "meta":
            check_all_finite(p, name)
