"""Tokens at every depth of a model while it runs, from hooks on its blocks alone, reduced to numbers on the way.

Nothing needs to be known of attention: what enters the first block and what each block gives is enough. Blocks that run
several times are several depths.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.trace.layout import first_tensor, own_word, seen_batch_first, telling
from oversmooth.trace.reducers.sites import SiteMetrics, SiteNumbers
from oversmooth.trace.watch import results_like

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
        cosines: False leaves absolute cosines out.
    """

    def __init__(self, *, ranks: int = 4, cosines: bool = True) -> None:
        self.numbers = SiteMetrics(absolute=cosines, ranks=ranks, exact=True)

    def add(self, depth: int, x: Tensor, mask: Tensor | None = None) -> None:
        """Reduce the tokens of one depth.

        Args:
            depth: 0 for what enters the first block.
            x: ``(batch, n, d)``: tokens.
            mask: ``(batch, n)``: valid tokens; None: all.
        """
        self.numbers.update(depth, x, mask)

    @property
    def tokens(self) -> list[int]:
        """Of each input, without padding."""
        return [int(count) for count in self._at(0).count]

    def by_input(self, depth: int) -> dict[str, Tensor]:
        """``(inputs,)`` per metric, in float64; without inputs that have fewer than two valid tokens."""
        found = self._at(depth)
        return {name: values[found.count[: len(values)] > 1] for name, values in found.tokens.items()}

    def means(self, names: Sequence[str]) -> dict[str, list[float]]:
        """By metric: one number per depth. HFC/LFC is the geometric mean over inputs. Inputs with fewer than two valid
        tokens are left out; NaN where none is left.

        Args:
            names: of metrics; those that were not measured are left out.
        """
        rows = [self.by_input(depth) for depth in range(len(self.numbers.rows))]
        row = {name: [columns[name].mean() for columns in rows] for name in (rows[0] if rows else ())}
        row["hfc_lfc"] = [mean.exp() for mean in row.get("log_hfc_lfc", [])]
        return {name: [float(mean) for mean in row[name]] for name in names if row.get(name)}

    def _at(self, depth: int) -> SiteNumbers:
        return self.numbers.finish()[depth]


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
        """HFC/LFC and cosines by depth, each the mean over inputs."""
        assert self.tokens is not None, "the first pass made it"
        depths = Depths(ranks=0)
        for depth, x in enumerate(self.tokens):
            depths.add(depth, x)
        return depths.means(("hfc_lfc", "cos", "abs_cos"))
