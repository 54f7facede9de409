"""Tokens at every depth of a model while it runs, from hooks on its blocks alone, reduced to numbers on the way.

Nothing needs to be known of attention: what enters the first block and what each block gives is enough. Blocks that run
several times are several depths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.metrics.rank import ranks_of, singular_values
from oversmooth.metrics.summary import Summary, summary
from oversmooth.observe.watch import batch_first, first_tensor, results_like
from oversmooth.safety.errors import InputError

Seen = Callable[[int, Tensor], None]
"""Gets a depth, 0 for what enters the first block, and tokens ``(batch, n, d)``."""


@contextmanager
def every_depth(blocks: Sequence[tuple[str, nn.Module]], seen: Seen) -> Iterator[list[str]]:
    """Calls ``seen`` with the tokens of every depth while the model runs; gives the names of the blocks that ran.

    Args:
        blocks: by name, in any order; each once.
        seen: what is called, in the order in which blocks run. What it gets is the model's own array.
    """
    ran: list[str] = []
    inside: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if not inside and not ran:
                seen(0, batch_first(axes_of(module), _tokens(name, first_tensor(args, kwargs))))
            inside.append(name)

        return hook

    def leave(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            inside.pop()
            if inside:  # a block inside a block
                return
            x = first_tensor(args, kwargs)
            ran.append(name)
            seen(len(ran), batch_first(axes_of(module), _tokens(name, results_like(x, out, name)[0])))

        return hook

    with ExitStack() as stack:
        for name, block in blocks:
            for handle in (
                block.register_forward_pre_hook(enter(name), with_kwargs=True),
                block.register_forward_hook(leave(name), with_kwargs=True),
            ):
                stack.callback(handle.remove)
        yield ran


def axes_of(block: nn.Module) -> nn.Module:
    """The module that knows the order of a block's axes, for `batch_first`: in torch's own their attention."""
    return next((m for m in block.modules() if hasattr(m, "batch_first")), block)


def _tokens(name: str, x: Tensor) -> Tensor:
    if x.ndim not in (2, 3):
        raise InputError(f"{name} gets an array of shape {tuple(x.shape)}; tokens must be (batch, n, d)")
    return x


class Depths:
    """Numbers by depth, each the mean over inputs, from one pass or from several.

    Args:
        ranks: inputs of which ranks are computed, the first ones; 0 for none.
        cosines: False leaves them out.
    """

    def __init__(self, *, ranks: int = 4, cosines: bool = True) -> None:
        self.ranks, self.cosines = ranks, cosines
        self.columns: list[dict[str, list[Tensor]]] = []
        """By depth and metric: ``(batch,)`` per pass."""
        self.tokens: list[int] = []

    @torch.no_grad()
    def add(self, depth: int, x: Tensor, mask: Tensor | None = None) -> None:
        """Reduce the tokens of one depth.

        Args:
            depth: 0 for what enters the first block.
            x: ``(batch, n, d)``: tokens.
            mask: ``(batch, n)``: tokens that count; None: all.
        """
        x = x.detach()
        with torch.autocast(x.device.type, enabled=False):
            row = columns_of(summary(x, mask=mask, cosines=self.cosines), self.cosines)
            if self.ranks and (few := self.ranks - self._begun(depth)) > 0:
                s = singular_values(x[:few], mask=None if mask is None else mask[:few])
                row |= ranks_of(s)
        while len(self.columns) <= depth:
            self.columns.append({})
        for name, value in row.items():
            self.columns[depth].setdefault(name, []).append(value)
        if depth == 0:
            self.tokens += [x.shape[1]] * len(x) if mask is None else mask.sum(-1).tolist()

    def _begun(self, depth: int) -> int:
        """Inputs of this depth that are reduced already."""
        return sum(map(len, self.columns[depth]["log_hfc_lfc"])) if depth < len(self.columns) else 0

    def by_input(self, depth: int) -> dict[str, Tensor]:
        """``(inputs,)`` per metric, in float64."""
        return {name: torch.cat([v.double() for v in parts]).cpu() for name, parts in self.columns[depth].items()}

    def means(self, names: Sequence[str]) -> dict[str, list[float]]:
        """By metric: one number per depth. HFC/LFC is the geometric mean over inputs.

        Args:
            names: of metrics; those that were not measured are left out.
        """
        rows = []
        for parts in self.columns:
            rows.append({name: torch.cat([v.double() for v in values]).mean() for name, values in parts.items()})
        known = [name for name in names if _source(name) in rows[0]] if rows else []
        if not known:
            return {}
        # One array, so that a GPU is waited for once.
        table = torch.stack([torch.stack([_value(name, row) for row in rows]) for name in known])
        return dict(zip(known, table.tolist(), strict=True))


class StoredDepths:
    """The tokens of every depth in one array that stays where it is, so that a CUDA graph can fill it.

    Args:
        blocks: by name, in the order in which they run, each once.
    """

    def __init__(self, blocks: Sequence[tuple[str, nn.Module]]) -> None:
        self.blocks = blocks
        self.tokens: Tensor | None = None
        """``(depth + 1, inputs, n, d)`` in float32, as the first pass shows."""

    @torch.no_grad()
    def fill(self, run: Callable[[], object]) -> None:
        """Store what one call of the model shows.

        Args:
            run: calls the model on inputs that are always the same.
        """
        with every_depth(self.blocks, self._keep):
            run()

    def _keep(self, depth: int, x: Tensor) -> None:
        if self.tokens is None:
            self.tokens = torch.zeros(len(self.blocks) + 1, *x.shape, device=x.device)
        self.tokens[depth].copy_(x)

    def measure(self) -> dict[str, list[float]]:
        """HFC/LFC and cosines by depth, each the mean over inputs, in one sweep."""
        assert self.tokens is not None, "the first pass made it"
        measured = summary(self.tokens)
        columns = torch.stack([measured.log_hfc_lfc.mean(1).exp(), measured.cos.mean(1), measured.abs_cos.mean(1)])
        return dict(zip(("hfc_lfc", "cos", "abs_cos"), columns.tolist(), strict=True))


def columns_of(measured: Summary, cosines: bool = True) -> dict[str, Tensor]:
    """The metrics of a summary by name, ``(batch,)`` each."""
    row = {"log_hfc": measured.log_hfc, "log_lfc": measured.log_lfc, "log_hfc_lfc": measured.log_hfc_lfc}
    return {**row, "cos": measured.cos, "abs_cos": measured.abs_cos} if cosines else row


def _source(name: str) -> str:
    return "log_hfc_lfc" if name == "hfc_lfc" else name


def _value(name: str, row: dict[str, Tensor]) -> Tensor:
    return row["log_hfc_lfc"].exp() if name == "hfc_lfc" else row[name]
