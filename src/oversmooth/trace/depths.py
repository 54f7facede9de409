"""Tokens at every depth of a model while it runs, from hooks on its blocks alone, reduced to numbers on the way.

Nothing needs to be known of attention: what enters the first block and what each block gives is enough. Blocks that run
several times are several depths.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.metrics.rank import ranks_of, singular_values
from oversmooth.metrics.moments import Summary, summary
from oversmooth.safety.errors import InputError
from oversmooth.trace.layout import own_word, seen_batch_first, telling
from oversmooth.trace.watch import first_tensor, results_like

_ROOM = {"cuda": 2**26}
"""Bytes of tokens that wait for others, by device; elsewhere none wait, as nothing is gained by it."""
_COUNTED = "counted"
"""The column that says which inputs are in the figures; where it is not, all are."""
_LOG = "log_hfc_lfc"
Seen = Callable[[int, Tensor], None]
"""Gets a depth, 0 for what enters the first block, and tokens ``(batch, n, d)``."""
SeenStream = Callable[[int, Tensor, bool], None]
"""Gets a depth, the array as blocks pass it on, and whether its first axis is the batch."""


@contextmanager
def every_depth(blocks: Sequence[tuple[str, nn.Module]], seen: Seen) -> Iterator[list[str]]:
    """Calls ``seen`` with the tokens of every depth while the model runs; gives the names of the blocks that ran.

    Args:
        blocks: by name, in any order; each once.
        seen: what is called, in the order in which blocks run. What it gets may be the model's own array.
    """
    with every_stream(blocks, lambda depth, x, first: seen(depth, x if first else x.transpose(0, 1))) as ran:
        yield ran


@contextmanager
def every_stream(blocks: Sequence[tuple[str, nn.Module]], seen: SeenStream) -> Iterator[list[str]]:
    """As `every_depth`, with arrays as blocks pass them on, which gradients can be taken of.

    Args:
        blocks: by name, in any order; each once.
        seen: what is called, in the order in which blocks run.
    """
    ran: list[str] = []
    inside: list[str] = []
    held: list[Tensor] = []
    """What enters the first block, where only its insides show which axis is the batch."""
    inner: list[tuple[torch.Size, bool]] = []
    """What the first module inside that says how its arrays lie got, and what it says."""
    layout: list[bool] = []
    # Hooks have defaults: a pass of another thread may call one before torch knows that it takes keywords as well, or
    # when it has forgotten it.
    own_thread = threading.get_ident()
    tell = {block: telling(block) for _, block in blocks}

    def layout_of(module: nn.Module) -> bool | None:
        own = own_word(module)
        return True if own is None and not tell[module] else own

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any = None) -> None:
            if threading.get_ident() != own_thread:  # somebody else's pass
                return
            if not inside and not ran:
                x = _tokens(name, first_tensor(args, kwargs))
                first = layout_of(module)
                if first is None:
                    held.append(x.detach().clone())
                else:
                    seen(0, x, first)
            inside.append(name)

        return hook

    def within(module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if threading.get_ident() != own_thread:
            return
        x = first_tensor(args, kwargs, needed=False)
        if not inner and x is not None:
            inner.append((x.shape, bool(module.batch_first)))

    def leave(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any = None, out: Any = None) -> None:
            if threading.get_ident() != own_thread:
                return
            inside.pop()
            if inside:  # a block inside a block
                return
            x = first_tensor(args, kwargs)
            first = layout_of(module)
            if first is None:
                if not layout:
                    shape, says = inner[0] if inner else (None, True)
                    layout.append(seen_batch_first(name, x.shape, shape, says))
                first = layout[0]
            if held:
                seen(0, held.pop(), first)
            ran.append(name)
            seen(len(ran), _tokens(name, results_like(x, out, name)[0]), first)

        return hook

    with ExitStack() as stack:
        # torch's encoder would make nested arrays of padded batches, which hold no padding to leave out.
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        for name, block in blocks:
            for handle in (
                block.register_forward_pre_hook(enter(name), with_kwargs=True),
                block.register_forward_hook(leave(name), with_kwargs=True),
                *(module.register_forward_pre_hook(within, with_kwargs=True) for module in tell[block]),
            ):
                stack.callback(handle.remove)
        yield ran


def _tokens(name: str, x: Tensor) -> Tensor:
    if x.ndim != 3:
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
        self.counted: list[list[Tensor | None]] = []
        """By depth: ``(batch,)`` per pass, which inputs are in the figures; None: all."""
        self.lengths: list[Tensor] = []
        """Tokens of each input, ``(batch,)`` per pass, where they are counted."""
        self.waiting: list[_Sample] = []
        self.begun: dict[int, int] = {}
        """By depth: inputs that were added."""

    @torch.no_grad()
    def add(self, depth: int, x: Tensor, mask: Tensor | None = None) -> None:
        """Reduce the tokens of one depth, now or with others.

        Args:
            depth: 0 for what enters the first block.
            x: ``(batch, n, d)``: tokens.
            mask: ``(batch, n)``: tokens that count; None: all.
        """
        x, mask = x.detach(), None if mask is None else mask.expand(x.shape[:2])
        if depth == 0:
            self.lengths.append(torch.full((len(x),), x.shape[1]) if mask is None else mask.sum(-1))
        before = self.begun.get(depth, 0)
        self.begun[depth] = before + len(x)
        room = _ROOM.get(x.device.type, 0) - sum(sample.tokens.nbytes for sample in self.waiting)
        if waits := x.nbytes < room:  # a clone: blocks may write into what they passed on
            x = x.clone()
        self.waiting.append(_Sample(depth, x, mask, max(0, self.ranks - before)))
        if not waits:
            self._reduce()

    @property
    def tokens(self) -> list[int]:
        """Of each input, without padding."""
        return [length for part in self.lengths for length in part.tolist()]

    @torch.no_grad()
    def _reduce(self) -> None:
        """All that waits, arrays of one shape together."""
        waiting, self.waiting = self.waiting, []
        samples = [(sample.tokens, sample.mask) for sample in waiting]
        for sample, row in zip(waiting, together(samples, self._sums), strict=True):
            self._append(sample.depth, row)
        ranked = [sample for sample in waiting if sample.ranked]
        for sample, row in zip(ranked, ranks_together([sample.first for sample in ranked]), strict=True):
            self._append(sample.depth, row)

    def _sums(self, x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        row = columns_of(summary(x, mask=mask, cosines=self.cosines), self.cosines)
        return row if mask is None and x.shape[-2] > 1 else {**row, _COUNTED: has_pairs(x, mask)}

    def _append(self, depth: int, row: dict[str, Tensor]) -> None:
        while len(self.columns) <= depth:
            self.columns.append({})
            self.counted.append([])
        if _LOG in row:  # ranks come after it, of the same inputs
            self.counted[depth].append(row.pop(_COUNTED, None))
        for name, value in row.items():
            self.columns[depth].setdefault(name, []).append(value)

    def by_input(self, depth: int) -> dict[str, Tensor]:
        """``(inputs,)`` per metric, in float64; without inputs that have fewer than two tokens that count."""
        self._reduce()
        counted = self._counted(depth).cpu()
        columns = {name: torch.cat([v.double() for v in parts]).cpu() for name, parts in self.columns[depth].items()}
        return {name: values[counted[: len(values)]] for name, values in columns.items()}

    def _counted(self, depth: int) -> Tensor:
        """``(inputs,)``: whether an input is in the figures of this depth."""
        passes = zip(self.counted[depth], self.columns[depth][_LOG], strict=True)
        return torch.cat([torch.ones_like(x, dtype=torch.bool) if own is None else own for own, x in passes])

    def means(self, names: Sequence[str]) -> dict[str, list[float]]:
        """By metric: one number per depth. HFC/LFC is the geometric mean over inputs. Inputs with fewer than two tokens
        that count are left out; NaN where none is left.

        Args:
            names: of metrics; those that were not measured are left out.
        """
        self._reduce()
        known = [name for name in names if self.columns and _source(name) in self.columns[0]]
        if not known:
            return {}
        counted = None
        if any(own is not None for passes in self.counted for own in passes):
            counted = [self._counted(depth) for depth in range(len(self.columns))]
        # One array, so that a GPU is waited for once.
        table = torch.stack([self._mean(name, counted) for name in known])
        return dict(zip(known, table.tolist(), strict=True))

    def _mean(self, name: str, counted: list[Tensor] | None) -> Tensor:
        """``(depths,)``.

        Args:
            name: of a metric.
            counted: by depth, ``(inputs,)``: which inputs count; None: all.
        """
        parts = [row[_source(name)] for row in self.columns]
        depths = [torch.cat(part) if len(part) > 1 else part[0] for part in parts]
        own = None if counted is None else [c[: len(values)] for c, values in zip(counted, depths, strict=True)]
        if len({len(values) for values in depths}) == 1:
            stacked = torch.stack(depths).double()
            means = stacked.mean(1) if own is None else mean_of_counted(stacked, torch.stack(own))
        elif own is not None:
            pairs = zip(depths, own, strict=True)
            means = torch.stack([mean_of_counted(values.double(), counts) for values, counts in pairs])
        else:  # a model that cuts its inputs into windows on the way
            means = torch.stack([values.double().mean() for values in depths])
        return means.exp() if name == "hfc_lfc" else means


@dataclass(frozen=True)
class _Sample:
    """Tokens of a depth, ``(batch, n, d)``, and which of them count; of the first so many inputs ranks are asked."""

    depth: int
    tokens: Tensor
    mask: Tensor | None
    ranked: int

    @property
    def first(self) -> tuple[Tensor, Tensor | None]:
        return self.tokens[: self.ranked], None if self.mask is None else self.mask[: self.ranked]


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


def together(
    samples: Sequence[tuple[Tensor, Tensor | None]], reduce: Callable[[Tensor, Tensor | None], dict[str, Tensor]]
) -> list[dict[str, Tensor]]:
    """What a function gives for each sample: of arrays of one shape in one call, which on a GPU takes hardly longer
    than one of them.

    Args:
        samples: tokens ``(batch, n, d)``, and which of them count.
        reduce: takes both with one more axis in front, and gives arrays that begin with it.
    """
    alike: dict[Any, list[int]] = {}
    for index, (x, mask) in enumerate(samples):
        alike.setdefault((x.shape, x.dtype, x.device, mask is None), []).append(index)
    found: dict[int, dict[str, Tensor]] = {}
    for indices in alike.values():
        masks = [mask for mask in (samples[index][1] for index in indices) if mask is not None]
        x = _stacked([samples[index][0] for index in indices])
        with torch.autocast(x.device.type, enabled=False):
            reduced = reduce(x, _stacked(masks) if masks else None)
        rows = {name: values.unbind() for name, values in reduced.items()}
        found |= {index: {name: row[place] for name, row in rows.items()} for place, index in enumerate(indices)}
    return [found[index] for index in range(len(samples))]


def has_pairs(x: Tensor, mask: Tensor | None) -> Tensor:
    """``(...)``: whether two tokens or more of an input count; with fewer nothing can be said of how alike they are.

    Args:
        x: ``(..., n, d)``: tokens.
        mask: ``(..., n)``: tokens that count; None: all.
    """
    if mask is None:
        return torch.full(x.shape[:-2], x.shape[-2] > 1, device=x.device)
    return (mask != 0).sum(-1) > 1


def mean_of_counted(values: Tensor, counted: Tensor) -> Tensor:
    """The mean over those that count, ``(..., inputs), (..., inputs) -> (...)``; NaN where none does."""
    return torch.where(counted, values, 0.0).sum(-1) / counted.sum(-1)


def ranks_together(samples: Sequence[tuple[Tensor, Tensor | None]]) -> list[dict[str, Tensor]]:
    """The four metrics of rank of each sample, ``(batch,)`` each; see `together`."""
    return together(samples, lambda x, mask: ranks_of(singular_values(x, mask=mask)))


def _stacked(arrays: Sequence[Tensor]) -> Tensor:
    """One alone is not copied."""
    return arrays[0][None] if len(arrays) == 1 else torch.stack(list(arrays))


def columns_of(measured: Summary, cosines: bool = True) -> dict[str, Tensor]:
    """The metrics of a summary by name, ``(batch,)`` each."""
    row = {"log_hfc": measured.log_hfc, "log_lfc": measured.log_lfc, "log_hfc_lfc": measured.log_hfc_lfc}
    return {**row, "cos": measured.cos, "abs_cos": measured.abs_cos} if cosines else row


def _source(name: str) -> str:
    return "log_hfc_lfc" if name == "hfc_lfc" else name
