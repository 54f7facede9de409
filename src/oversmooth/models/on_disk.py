"""A transformers model whose blocks stay on disk: everything else is loaded, and a block at a time on request.

Weights are renamed, merged and cast by the library's own loader, a block's at a time.
"""

from __future__ import annotations

import importlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from oversmooth.anatomy.checkpoint import Checkpoint
from oversmooth.anatomy.layer import Anatomy, NormPosition
from oversmooth.anatomy.live import LiveModel, check_weights_finite
from oversmooth.anatomy.locate import find
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.libraries import unusable
from oversmooth.safety.machine import check_fits, in_words


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """A model without memory for its parameters; buffers are computed as always."""
    builder = threading.get_ident()

    def to_meta(_module: nn.Module, _name: str, value: Any) -> nn.Parameter | None:
        if value is None or value.is_meta or threading.get_ident() != builder:
            return None
        return nn.Parameter(value.detach().to("meta"), requires_grad=value.requires_grad)

    hook = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]
    try:
        return make().eval()
    finally:
        hook.remove()


class OnDisk:
    """The weights of a model's blocks, read when they are needed; all others are loaded.

    Args:
        model: with its parameters on the meta device.
        checkpoint: its files.
        device: where weights go.
        dtype: their floating type.
        most: bytes that weights and tokens may take there; None: what is free.
    """

    def __init__(
        self, model: nn.Module, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, most: int | None
    ) -> None:
        self.model, self.device, self.dtype, self.most = model, device, dtype, most
        self.name, self.files = checkpoint.path.resolve().name, checkpoint.files
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._loader = _Loader(model, device, dtype)
        self._stored: dict[str, dict[str, Any]] = defaultdict(dict)  # by parameter: the arrays that it is made of
        for name, array in checkpoint.stored():
            self._stored[self._loader.target(name)][name] = array
        self._load([name for name, p in model.named_parameters() if p.ndim < 2])  # norms show what they are
        blocks = self.anatomy().blocks
        self._meta = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.is_meta}
        self.blocks = {block: [name for name in self._meta if name.startswith(f"{block}.")] for block in blocks}
        inside = {name for names in self.blocks.values() for name in names}
        rest = [name for name in self._meta if name not in inside]
        self.largest = max(sum(self._meta[name].nbytes for name in names) for names in self.blocks.values())
        self.outside = sum(p.nbytes for name, p in model.named_parameters() if name not in inside)
        self._check_memory()
        self._load(rest)
        with self._loader.about(self.name):
            model.tie_weights(missing_keys={n for n in rest if self._parameter(n).is_meta}, recompute_mapping=False)  # type: ignore[operator]
        self._check_loaded(rest)
        for module in self._modules.values():
            module._buffers.update({key: None if b is None else b.to(device) for key, b in module._buffers.items()})
        self._ahead: dict[str, Future[None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="oversmooth-read")
        self._lock = threading.RLock()

    def anatomy(self, stack: str | None = None, heads: int | None = None, norm: NormPosition | None = None) -> Anatomy:
        """The attention layers, whose weights are read from disk where they are not in memory."""
        return find(LiveModel(self.model, self.read), stack=stack, heads=heads, norm=norm)

    @property
    def needed(self) -> int:
        """Bytes of weights at once: a block, the next one, and what is outside blocks."""
        return self.outside + 2 * self.largest

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """One parameter, by its name in the model."""
        block = next(block for block, names in self.blocks.items() if name in names)
        with self._lock:
            self._load([name] if name in self._stored else self.blocks[block])
            value = self._parameter(name).detach()
            self._free(block)
        return value if rows is None else value[rows]

    @contextmanager
    def loaded(self, block: str, following: str | None) -> Iterator[None]:
        """While a block's weights are in memory. following: the block that is probably next, read meanwhile."""
        (self._ahead.pop(block, None) or self._thread.submit(self._load_block, block)).result()
        if following in self.blocks and following != block:
            self._ahead[following] = self._thread.submit(self._load_block, following)
        try:
            yield
        finally:
            self._free(block)

    def close(self) -> None:
        """Free what was read ahead."""
        for block, reading in self._ahead.items():
            reading.exception()
            self._free(block)
        self._ahead.clear()

    def _check_memory(self) -> None:
        remedy = "give a smaller --dtype, such as bfloat16, or use a larger machine"
        if self.most is not None and self.needed > self.most:
            least = f"streaming {self.name} needs {in_words(self.needed)} for weights"
            raise InputError(f"{least}, over --max-memory {in_words(self.most)}; {remedy}")
        if self.device.type == "cpu":
            check_fits(self.needed, f"streaming {self.name}", remedy)

    def _load_block(self, block: str) -> None:
        names = self.blocks[block]
        with self._lock:
            self._load(names)
            self._check_loaded(names)
        check_weights_finite((name, self._parameter(name)) for name in names)

    def _load(self, names: Iterable[str]) -> None:
        arrays = {stored: array for name in names for stored, array in self._stored.get(name, {}).items()}
        with self._loader.about(self.name):
            self._loader.into_model(arrays)

    def _check_loaded(self, names: list[str]) -> None:
        if lost := [name for name in names if self._parameter(name).is_meta]:
            raise InputError(
                f"{self.name} lacks {len(lost)} weights (first: {lost[0]}); fetch it again, or, if they are meant to "
                "be missing, diagnose it without --stream"
            )

    def _free(self, block: str) -> None:
        for name in self.blocks[block]:
            module, _, key = name.rpartition(".")
            self._modules[module]._parameters[key] = self._meta[name]

    def _parameter(self, name: str) -> nn.Parameter:
        module, _, key = name.rpartition(".")
        value = self._modules[module]._parameters[key]
        assert value is not None
        return value


class _Loader:
    """transformers' own way from the arrays of a checkpoint to the parameters of a model."""

    def __init__(self, model: Any, device: torch.device, dtype: torch.dtype) -> None:
        self.model = model
        with self.about("this model"):
            self.core: Any = importlib.import_module("transformers.core_model_loading")
            made: Any = importlib.import_module("transformers.conversion_mapping").get_model_conversion_mapping(model)
            how = dict(device_map={"": device}, dtype=dtype, dtype_plan=model._get_dtype_plan(dtype))
            library: Any = importlib.import_module("transformers.modeling_utils")
            self.config = library.LoadStateDictConfig(weight_mapping=made, **how)
            self.bars: Any = importlib.import_module("transformers.utils.logging")
            renamings = [one for one in made if isinstance(one, self.core.WeightRenaming)]
            self.rules = renamings, [one for one in made if isinstance(one, self.core.WeightConverter)]
            self.names = model.state_dict()

    def target(self, stored: str) -> str:
        """The parameter that an array is for, or the first of several that are made of it."""
        for rules in (self.rules, ([], [])):
            name, _ = self.core.rename_source_key(stored, *rules, self.model.base_model_prefix, self.names)
            if name in self.names:
                return name
        return stored

    def into_model(self, arrays: dict[str, Any]) -> None:
        """Set the parameters that these arrays are for."""
        shown = self.bars.is_progress_bar_enabled()
        self.bars.disable_progress_bar()
        try:
            found, _ = self.core.convert_and_load_state_dict_in_model(self.model, arrays, self.config)
        finally:
            if shown:
                self.bars.enable_progress_bar()
        if wrong := [*found.conversion_errors, *found.mismatched_keys]:
            raise InputError(f"{wrong[0]} does not fit the model; fetch the checkpoint again")

    @contextmanager
    def about(self, name: str) -> Iterator[None]:
        """What goes wrong inside, as one sentence: versions differ in what they have, and files may be damaged."""
        try:
            yield
        except InputError:
            raise
        except (ImportError, AttributeError, TypeError) as error:
            raise unusable("transformers", f"streaming {name}", error) from error
        except Exception as error:
            raise InputError(f"the weights of {name} cannot be read ({reason(error)}); fetch it again") from error
