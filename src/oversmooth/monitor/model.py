"""The model that is trained, as a monitor knows it: its blocks, its attention, and whether its weights are sharded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import Anatomy
from oversmooth.monitor.config import MonitorConfig
from oversmooth.safety.errors import InputError
from oversmooth.trace.blocks import named_blocks, repeated_blocks


@dataclass(frozen=True)
class MonitoredModel:
    """What snapshots need to know of the model."""

    module: nn.Module  # the module itself, without wrappers
    blocks: list[tuple[str, nn.Module]]
    anatomy: Anatomy | None  # None: its attention is not known
    why_unknown: str = "blocks were named"

    @classmethod
    def of(cls, module: nn.Module, config: MonitorConfig) -> MonitoredModel:
        """The blocks of a module and, where it is known, its attention."""
        modules = dict(module.named_modules(remove_duplicate=False))
        if config.blocks is not None:
            return cls(module, [(name, modules[name]) for name in named_blocks(module, config.blocks)], None)
        try:
            anatomy = locate(module, stack=config.stack, heads=config.heads)
        except InputError as error:
            if not (names := repeated_blocks(module)):
                raise InputError(f"{error}, or name the blocks of the model, such as blocks='layers.*'") from error
            return cls(module, [(name, modules[name]) for name in names], None, str(error))
        return cls(module, [(name, modules[name]) for name in anatomy.blocks], anatomy)

    def require_anatomy(self, what: str) -> Anatomy:
        """The anatomy, for what needs it."""
        if self.anatomy is None:
            raise InputError(f"{what} need attention that is known; leave them out ({self.why_unknown})")
        return self.anatomy

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are spread over processes (FSDP2, tensor parallelism): all of them record, or none."""
        return any(type(p).__name__ == "DTensor" or hasattr(p, "full_tensor") for p in self.module.parameters())

    @contextmanager
    def sharded_again(self) -> Iterator[None]:
        """What a pass gathers is let go: the next step of the optimiser would not reach it."""
        try:
            yield
        finally:
            for module in self.module.modules():
                if hasattr(module, "unshard"):
                    module.reshard()  # type: ignore[operator]
