"""Help at any width: options in groups, each with the name of its value; types and bounds stand in no column."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from rich.text import Text

from oversmooth.cli.examples import EXAMPLES
from oversmooth.cli.streams import out

_NAMES, _WIDEST = 24, 100  # columns of the names, and of everything


def print_help(command: Any, context: Any) -> None:
    """What `--help` shows of a command or of a group of commands."""
    parameters = [one for one in command.get_params(context) if not getattr(one, "hidden", False)]
    options = [one for one in parameters if _is_option(one)]
    arguments = [one for one in parameters if not _is_option(one)]
    words = [_name(one) if one.required else f"[{_name(one).strip('[]')}]" for one in arguments]
    commands = [command.get_command(context, name) for name in getattr(command, "commands", ())]
    usage = [context.command_path, *(["COMMAND"] if commands else []), *words, "[OPTIONS]"]
    out.print(Text.assemble(("Usage: ", "bold"), " ".join(usage)))
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        out.print()
        for line in _wrapped(" ".join(paragraph.split()), 0):
            out.print(line, soft_wrap=True)
    _print_group("Arguments", [(_name(one), _description(one)) for one in arguments])
    panels = [one.rich_help_panel or "Options" for one in options]
    for panel in dict.fromkeys(panels):
        rows = [(_name(one), _description(one)) for one, its in zip(options, panels, strict=True) if its == panel]
        _print_group(panel, rows)
    _print_group("Commands", [(one.name, _summary(one)) for one in commands if not one.hidden])
    if example := EXAMPLES.get(context.command_path.removeprefix(context.find_root().command_path).strip()):
        _print_group("Example", [(example, "")])


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _name(parameter: Any) -> str:
    """As it is typed: `-o, --output FILE`, `--[no-]spectra`, `MODEL...`."""
    value = str(parameter.metavar or _value(parameter))
    if not _is_option(parameter):
        return value
    names = sorted(parameter.opts, key=len)
    for name, other in zip(parameter.opts, parameter.secondary_opts, strict=False):
        names = [f"--[no-]{name[2:]}"] if other == f"--no-{name[2:]}" else [name, other]
    return ", ".join(names) + ("" if parameter.is_flag else f" {value}")


def _value(parameter: Any) -> str:
    """A word for the value of an option that names none."""
    kind = getattr(parameter, "type_descriptor", None)  # in older versions of typer the type itself
    kind = str(getattr(kind, "annotation", None) or getattr(parameter, "type", "")).lower()
    return next((word for part, word in {"int": "N", "float": "X", "path": "PATH"}.items() if part in kind), "NAME")


def _description(parameter: Any) -> str:
    text, shown = " ".join((parameter.help or "").split()), parameter.show_default
    value = shown if isinstance(shown, str) else parameter.default
    if parameter.required and _is_option(parameter):
        return f"{text} [required]"
    if shown is False or value is None or value is False or callable(value):
        return text
    if value is True:
        value = parameter.opts[0].removeprefix("--")
    return f"{text} [default: {getattr(value, 'value', value)}]"


def _summary(command: Any) -> str:
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())


def _print_group(title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        out.print(f"\n{title}", style="bold")
    for name, text in rows:
        lines = _wrapped(text, _NAMES + 4)
        if len(name) > _NAMES or not lines:
            lines.insert(0, "")
        for first, line in zip([name, *[""] * len(lines)], lines, strict=False):
            row = Text.assemble("  ", (first.ljust(_NAMES), "cyan"), "  ", line)
            row.rstrip()
            out.print(row, soft_wrap=True)


def _wrapped(text: str, indent: int) -> list[str]:
    width = max(min(out.width, _WIDEST) - indent, 20)
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
