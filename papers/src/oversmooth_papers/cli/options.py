"""Options of commands that are made from dataclasses: the fields say what each is for, so that nothing is copied."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Annotated, Any, Literal

import typer

from oversmooth_papers.engine.options import option_field


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """Those that are named, as typer takes them."""
    named = inspect.signature(function, eval_str=True).parameters.values()
    return [parameter for parameter in named if parameter.kind is not Parameter.VAR_KEYWORD]


def take(function: Callable[..., Any], parameters: Sequence[Parameter]) -> None:
    """Let a function that takes any keywords be read by typer as one with these parameters."""
    plain = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    function.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in plain}


def option_of(of: type, name: str, *, changes: bool = False, panel: str | None = None) -> Parameter:
    """A field of a dataclass as an option with its default; or one that changes it where it is given, whose default is
    only shown.
    """
    field, kind = option_field(of, name), typing.get_type_hints(of)[name]
    # Words that are not among the choices are refused by the dataclass itself, in its own words.
    kind = str if typing.get_origin(kind) is Literal else kind
    default, help = field.default, field.metadata["help"]
    annotation: Any = Annotated[kind, typer.Option(help=help)]
    if changes:
        shown = typer.Option(help=help, show_default=_written(name, default), rich_help_panel=panel)
        annotation, default = Annotated[kind | None, shown], None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _written(name: str, value: Any) -> str:
    """As a person writes it.

    >>> _written("lr", 1.25e-4), _written("share", 1.0), _written("output_bias", True), _written("variant", "plain")
    ('1.25e-4', '1', 'output-bias', 'plain')
    """
    if isinstance(value, bool):
        return ("" if value else "no-") + name.replace("_", "-")
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        digits, power = f"{value:e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:g}" if isinstance(value, float) else str(value)
