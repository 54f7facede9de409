"""Checks of arguments: each returns its argument, or raises `InputError` with its name, its value and the remedy.

They read only types and shapes: nothing is copied, and no device synchronises.
"""

from __future__ import annotations

import math
import numbers as abstract
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import check_fits

_SEVERAL = ("tokens", "queries", "keys", "inputs", "layers")  # names that take a plural verb
_PLURAL = {"is": "are", "has": "have", "it": "them"}
_WORTH_ASKING = 1 << 27  # entries from which on free memory is checked, which reads files: half a GiB in float32
_LONGEST_NAME = 255  # bytes, as file systems have it
_MOST_SHOWN = 60
_LARGEST = sys.float_info.max
T = TypeVar("T")


def tensor(value: Any, what: str, shape: str, *, least: int = 2, floating: bool = True) -> Tensor:
    """A dense tensor, from a tensor, a numpy array, a number or nested lists of numbers.

    shape: the remedy, in words. least: minimum number of dimensions. floating: refuse integers.
    """
    x = value if isinstance(value, Tensor) else _made_tensor(value, what, shape)
    if not torch.compiler.is_compiling():  # compiled tensors are strided and in memory
        _check_holds_numbers(x, what)
    if x.is_complex():
        raise InputError(f"{what} {_agree(what, 'has')} dtype {x.dtype}; give real numbers, such as the real part")
    if x.ndim < least:
        raise InputError(f"{what} {described(x, what)}; give {shape}")
    if floating and not x.is_floating_point():
        has, it = _agree(what, "has"), _agree(what, "it")
        raise InputError(f"{what} {has} dtype {x.dtype}; convert {it} to a floating type first")
    return x


def numbers(value: Any, what: str, remedy: str, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number or an array, in this precision. remedy: in words."""
    shape = remedy.removeprefix("give ")
    if not isinstance(value, Tensor) and type(value).__module__ != "numpy":  # no digit is lost on the way
        return _made_tensor(value, what, shape, dtype).to(device)
    return tensor(value, what, shape, least=0, floating=False).to(device, dtype)


def mask(value: Any, device: torch.device) -> Tensor:
    """Booleans, True for valid tokens."""
    wanted = "booleans, True for valid tokens"
    given = tensor(value, "mask", wanted, least=0, floating=False)
    if given.dtype != torch.bool:
        raise InputError(f"mask has dtype {given.dtype}; give {wanted}")
    return given.to(device)


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """The shape that arrays of these shapes broadcast to; RuntimeError where they do not."""
    # torch.broadcast_shapes imports sympy, which takes longer than a small diagnosis.
    return torch.broadcast_tensors(*(torch.empty(()).expand(tuple(shape)) for shape in shapes))[0].shape


def check_broadcast(**shapes: Sequence[int]) -> None:
    """Refuse arrays, by their names, whose dimensions do not broadcast."""
    if torch.compiler.is_compiling():
        return
    try:
        broadcast(*shapes.values())
    except RuntimeError:
        leading = [f"{tuple(shape)} of {name}" for name, shape in shapes.items() if len(shape)]
        raise InputError(
            f"the leading dimensions {' and '.join(leading)} do not broadcast; give equally many arrays of each, or one"
        ) from None


def number(
    value: Any, what: str, remedy: str = "give a finite number", *, least: float = -math.inf, most: float = math.inf
) -> float:
    """A finite number within these bounds, of Python, numpy or torch."""
    plain = _number(value, what, remedy)
    # Python's integers may exceed any float.
    if not (-_LARGEST <= plain <= _LARGEST and least <= plain <= most):
        raise InputError(f"{what} is {shown(value)}; {remedy}")
    return plain if abs(plain) < 2**63 else float(plain)  # torch takes no larger whole numbers


def several(value: Any, what: str, remedy: str) -> tuple[float, ...]:
    """A sequence of finite numbers, as floats."""
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        raise InputError(f"{what} {'are' if what.endswith('s') else 'is'} {shown(value)}; {remedy}")
    return tuple(float(number(one, f"one of {what}", remedy)) for one in value)


def fraction(value: Any, what: str) -> float:
    """A number strictly between 0 and 1."""
    plain = number(value, what, remedy := "give a number between 0 and 1")
    if not 0 < plain < 1:
        raise InputError(f"{what} is {shown(value)}; {remedy}")
    return plain


def whole(value: Any, what: str, *, least: int = 0, most: int | None = None, remedy: str = "") -> int:
    """A whole number within these bounds."""
    bounds = f"{least:,} or more" if most is None else f"{least} to {most:,}"
    remedy = remedy or f"give a whole number, {bounds}"
    plain = _number(value, what, remedy)
    if not isinstance(plain, int) or plain < least or (most is not None and plain > most):
        raise InputError(f"{what} is {shown(value)}; {remedy}")
    return plain


def seed(value: Any) -> int:
    """A seed of torch's generators."""
    remedy = "give a whole number from 0 to 2^63 − 1"
    return whole(value, "seed", least=-(2**63), most=2**64 - 1, remedy=remedy)  # torch's bounds


def flag(value: Any, what: str) -> bool:
    """A boolean, or 0 or 1."""
    plain = _plain(value)
    if not isinstance(plain, int) or plain not in (0, 1):
        raise InputError(f"{what} is {shown(value)}; give True or False")
    return bool(plain)


def choice(value: T, what: str, choices: tuple[str, ...]) -> T:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        words = [*map(repr, choices)]
        raise InputError(f"{what} is {shown(value)}; choose {', '.join(words[:-1])} or {words[-1]}")
    return value


def path(value: Any, what: str = "the path", remedy: str = "give a path as text") -> Path:
    """A valid path, whether or not it exists."""
    if isinstance(value, bytes) or not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{what} is {kind(value)}; {remedy}")
    try:
        named = Path(value)
        fits = "\0" not in str(value) and all(len(os.fsencode(part)) <= _LONGEST_NAME for part in named.parts)
    except (TypeError, ValueError):  # of bytes, or a letter that no file system has
        fits = False
    if not fits or not str(value):
        raise InputError(f"{what} is {shown(str(value))}, which is not a valid file name; {remedy}")
    return named


def kind(value: Any) -> str:
    """The kind of a value, in words.

    >>> kind(None), kind("x"), kind(3), kind([]), kind(len), kind(object())
    ('None', 'text', 'a number', 'a list', 'a function', 'an object')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if _is_number(value):
        return "a number"
    if callable(value) and hasattr(value, "__name__"):
        return "a function"
    words = {str: "text", bytes: "bytes", bool: "true or false"}
    name = type(value).__name__
    return words.get(type(value), f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}")


def shown(value: Any) -> str:
    """A value for a sentence, shortened if necessary."""
    if isinstance(value, Tensor) or hasattr(value, "shape"):
        size = tuple(getattr(value, "shape", ()))
        return f"an array of shape {size}" if size else f"{_plain(value)}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {int(value.bit_length() * math.log10(2)) + 1:,} digits"
    if isinstance(value, (list, tuple, dict, set)) and len(value) > 8:
        return f"{kind(value)} of {len(value):,} entries"
    text = repr(value)
    if " at 0x" in text:
        return kind(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]}…{text[-_MOST_SHOWN // 4 :]}"


def described(x: Tensor, what: str = "it") -> str:
    """The shape of a tensor, for a sentence after its name."""
    return f"{_agree(what, 'has')} shape {tuple(x.shape)}" if x.ndim else f"{_agree(what, 'is')} a single number"


def _made_tensor(value: Any, what: str, shape: str, dtype: torch.dtype | None = None) -> Tensor:
    wanted = f"a tensor {shape}" if shape.startswith("(") else shape
    is_array = type(value).__module__ == "numpy"
    if not (is_array or isinstance(value, (list, tuple, bool)) or _is_number(value)):
        raise InputError(f"{what} {_agree(what, 'is')} {kind(value)}; give {wanted}")
    try:
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        is_kind = f"{_agree(what, 'is')} {kind(value)}"
        raise InputError(f"{what} {is_kind} that is not an array of numbers; give {wanted}") from error


def _check_holds_numbers(x: Tensor, what: str) -> None:
    """Refuse tensors without dense numbers in memory."""
    kinds = {"nested": x.is_nested, "sparse": x.layout is not torch.strided, "quantized": x.is_quantized}
    if why := next((name for name, found in kinds.items() if found), ""):
        raise InputError(f"{what} {_agree(what, 'is')} {why}; give a dense tensor of floating numbers")
    if x.device.type == "meta":
        raise InputError(f"{what} {_agree(what, 'is')} on the meta device, without numbers; load the weights")
    if x.is_floating_point() and x.element_size() < 2:  # float8 can be stored but not computed with
        raise InputError(f"{what} {_agree(what, 'has')} dtype {x.dtype}; convert {_agree(what, 'it')} to float32 first")
    if x.numel() > _WORTH_ASKING and x.device.type == "cpu":
        check_fits(4 * x.numel(), f"a copy in float32 of {what}, {tuple(x.shape)},", "give fewer at a time")


def _number(value: Any, what: str, remedy: str) -> Any:
    """A Python int or float, not a boolean."""
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        raise InputError(f"{what} is {shown(value)}; {remedy}")
    return plain


def _is_number(value: Any) -> bool:
    return isinstance(value, abstract.Number) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """A numpy or torch number as a Python number; anything else unchanged."""
    if isinstance(value, (int, float)):
        return value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        if isinstance(value, Tensor):
            _check_holds_numbers(value, "a number")
        return value.item()
    return value


def _agree(what: str, word: str) -> str:
    """The singular or plural form of a word, to agree with a name."""
    return _PLURAL[word] if what in _SEVERAL else word
