"""Where the first inputs of a passing batch wait for their ranks to be computed: arrays that CUDA graphs write to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class Room:
    """The first inputs of a batch at one depth, in arrays of their own: what the training has is never written to."""

    tokens: Tensor
    """``(ranks, n, d)``, float32."""
    mask: Tensor | None
    """``(ranks, n)``: which tokens count."""
    number: int
    captured: bool = False
    """Whether a CUDA graph writes here: then it stays as long as the gauge, and so do its arrays."""

    @classmethod
    def of(cls, x: Tensor, mask: Tensor | None, number: int) -> Room:
        """While the compiler warms up for CUDA graphs, what this thread allocates lies in a pool of theirs, in which
        nothing may stay; what another thread allocates does not.
        """

        def made() -> Room:
            with torch.inference_mode(False):  # or no other pass could write here
                counted = None if mask is None else torch.zeros(mask.shape, dtype=mask.dtype, device=mask.device)
                return cls(torch.zeros(x.shape, dtype=torch.float32, device=x.device), counted, number)

        if not x.is_cuda:
            return made()
        with ThreadPoolExecutor(1) as elsewhere:
            room = elsewhere.submit(made).result()
        torch.cuda.synchronize(x.device)  # that thread's stream has filled it before this one's writes
        return room

    def fits(self, x: Tensor, mask: Tensor | None) -> bool:
        return self.tokens.shape == x.shape and (self.mask is None) == (mask is None)

    def write(self, x: Tensor, mask: Tensor | None, flag: Tensor | None) -> None:
        """flag: whether to, on the device; None: yes."""
        self.tokens.copy_(x if flag is None else torch.where(flag, x.float(), self.tokens))
        if self.mask is not None and mask is not None:
            self.mask.copy_(mask if flag is None else torch.where(flag, mask, self.mask))
