"""A model watched while it runs: hooks and wrappers go on, listeners are called, and everything comes off again.

What the model computes is left alone, bit for bit. torch's own encoder layers take a fast path only while nothing
looks inside them, so they run as they are first, and once more, watched, from the same input.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from oversmooth.anatomy.calls import PADDING_HIDDEN
from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.trace.attention import CaptureAttention, CapturedAttention
from oversmooth.trace.layout import attention_batch_first, first_tensor, own_word, seen_batch_first
from oversmooth.trace.valid import KnownMasks


class Listener(Protocol):
    """Called for each block in the order things happen.

    In every method ``call`` is how many blocks ran before, ``layer`` the block's attention, and tokens are
    ``(b, n, d)``.
    """

    def enter(self, call: int, layer: AttentionLayer, x: Tensor, args: Any, kwargs: Any) -> None:
        """A block is about to run on x."""
        ...

    def part(self, call: int, layer: AttentionLayer, name: str, x: Tensor, y: Tensor) -> None:
        """A module inside the block ran: x is its input, y its output."""
        ...

    def attention(
        self, call: int, layer: AttentionLayer, caught: CapturedAttention, x: Tensor | None, y: Tensor
    ) -> None:
        """Attention ran. Where it is not watched, this is called for the first layer alone, without an operator.

        Args:
            call: how many blocks ran before.
            layer: the block's attention.
            caught: what it computed.
            x: ``(b, n, d)``: the input of attention whose value projection is not a module; else None.
            y: ``(b, n, d)``: what it returned.
        """
        ...

    def leave(self, call: int, layer: AttentionLayer, y: Tensor) -> None:
        """The block returned y."""
        ...


class Watch:
    """Context manager that calls a listener while the model runs.

    Args:
        modules: every module of the model by name.
        layers: the attention of the blocks to watch.
        listener: what is called.
        parts: the modules inside a block to watch, by name.
        attention: whether to catch attention in every layer.
        mask: ``(b, n)``: tokens of the next batch that are not padding.
        layouts: by name of a block or of a module inside one, whether it takes (batch, n, d), where that was seen.
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        layers: list[AttentionLayer],
        listener: Listener,
        parts: Callable[[AttentionLayer], list[str]],
        *,
        attention: bool = True,
        mask: Tensor | None = None,
        layouts: dict[str, bool] | None = None,
    ) -> None:
        self.modules, self.layers, self.listener, self.parts = modules, layers, listener, parts
        self.catches = attention
        self.mask = mask
        """``(b, n)``: tokens of the next batch that are not padding, from an argument of the model."""
        self.layouts = {} if layouts is None else layouts
        self.calls = 0
        self._block: AttentionLayer | None = None
        self._shape = torch.Size()
        self._beside: list[Tensor] = []
        """Other arrays of the stream's shape that the previous block returned."""
        self._known: KnownMasks = {}
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        with ExitStack() as stack:  # undone at once if something fails half-way
            # Compiled code would not call what is put on here; the module inside runs instead. Unless dynamo is loaded
            # nothing is compiled, and importing it takes seconds.
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            for layer in self.layers:
                block, attention = self.modules[layer.block], self.modules[layer.name]
                # First, so that the block's wrapper is outside where both are one module.
                if self.catches or layer is self.layers[0]:
                    stack.enter_context(_replaced(attention, functools.partial(self._run_attention, layer)))
                stack.enter_context(_replaced(block, functools.partial(self._run_block, layer)))
                if not _has_fast_path(block):
                    self._listen(stack, layer)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._block, self._beside, self._known = None, [], {}

    def _listen(self, stack: ExitStack, layer: AttentionLayer) -> None:
        for name in self.parts(layer):
            hook = functools.partial(self._hear_part, layer, name)
            handle = self.modules[name].register_forward_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)

    def _run_block(self, layer: AttentionLayer, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._block is not None:  # a block inside a block
            return original(*args, **kwargs)
        module = self.modules[layer.block]
        if not _has_fast_path(module):
            return self._watched_block(layer, original, args, kwargs)
        out = original(*args, **kwargs)
        with ExitStack() as stack:
            self._listen(stack, layer)
            stack.enter_context(_quietly())
            args, kwargs = _unnested(args, kwargs)
            again = self._watched_block(layer, original, args, kwargs)
        _check_same(layer.block, out, again)
        return out

    def _watched_block(self, layer: AttentionLayer, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        x = first_tensor(args, kwargs)
        if any(value is other for value in (*args, *kwargs.values()) for other in self._beside):
            raise InputError(
                f"{layer.block} gets two arrays of tokens from the block before it, and neither alone is the stream; "
                "wrap the blocks so that they pass one on"
            )
        self._find_layout(layer, original, x, args, kwargs)
        self._block, self._shape = layer, x.shape
        try:
            with _apart(x):
                self.listener.enter(self.calls, layer, self.tokens(layer, layer.block, x), args, kwargs)
            out = original(*args, **kwargs)
            y, *self._beside = results_like(x, out, layer.block)
            with _apart(y):
                self.listener.leave(self.calls, layer, self.tokens(layer, layer.block, y))
        finally:
            self._block = None
        self.calls += 1
        return out

    def _run_attention(self, layer: AttentionLayer, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._block is None:  # the fast path itself, or not one of our blocks
            return original(*args, **kwargs)
        capture = CaptureAttention(layer.heads, self.mask, operators=self.catches, known=self._known)
        own = isinstance(self.modules[layer.name], nn.MultiheadAttention)
        fast = own and not self.modules[layer.name].training and not _has_fast_path(self.modules[layer.block])
        if fast:
            out = original(*args, **kwargs)
            with _quietly(), capture:
                _check_same(layer.name, out, original(*args, **kwargs))
        else:
            with capture:
                out = original(*args, **kwargs)
        if not self.catches:
            if not capture.captured:
                return out  # there is no mask to read: only what was given by name is known
            capture.captured = capture.captured[:1]
        if len(capture.captured) != 1:
            raise InputError(
                f"{layer.name} computed attention over its own tokens {len(capture.captured)} times where one call of "
                "scaled_dot_product_attention or softmax was looked for; load the model with "
                "attn_implementation='sdpa' or 'eager', or leave spectra out (spectra=False)"
            )
        y = first_tensor((out,), {})
        with _apart(y):
            reads = own or not layer.value_runs
            x = self.tokens(layer, layer.name, first_tensor(args, kwargs)) if reads else None
            self.listener.attention(self.calls, layer, capture.captured[0], x, self.tokens(layer, layer.name, y))
        return out

    def _hear_part(self, layer: AttentionLayer, name: str, _: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        if self._block is not layer and (self._block is None or self._block.block != layer.block):
            return
        x, y = first_tensor(args, kwargs, needed=False), first_tensor((out,), {}, needed=False)
        if x is not None and y is not None:
            with _apart(y):
                x, y = self.tokens(layer, name, x), self.tokens(layer, name, y)
                self.listener.part(self.calls, self._block, name, x, y)

    def tokens(self, layer: AttentionLayer, name: str, x: Tensor) -> Tensor:
        """As ``(batch, n, d)``.

        Args:
            layer: of the block that runs.
            name: of the block, or of the module inside it, whose input or output x is.
            x: the array.
        """
        x = x.detach()
        if x.ndim == 2 and len(self._shape) == 3 and x.shape[0] == self._shape[0] * self._shape[1]:
            x = x.view(*self._shape[:2], -1)  # some blocks concatenate all texts for a while
        return as_tokens(x, self._layout(layer, name, x))

    def _layout(self, layer: AttentionLayer, name: str, x: Tensor) -> bool:
        """Whether the first axis of a module's input or output is the batch."""
        attention = self.modules[layer.name]
        stream = self.layouts.get(layer.block)
        if stream is None or name == layer.name:
            return attention_batch_first(attention, self.modules[layer.block])
        if name not in self.layouts and x.shape[:2] in (self._shape[:2], self._shape[:2][::-1]):
            alike = x.shape[:2] == self._shape[:2]
            if self._shape[0] == self._shape[1]:
                return stream
            self.layouts[name] = stream if alike else not stream
        return self.layouts.get(name, stream)

    def _find_layout(
        self, layer: AttentionLayer, original: Callable[..., Any], x: Tensor, args: Any, kwargs: Any
    ) -> None:
        """Where only the attention inside says how its arrays lie, the block runs once more to show whether it is given
        the block's own axes.
        """
        block, attention = self.modules[layer.block], self.modules[layer.name]
        if layer.block in self.layouts or x.ndim != 3 or block is attention or not hasattr(attention, "batch_first"):
            return
        if (own := own_word(block)) is not None:
            if own != attention.batch_first:
                self.layouts[layer.block] = own
            return
        for other in self.layers:
            if other.block in self.layouts and type(self.modules[other.block]) is type(block):
                self.layouts[layer.block] = self.layouts[other.block]
                return
        shapes: list[torch.Size] = []

        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            shapes.append(first_tensor(args, kwargs).shape)

        handle = attention.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            with _quietly():
                original(*_copies(args), **dict(zip(kwargs, _copies(kwargs.values()), strict=True)))
        finally:
            handle.remove()
        inner = shapes[0] if shapes else None
        self.layouts[layer.block] = seen_batch_first(layer.block, x.shape, inner, bool(attention.batch_first))


def as_tokens(x: Tensor, batch_first: bool) -> Tensor:
    """As ``(batch, n, d)``.

    Args:
        x: an array as a block passes it on, or that of a single input.
        batch_first: whether its first axis is the batch.
    """
    return x[None] if x.ndim == 2 else x if batch_first else x.transpose(0, 1)


def _copies(values: Iterable[Any]) -> list[Any]:
    """For a block that writes to what it gets."""
    return [value.clone() if isinstance(value, Tensor) else value for value in values]


def batch_first(attention: nn.Module, x: Tensor) -> Tensor:
    """As ``(batch, n, d)``: torch's own layers take (n, batch, d) by default, and single arrays."""
    return as_tokens(x, bool(getattr(attention, "batch_first", True)))


def results_like(x: Tensor, out: Any, block: str) -> list[Tensor]:
    """The stream among the outputs of a block: the first tensor of x's shape, and the others of that shape.

    Some blocks give attention weights as well, and first.

    Args:
        x: what the block got.
        out: what it returned.
        block: its name, for the error.

    Raises:
        InputError: nothing has that shape.
    """
    parts = out if isinstance(out, (tuple, list)) else out.values() if isinstance(out, Mapping) else [out]
    alike = [p for p in parts if isinstance(p, Tensor) and p.is_floating_point() and p.shape == x.shape]
    if alike:
        return alike
    raise InputError(
        f"{block} takes tokens of shape {tuple(x.shape)} and returns nothing of that shape; blocks must pass tokens on"
    )


@contextmanager
def _replaced(module: nn.Module, wrapper: Callable[..., Any]) -> Iterator[None]:
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
def _apart(x: Tensor) -> Iterator[None]:
    """Our own arithmetic: no gradients, and full precision whatever the model's autocast says."""
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        yield


@contextmanager
def _quietly() -> Iterator[None]:
    """A second run that leaves no trace, step by step: no gradients, no fast path, generators as before."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _has_fast_path(block: nn.Module) -> bool:
    return isinstance(block, nn.TransformerEncoderLayer) and not block.training


def _unnested(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Nested tensors, which torch's encoder makes of padded batches, as padded ones with their mask."""
    if not args or not isinstance(args[0], Tensor) or not args[0].is_nested:
        return args, kwargs
    lengths = torch.tensor([len(part) for part in args[0].unbind()], device=args[0].device)
    x = torch.nested.to_padded_tensor(args[0], 0.0)
    hidden = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    return (x, *args[1:]), {**kwargs, PADDING_HIDDEN: hidden}


def _check_same(name: str, out: Any, again: Any) -> None:
    y, z = first_tensor((out,), {}), first_tensor((again,), {})
    if y.is_nested:
        y = torch.nested.to_padded_tensor(y, 0.0)
        z = torch.where((y != 0).any(-1, keepdim=True), z, 0.0)
    if y.shape != z.shape:
        return
    seen = torch.isfinite(y)
    error = (y - z)[seen].float().norm() / y[seen].float().norm().clamp(min=1e-12)
    if error > (1e-3 if y.dtype in (torch.float32, torch.float64) else 5e-2):
        raise InputError(f"{name} returned another result ({error:.2g} off) while traced; it cannot be traced")
