"""Pages that are made from the code: the command line, which is kept so that it can be read without the site; and, for
the site alone, the JSON schema and the gallery's pages.
"""

import enum
import inspect
import json
import shutil
import tomllib
from pathlib import Path

COMMANDS = Path("docs") / "reference" / "commands.md"
"""Kept, since whoever reads the repository has no site; `make docs` writes it again, and a test compares."""
GALLERY = "<!-- where the pages are -->"
"""In gallery.md: what the built site puts its link to."""


def repository(root: Path) -> str:
    """The address of the repository, as pyproject.toml has it."""
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Homepage"])


def write(root: Path, folder: Path) -> None:
    """All of them, into a folder that git ignores; files that would not change are left alone."""
    _write(root / COMMANDS, command_line())
    schemas = folder / "extra" / "schema"
    schemas.mkdir(parents=True, exist_ok=True)
    for file in (root / "docs" / "schema").glob("*.json"):
        _write(schemas / file.name, file.read_text(encoding="utf-8"))
    pages = root / "out" / "gallery"  # where `make gallery` writes
    if (pages / "index.html").is_file():
        shutil.copytree(pages, folder / "extra" / "gallery-pages", dirs_exist_ok=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def gallery_note(root: Path) -> str:
    """For the site alone."""
    if (root / "out" / "gallery" / "index.html").is_file():
        return "The page of every model: <a href='gallery-pages/index.html'>the gallery's pages</a>."
    return "They are not part of this build."


def command_line() -> str:
    """Every command, its example and its options."""

    from oversmooth.cli import commands
    from oversmooth.cli.examples import EXAMPLES

    lines = [
        "# Command line",
        "",
        "Every command, as `oversmooth COMMAND --help` shows it. `oversmooth --install-completion` teaches your shell "
        "to complete commands and options. Bad input ends with one sentence and exit code 2.",
        "",
    ]

    def describe(command: object, words: list[str]) -> None:
        children = getattr(command, "commands", None)
        title = " ".join(words)
        lines.extend([f"{'#' * min(len(words), 4)} {title}", ""])
        lines.extend([inspect.cleandoc(getattr(command, "help", "") or ""), ""])
        if children is not None:
            for name, child in children.items():
                describe(child, [*words, name])
            return
        if example := EXAMPLES.get(" ".join(words[1:])):
            lines.extend(["```console", f"$ {example}", "```", ""])
        rows = [row for parameter in command.params if (row := _row(parameter)) is not None]  # type: ignore[attr-defined]
        lines.extend(["| | | default |", "|---|---|---|", *rows, ""])

    root = commands()
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        describe(command, ["oversmooth", name])
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _row(parameter: object) -> str | None:
    if getattr(parameter, "hidden", False):
        return None
    is_option = parameter.opts[0].startswith("-")  # type: ignore[attr-defined]
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar or parameter.name]  # type: ignore[attr-defined]
    name = ", ".join(f"`{one}`" for one in names)
    help = " ".join(str(getattr(parameter, "help", "") or "").split()).replace("|", r"\|").replace("*", r"\*")
    return f"| {name} | {help} | {_default(parameter)} |"


def _default(parameter: object) -> str:
    shown = getattr(parameter, "show_default", True)
    value = parameter.default  # type: ignore[attr-defined]
    if getattr(parameter, "required", False):
        return "required"
    if isinstance(shown, str):
        return shown
    if value is None or value is False or callable(value):
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    return "yes" if value is True else f"`{value}`" if not isinstance(value, (list, dict)) else json.dumps(value)
