"""Where weights live, as `locate` and `assemble` ask for them: a live module or a checkpoint, by the same questions."""

from __future__ import annotations

from typing import Any, Protocol

from oversmooth.anatomy.layer import Weights
from oversmooth.anatomy.live import NormForm


class Source(Weights, Protocol):
    """Where the weights live, and what is known besides them."""

    what: str
    """Its name in messages."""
    config: dict[str, Any]
    """As in config.json; empty where there is none."""
    runs: bool
    """Whether it is a live module: where its norms stand is observed when it runs, and a first guess will do."""

    def attribute(self, module: str, names: tuple[str, ...]) -> Any:
        """The first of these attributes that the module or a module near it has, or None."""
        ...

    def setting(self, module: str, name: str) -> Any:
        """A setting of the module's configuration, or of its tower's; None where there is none."""
        ...

    def norm_form(self, module: str) -> NormForm | None:
        """What a norm does, as observed; None where only its weights are known."""
        ...

    def kind(self, module: str) -> str:
        """The name of a module's class; empty where only its weights are known."""
        ...

    def first_name(self, module: str) -> str:
        """The first name of a module that has several, as shared blocks have."""
        ...

    def window(self, module: str) -> int | None:
        """The size of attention's sliding window; None where there is none, or it is not known."""
        ...


def model_type(source: Source, prefix: str) -> str | None:
    """As the configuration has it; None where it does not say."""
    name = source.setting(prefix, "model_type")
    return name if isinstance(name, str) else None


def joined_name(*parts: str) -> str:
    """With dots, leaving out empty parts."""
    return ".".join(part for part in parts if part)
