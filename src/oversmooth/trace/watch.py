"""A model watched while it runs: hooks and wrappers go on, listeners are called, and everything comes off again.

What the model computes is left alone, bit for bit; but torch's own encoder layers take a fast path only while nothing
looks inside them, so they run step by step here, which changes last bits.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from oversmooth.anatomy.calls import CACHES, USE_CACHE
from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import eagerly, random_states
from oversmooth.trace.attention import CaptureAttention, CapturedAttention
from oversmooth.trace.layout import (
    as_tokens,
    check_axes,
    declared_layout,
    first_tensor,
    layout_modules,
    received,
    results_like,
    seen_batch_first,
    with_stream,
)
from oversmooth.trace.plans import SampleBlock
from oversmooth.trace.valid import MasksRead, PassArguments, UnknownPaddingError


class Listener(Protocol):
    """Called for each block in the order things happen: ``call`` is how many blocks ran before, ``block`` the name of
    the one that runs, and tokens are ``(b, n, d)``.
    """

    def enter(self, call: int, block: str, x: Tensor, args: Any, kwargs: Any) -> None:
        """A block is about to run on x."""

    def part(self, call: int, block: str, name: str, x: Tensor, y: Tensor) -> None:
        """A module inside the block made y of x."""

    def attention(self, call: int, block: str, captured: CapturedAttention, x: Tensor | None, y: Tensor) -> None:
        """Attention ran and returned y; x is what entered it, where its value projection is no module. Where operators
        are not wanted, this is called for the first block alone.
        """

    def leave(self, call: int, block: str, y: Tensor, returned: Tensor) -> None:
        """The block returned y; ``returned`` is that array itself, which gradients can be taken of."""


class Watch:
    """Context manager that calls a listener while the model runs in this thread.

    Args:
        modules: every module of the model by name.
        blocks: the blocks to watch, by name, with their attention; None where it is not known.
        listener: what is called.
        parts: the modules inside a block to watch, by name.
        attention: whether to capture attention in every block, and not only the mask of the first.
        layouts: by name of a block or of a module inside one, whether it takes (batch, n, d), where that was seen.
        only: the one block to watch in this pass; None: all of them.
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        blocks: Mapping[str, AttentionLayer | None],
        listener: Listener,
        parts: Callable[[str], list[str]],
        *,
        attention: bool = True,
        layouts: dict[str, bool] | None = None,
        only: str | None = None,
    ) -> None:
        self.modules, self.blocks, self.listener, self.parts = modules, blocks, listener, parts
        self._watched = list(blocks) if only is None else [only]
        self.operators = attention
        self.wants_mask = True  # whether that of the first block's attention is still of interest
        self.argument_mask: Tensor | None = None  # (b, n): tokens of this pass that are not padding, by arguments
        self.misfit: UnknownPaddingError | None = None  # why an argument that may be a mask was not read
        self.layouts = {} if layouts is None else layouts
        self.calls = 0
        self._passed = PassArguments(modules[""], list(blocks))
        self._block: str | None = None
        self._thread: int | None = threading.get_ident()
        self._shape = torch.Size()
        self._other_outputs: list[Tensor] = []  # other arrays of the stream's shape that the previous block returned
        self._masks: MasksRead = {}
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        with ExitStack() as stack:  # undone at once if something fails half-way
            stack.enter_context(eagerly())
            stack.enter_context(without_fast_path())
            for index, module in enumerate(self._passed.modules):
                handle = module.register_forward_pre_hook(functools.partial(self._pass, index), with_kwargs=True)
                stack.callback(handle.remove)
            first = self._watched[0]
            for name in self._watched:
                layer = self.blocks[name]
                # First, so that the block's wrapper is outside where both are one module.
                if layer is not None and (self.operators or name == first):
                    wrapper = functools.partial(self._run_attention, layer)
                    stack.enter_context(replaced(self.modules[layer.name], wrapper))
                stack.enter_context(replaced(self.modules[name], functools.partial(self._run_block, name)))
                for part in self.parts(name):
                    hook = functools.partial(self._run_part, name, part)
                    stack.callback(self.modules[part].register_forward_hook(hook, with_kwargs=True).remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._block, self._other_outputs, self._masks = None, [], {}

    def _listening(self) -> bool:
        """Whether what runs is the listener's business: no pass of another thread, and no repetition."""
        return threading.get_ident() == self._thread

    # Hooks have a default for kwargs: a pass of another thread may call one before torch knows that it takes them.

    def _pass(self, index: int, _: nn.Module, args: Any, kwargs: Any = None) -> None:
        if self._listening():
            self._passed.receive(index, args, kwargs or {}, begins=not self._passed.new)

    def _run_block(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._listening() or self._block is not None:  # a block inside a block
            return original(*args, **kwargs)
        x, known = first_tensor(args, kwargs), self.blocks[name] is not None
        if known and any(value is array for value in (*args, *kwargs.values()) for array in self._other_outputs):
            raise InputError(
                f"{name} receives two arrays of tokens from the block before it, and neither alone is the stream; "
                "wrap the blocks so that they pass one on"
            )
        self._find_layout(name, original, x, args, kwargs)
        self._block, self._shape = name, x.shape
        try:
            with _own_arithmetic(x):
                tokens = self.tokens(name, name, x)
                if tokens.ndim != 3 or (x.ndim != 3 and not known):  # features of inputs, or one input?
                    raise InputError(
                        f"{name} receives an array of shape {tuple(x.shape)}; tokens must be (batch, n, d)"
                    )
                self._read_arguments(name, x, tokens)
                self.listener.enter(self.calls, name, tokens, args, kwargs)
            out = original(*args, **kwargs)
            y, *self._other_outputs = results_like(x, out, name)
            with _own_arithmetic(y):
                self.listener.leave(self.calls, name, self.tokens(name, name, y), y)
        finally:
            self._block = None
        self.calls += 1
        return out

    def _read_arguments(self, name: str, x: Tensor, tokens: Tensor) -> None:
        """At the first block of a pass: what the model was called with says which axis is the batch, and what pads."""
        if not self._passed.new:
            return
        self._passed.new = False
        block, known = self.modules[name], self.blocks[name] is not None
        if declared_layout(block) is None and not layout_modules(block):
            check_axes(name, self._passed.shapes, x.shape)
        self.argument_mask = self.misfit = None
        try:
            self.argument_mask = self._passed.mask(tokens, strict=known)
        except UnknownPaddingError as error:
            if not known:
                raise
            self.misfit = error  # attention's own mask decides

    def _run_attention(self, layer: AttentionLayer, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._listening() or self._block is None or not (self.operators or self.wants_mask):
            return original(*args, **kwargs)
        capture = CaptureAttention(layer.heads, self.argument_mask, self._masks)
        with capture:
            out = original(*args, **kwargs)
        if not self.operators:
            if not capture.captured:
                return out  # there is no mask to read: only what arguments say is known
            capture.captured = capture.captured[:1]
        if len(capture.captured) != 1:
            raise InputError(
                f"{layer.name} computed attention with {layer.heads} heads over its own tokens {len(capture.captured)} "
                "times, not once by scaled_dot_product_attention or softmax; give its number of heads (heads=), load "
                "the model with attn_implementation='sdpa' or 'eager', or leave spectra out (spectra=False)"
            )
        y = first_tensor((out,), {})
        with _own_arithmetic(y):
            reads = isinstance(self.modules[layer.name], nn.MultiheadAttention) or not layer.value_runs
            x = self.tokens(self._block, layer.name, first_tensor(args, kwargs)) if reads else None
            y = self.tokens(self._block, layer.name, y)
            self.listener.attention(self.calls, self._block, capture.captured[0], x, y)
        return out

    def _run_part(self, block: str, name: str, _: nn.Module, args: Any, kwargs: Any = None, out: Any = None) -> None:
        if not self._listening() or self._block != block:
            return
        x, y = first_tensor(args, kwargs, needed=False), first_tensor((out,), {}, needed=False)
        if x is not None and y is not None:
            with _own_arithmetic(y):
                self.listener.part(self.calls, block, name, self.tokens(block, name, x), self.tokens(block, name, y))

    def tokens(self, block: str, name: str, x: Tensor) -> Tensor:
        """``(batch, n, d)``: the input or output of the block that runs, or of a module inside it, by their names."""
        x = x.detach()
        if x.ndim == 2 and len(self._shape) == 3 and x.shape[0] == self._shape[0] * self._shape[1]:
            x = x.view(*self._shape[:2], -1)  # some blocks concatenate all texts for a while
        return as_tokens(x, self.batch_first(block, name, x))

    def batch_first(self, block: str, name: str, x: Tensor) -> bool:
        """Whether the first axis of such an array is the batch."""
        layer, stream = self.blocks[block], self.layouts.get(block, True)
        if layer is None:
            return stream
        attention = bool(getattr(self.modules[layer.name], "batch_first", stream))
        if stream == attention or name == layer.name:
            return attention
        # The block transposes for its attention: what runs inside may lie either way.
        if name not in self.layouts and x.shape[:2] in (self._shape[:2], self._shape[:2][::-1]):
            if self._shape[0] == self._shape[1]:
                return stream
            self.layouts[name] = stream if x.shape[:2] == self._shape[:2] else not stream
        return self.layouts.get(name, stream)

    def _find_layout(self, name: str, original: Callable[..., Any], x: Tensor, args: Any, kwargs: Any) -> None:
        """Find whether a block takes (batch, n, d). Where only a module inside says how its arrays lie, the block runs
        once more to show whether that receives the block's own axes.
        """
        block, layer = self.modules[name], self.blocks[name]
        inside = layout_modules(block) if layer is None else [self.modules[layer.name]]
        inside = [module for module in inside if hasattr(module, "batch_first")]
        if name in self.layouts or x.ndim != 3:
            return
        if (own := declared_layout(block)) is not None:
            self.layouts[name] = own
        if own is not None or not inside:
            return
        alike = (self.layouts[b] for b in self.blocks if b in self.layouts and type(self.modules[b]) is type(block))
        if (found := next(alike, None)) is None:
            self._thread, thread = None, self._thread
            try:
                with torch.no_grad(), random_states(), received(inside) as seen:
                    original(*_copies(args), **dict(zip(kwargs, _copies(kwargs.values()), strict=True)))
            finally:
                self._thread = thread
            shape, says = seen[0] if seen else (None, bool(inside[0].batch_first))
            found = seen_batch_first(name, x.shape, shape, says)
        self.layouts[name] = found


class BlockCalls:
    """The calls of blocks in a pass, counted; a block that runs inside another is part of its call."""

    def __init__(self, modules: dict[str, nn.Module], blocks: Iterable[str]) -> None:
        self.modules, self.blocks = modules, list(dict.fromkeys(blocks))
        self._next, self._inside = 0, False

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """While every call of a block goes through `_call`. Nothing else may replace forward functions inside."""
        with ExitStack() as stack:
            for name in self.blocks:
                stack.enter_context(replaced(self.modules[name], functools.partial(self._receive, name)))
            yield

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """While blocks run as they are."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _receive(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return original(*args, **kwargs)
        self._next += 1
        return self._call(self._next - 1, name, original, args, kwargs)

    def _call(self, number: int, name: str, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """What this call returns."""
        raise NotImplementedError


def run_again(modules: Mapping[str, nn.Module], block: SampleBlock, x: Tensor) -> Tensor:
    """The same call of a block with other tokens, as it takes and returns them, and without a cache that would remember
    them.
    """
    name, old = block.plan.block, first_tensor(block.args, block.kwargs)
    args = (None if hasattr(value, "get_seq_length") else with_stream(value, old, x) for value in block.args)
    kwargs = {key: None if key in CACHES else with_stream(value, old, x) for key, value in block.kwargs.items()}
    kwargs |= {USE_CACHE: False} if USE_CACHE in kwargs else {}
    return results_like(x, modules[name](*args, **kwargs), name)[0]


@contextmanager
def replaced(module: nn.Module, wrapper: Callable[..., Any]) -> Iterator[None]:
    """module.forward goes through wrapper(original, ...) for a while; what was there before comes back exactly."""
    own = module.__dict__.get("forward")
    original = module.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


@contextmanager
def _own_arithmetic(x: Tensor) -> Iterator[None]:
    """Our own arithmetic: no gradients, and full precision whatever the model's autocast says."""
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """torch's own layers step by step, and without the nested arrays that they make of padded batches."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _copies(values: Iterable[Any]) -> list[Any]:
    """For a block that writes to its input."""
    return [value.clone() if isinstance(value, Tensor) else value for value in values]
