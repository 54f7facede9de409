"""Refuses methods that average over all tokens where attention hides some of them from others.

What anatomy knows is refused before anything is changed. The rest is checked in the first pass, before attention runs:
once for each way in which it is called, and again for inputs longer than any before, of which a window hides more.
Masks that are passed as arguments are checked in every pass.
"""

from __future__ import annotations

import itertools
import operator
import sys
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from oversmooth.anatomy.calls import PADDING_HIDDEN, PADDING_SHOWN
from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.steering import hiding
from oversmooth.steering.passes import Passes, mask_of_attention

_NUMBERS = itertools.count()
_GUARDS: weakref.WeakValueDictionary[str, Guard] = weakref.WeakValueDictionary()


class Guard:
    """The check of one layer.

    Args:
        index: of the layer in the stack.
        layer: its attention.
        passes: of the steered model.
    """

    def __init__(self, index: int, layer: AttentionLayer, passes: Passes) -> None:
        self.index, self.layer, self.passes = index, layer, passes
        self.methods: list[str] = []
        """Names of those that average."""
        self.open: dict[Any, int] = {}
        """Ways of calling attention that hide nothing, each with the most tokens that it was tried with."""
        self.called = False
        """Whether attention is a module that is called, and not one that only holds projections."""
        self.module: nn.Module | None = None
        """Attention, once its hook is on."""
        self._make_known()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is a guard of its own."""
        self.__dict__.update(state)
        self._make_known()

    def _make_known(self) -> None:
        self.key = f"guard {next(_NUMBERS)}"  # a number would be taken for one that varies
        _GUARDS[self.key] = self

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A hook: attention is about to run."""
        running = self.passes.current()
        if running is not None and not running.told:  # the model around torch's attention may name its mask otherwise
            running.mask = mask_of_attention(module, kwargs)
        if torch.compiler.is_compiling():
            self._look_while_compiling(module, args, kwargs)
            return
        self.called = True
        self._look(module, self.layer.name, args, kwargs)

    def check(self, n: int) -> None:
        """Called before n tokens are averaged; where attention is not called as a module, its block is checked."""
        if n < 2:
            return
        if torch.compiler.is_compiling():
            if not _is_known(self.key, operator.index(n)):
                raise InputError(self._unclear("its attention is no module that is called"))
        elif not self.called:
            module, args, kwargs = self.passes.block() or (None, (), {})
            if module is None:
                raise InputError(self._unclear("it ran outside its block"))
            self._look(module, self.layer.block, args, kwargs)

    def _look(self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            x = hiding.stream(args, kwargs, self.layer.width)
        except hiding.UnclearError as error:
            raise InputError(self._unclear(str(error))) from None
        n = _tokens(module, x)
        if n < 2 or x.is_meta or isinstance(x, FakeTensor):  # these have shapes but no values
            return
        how = _how_called(module, args, kwargs)
        if x.is_cuda and torch.cuda.is_current_stream_capturing():  # no value can be read
            if self.open.get(how, 0) < n:
                raise InputError(self._unclear("it is being captured in a CUDA graph"))
            return
        running = self.passes.current()
        # Most models use one mask for all layers.
        known = None if running is None else running.plain_mask
        masks = [mask for mask in hiding.pair_masks(args, kwargs, x, n) if mask is not known]
        telling = any(hiding.tells_apart(mask) for mask in masks)
        if masks and not telling and running is not None:
            running.plain_mask = masks[-1]
        unknown = running is not None and running.mask is None and hiding.may_hide(args, kwargs, x, n)
        if not telling and not unknown and self.open.get(how, 0) >= n:
            return
        why = self.refusal(module, name, args, kwargs, None if running is None else running.mask)
        if why is not None:
            raise InputError(why)

    def _look_while_compiling(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check once, on the arrays that the code is compiled for: compiled code cannot check later masks."""
        running = self.passes.current()
        if running is not None and running.hides:
            raise InputError(self._hidden())
        # As a number: code for any length could not check what a window hides of longer inputs.
        if _is_open(self.key, _how_called(module, args, kwargs), operator.index(_length(module, args, kwargs))):
            return
        arrays: list[Any] = []
        form = _flat((args, kwargs, None if running is None else running.mask), arrays)
        why = _refusal_while_compiling(self.key, form, *arrays)
        if why is not None:
            raise InputError(why)

    def refusal(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], mask: Tensor | None
    ) -> str | None:
        """Why tokens cannot be averaged in this call of the module; None where they can.

        Args:
            module: attention, or its block.
            name: the module's.
            args, kwargs: of the call.
            mask: ``(batch, n)``: tokens that count; None: unknown.
        """
        hides = hiding.hides
        if "torch._dynamo" in sys.modules:
            hides = torch.compiler.disable(hides)  # called from between two compiled graphs it would be compiled, too
        try:
            hidden = hides(module, name, self.layer, args, kwargs, mask)
        except InputError as error:
            return str(error)
        except hiding.PaddingError:
            return self._padded()
        except Exception as error:
            return self._unclear(str(error) if isinstance(error, hiding.UnclearError) else repr(error))
        if hidden:
            return self._hidden()
        if hidden is not None:
            how, n = _how_called(module, args, kwargs), _tokens(module, hiding.stream(args, kwargs, self.layer.width))
            self.open[how] = max(n, self.open.get(how, 0))
        return None

    def _hidden(self) -> str:
        return (
            f"{' and '.join(self.methods)} averages over all tokens, and layer {self.index} ({self.layer.name}) hides "
            "some of them from others, as causal and windowed attention do; use NeuTRENO, ValueResidual or Laplacian, "
            "or leave such layers out"
        )

    def _padded(self) -> str:
        return (
            f"{' and '.join(self.methods)} averages over all tokens, and layer {self.index} ({self.layer.name}) hides "
            f"some from all others, as padding is, which no {PADDING_SHOWN} or {PADDING_HIDDEN} tells; name the mask "
            "so where the blocks are run, or use NeuTRENO, ValueResidual or Laplacian"
        )

    def _unclear(self, why: str) -> str:
        return (
            f"{' and '.join(self.methods)} averages over all tokens, and whether layer {self.index} "
            f"({self.layer.name}) hides some of them from others could not be found out "
            f"({' '.join(why.split())[:200]}); run one batch through the model as it is, before it is compiled or "
            "wrapped, or use NeuTRENO, ValueResidual or Laplacian"
        )


def _tokens(module: nn.Module, x: Tensor) -> int:
    return x.shape[-2] if getattr(module, "batch_first", True) else x.shape[0]


def _how_called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Switches, and which arrays are passed: a call with others may hide what this one does not."""
    switches = [_kind(getattr(module, name, None)) for name in ("is_causal", "causal")]
    return (*map(_kind, args), *((key, _kind(value)) for key, value in kwargs.items()), *switches)


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.ndim, value.is_floating_point()
    return value if value is None or isinstance(value, (bool, str)) else type(value)


def _flat(value: Any, arrays: list[Any]) -> Any:
    """Nested arguments as a list, and where each belongs; `_whole` undoes it."""
    if isinstance(value, (tuple, list)):
        return "tuple", tuple(_flat(one, arrays) for one in value)
    if isinstance(value, dict):
        return "dict", tuple((key, _flat(one, arrays)) for key, one in value.items())
    arrays.append(value)
    return "one", len(arrays) - 1


def _whole(form: Any, arrays: tuple[Any, ...]) -> Any:
    kind, what = form
    if kind == "one":
        return arrays[what]
    return tuple(_whole(one, arrays) for one in what) if kind == "tuple" else {k: _whole(v, arrays) for k, v in what}


def _length(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of tokens in the first array that may be the stream; the largest integer where there is none."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point():
            return _tokens(module, value)
    return sys.maxsize


def _is_open(key: str, how: Any, n: int) -> bool:
    return _GUARDS[key].open.get(how, 0) >= n


def _is_known(key: str, n: int) -> bool:
    guard = _GUARDS[key]
    return guard.called or any(tried >= n for tried in guard.open.values())


def _refusal_while_compiling(key: str, form: Any, *arrays: Any) -> str | None:
    guard = _GUARDS[key]
    assert guard.module is not None, "its hook called"
    guard.called = True
    args, kwargs, mask = _whole(form, arrays)
    return guard.refusal(guard.module, guard.layer.name, args, kwargs, mask)


# While code is compiled these run at once, on the arrays of the call that it is compiled for, and their results are
# constants in it. This is torch.compiler.assume_constant_result, without importing the compiler where it is not used.
# All that they are given is arrays and constants, a guard by its name: torch 2.11 takes nothing else.
for _function in (_is_open, _is_known, _refusal_while_compiling):
    vars(_function)["_dynamo_marked_constant"] = True
