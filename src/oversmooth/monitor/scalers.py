"""GradScalers that nobody told the monitor of: they may scale the gradients that it hears."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch


class OtherScalers:
    """Those of this process that are in use."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        """Seen to be alive, and no garbage."""

    def __bool__(self) -> bool:
        found = _in_use()
        if not found:
            return False
        if not any(one in self._known for one in found):
            del found
            gc.collect()  # one of a training that is over may lie in a cycle still
            self._known.update(_in_use())
        return bool(self._known)


def _in_use() -> list[Any]:
    """Every one that has scaled a loss."""
    scalers = [one for one in gc.get_referrers(torch.amp.GradScaler) if isinstance(one, torch.amp.GradScaler)]
    return [one for one in scalers if one.is_enabled() and one._scale is not None]
