"""Help, completion and `oversmooth doctor`: every command has an example that it would take."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from support.commands import run
from support.interpreters import import_path, python
from support.places import ROOT

from oversmooth import __version__
from oversmooth.cli import commands
from oversmooth.cli.examples import EXAMPLES
from oversmooth.demo import installation


def _commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if getattr(command, "commands", None) is not None:
            yield from _commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


COMMANDS = dict(_commands(commands()))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_it_takes_and_help_in_sentences(name: str) -> None:
    command, (program, *words) = COMMANDS[name], shlex.split(EXAMPLES[name])
    assert program == "oversmooth"
    assert words[: len(name.split())] == name.split()
    options = {one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)}
    given = {word for word in words[len(name.split()) :] if re.match("-+[a-z]", word)}
    assert given <= options
    assert command.help.strip()[0].isupper()
    assert re.search(r"[.:]\s*(\n|$)|example", command.help.strip()), command.help
    for parameter in command.params:
        if parameter.required:
            assert not parameter.opts[0].startswith("-") or given & set(parameter.opts), parameter.name
        if not getattr(parameter, "hidden", False):
            assert (parameter.help or "").rstrip().endswith((".", ")")), f"{name} {parameter.name}: {parameter.help}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns_and_keeps_every_word(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[name]
    assert run(monkeypatch, *name.split(), "--help") == 0
    shown, example = capsys.readouterr().out.split("\nExample\n")
    assert example.strip() == EXAMPLES[name]
    assert max(map(len, shown.splitlines())) <= 80
    words = " ".join(shown.split())
    assert " ".join(command.help.split()) in words
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            assert " ".join(parameter.help.split()) in words
            assert parameter.opts[0].removeprefix("--") in words or parameter.metavar in words


@pytest.mark.skipif("reproduce table1" not in COMMANDS, reason="needs the papers")
def test_a_group_without_a_command_lists_its_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "reproduce") == 0
    assert {"table1", "status", "neutreno"} <= {*capsys.readouterr().out.split()}


def test_the_shell_completes_commands() -> None:
    asked = dict(_OVERSMOOTH_COMPLETE="complete_bash", COMP_WORDS="oversmooth sp", COMP_CWORD=1)
    code = "import sys; sys.argv = ['oversmooth']; from oversmooth.__main__ import main; main()"
    done = python("-c", code, PYTHONPATH=import_path(ROOT / "src", ROOT / "papers" / "src"), **asked)
    assert done.stdout.split() == ["spans", "spectrum"], done.stderr


def test_the_version_has_one_place() -> None:
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert cited is not None
    assert cited[1] == __version__
    assert f"version = {{{__version__}}}" in (ROOT / "docs" / "citing.md").read_text(encoding="utf-8")
    assert "version" not in re.findall(r"^(\w+) =", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)


def test_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        installation, "LIBRARIES", {"no_such": ("no-such", "oversmooth[models]"), "json": ("nothing", "nothing")}
    )
    monkeypatch.setattr(installation, "WORK", {"this": (), "that": ("no_such",)})
    monkeypatch.delenv("OVERSMOOTH_DATA", raising=False)
    assert run(monkeypatch, "doctor") == 0
    text = capsys.readouterr().out
    assert "pip install 'oversmooth[models]'" in text
    assert "needs no-such" in text
    assert __version__ in text


def test_doctor_ends_with_1_where_a_library_does_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    (tmp_path / "broken_library.py").write_text("raise RuntimeError('of another build')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installation, "LIBRARIES", {"broken_library": ("broken-library", "models")})
    monkeypatch.setattr(installation, "WORK", {})
    assert run(monkeypatch, "doctor") == 1
    assert "of another build" in " ".join(capsys.readouterr().out.split())
