"""Files that are there whole or not at all, whatever happens while they are written."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.disk import small_disk
from support.interpreters import python

from oversmooth.safety import files, signals
from oversmooth.safety.errors import InputError


def gone():
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def left_by(process, folder, name="x", suffix=".json"):
    """What a process that was killed leaves: a file and a folder."""
    prefix = f".{name}.{files.process_space()}-{process}-"
    (folder / f"{prefix}abcd1234.oversmooth{suffix}").write_text("half")
    (folder / f"{prefix}efgh5678.oversmooth").mkdir()
    (folder / f"{prefix}efgh5678.oversmooth" / "weights").write_text("half")


@pytest.mark.parametrize("writer", [files.whole_file, files.whole_folder])
def test_what_a_killed_process_left_is_tidied_and_nothing_else(tmp_path, writer):
    left_by(gone(), tmp_path)
    left_by(gone(), tmp_path, "another", ".pdf")
    keep = [".x.00000000-1-abcd1234.oversmooth.json", ".x.oversmooth.json", f".x.{files.process_space()}-1.json"]
    keep.append("x.txt")
    for name in keep:
        (tmp_path / name).write_text("someone's")
    left_by(os.getppid(), tmp_path)  # which runs
    running = [name for name in os.listdir(tmp_path) if f"-{os.getppid()}-" in name]
    with writer(tmp_path / "out") as temporary:
        assert temporary.name.startswith(f".out.{files.process_space()}-{os.getpid()}-")
        if temporary.is_file():
            temporary.write_text("whole")
    assert sorted(os.listdir(tmp_path)) == sorted([*keep, *running, "out"])


def test_a_death_by_kill_leaves_what_the_next_run_tidies(tmp_path):
    code = "import os, signal, sys; from pathlib import Path; from oversmooth.safety.files import whole_file\n"
    code += "with whole_file(Path(sys.argv[1])) as t: t.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    done = python("-c", code, tmp_path / "x.json")
    assert done.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    with files.whole_file(tmp_path / "x.json") as temporary:
        temporary.write_text("whole")
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("how", ["safetensors", "text", "folder"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, how):
    folder = how == "folder"

    def write():
        with (files.whole_folder if folder else files.whole_file)(tmp_path / "out") as temporary:
            if how == "text":
                temporary.write_text("x" * 100_000)
            else:
                save_file({"x": torch.zeros(100_000)}, temporary / "model.safetensors" if folder else temporary)

    if not folder:
        (tmp_path / "out").write_text("before")
    said = r"out cannot be written: .*File too large.*; free space"
    with small_disk(), pytest.raises(InputError, match=said) as refused:
        write()
    assert ("nothing was written" if folder else "the previous file is unchanged") in str(refused.value)
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if folder else ["before"])


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    order = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda d: order.append("fsync") or sync(d))
    monkeypatch.setattr(Path, "replace", lambda self, to: order.append("rename") or replace(self, to))
    with files.whole_file(tmp_path / "x") as temporary:
        temporary.write_text("x")
    assert order == ["fsync", "rename", "fsync"]
    order.clear()
    with files.whole_folder(tmp_path / "y") as temporary:
        (temporary / "a").write_text("x")
        (temporary / "b").mkdir()
    assert order == ["fsync", "fsync", "fsync", "rename", "fsync"]


def test_a_disk_that_fails_at_the_end_of_a_write_is_told(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    def write():
        with files.whole_file(tmp_path / "x.json") as temporary:
            temporary.write_text("x")

    with pytest.raises(InputError, match="No space left on device"):
        write()
    assert os.listdir(tmp_path) == []


def test_a_file_has_the_rights_that_files_have_here(tmp_path):
    (tmp_path / "usual").touch()
    with files.whole_file(tmp_path / "x") as temporary:
        temporary.write_text("whole")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_mistake_in_the_block_stays_what_it_is(tmp_path):
    def write():
        with files.whole_folder(tmp_path / "x") as temporary:
            (temporary / "half").write_text("x")
            json.loads("{")

    with pytest.raises(json.JSONDecodeError):
        write()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_temporary_folder(tmp_path, number):
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    signal.signal(number, usual)  # a hangup may be ignored

    def write():
        with files.whole_folder(tmp_path / "x") as temporary:
            (temporary / "half").write_text("x")
            signal.raise_signal(number)

    with signals.catch_signals() as stop, pytest.raises(KeyboardInterrupt):
        write()
    assert signal.getsignal(number) is usual
    assert stop.exit_code == 128 + number
    assert os.listdir(tmp_path) == []


def test_a_name_as_long_as_names_may_be(tmp_path):
    path = tmp_path / ("ä" * 124 + ".json")
    with files.whole_file(path) as temporary:
        temporary.write_text("x")
    assert os.listdir(tmp_path) == [path.name]


def test_outputs_are_neither_inputs_nor_one_another(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    for outputs, inputs, said in (
        ([tmp_path / "a.json"], [str(tmp_path / "." / "a.json")], "both an input and an output"),
        ([tmp_path / "link.json"], [tmp_path / "a.json", None], "both an input and an output"),
        ([tmp_path / "b.md", None, tmp_path / "x" / ".." / "b.md"], [], "named for two outputs"),
    ):
        with pytest.raises(InputError, match=said):
            files.check_apart(outputs, inputs)
    files.check_apart([tmp_path / "b.json", None], [tmp_path / "a.json", "a/hub-id"])


def test_no_file_takes_the_place_of_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="it is a pipe; name a file"), files.whole_file(tmp_path / "pipe"):
        pass


@pytest.mark.parametrize("writer", [files.whole_file, files.whole_folder])
def test_below_a_file_nothing_can_be_written(tmp_path, writer):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot be written"), writer(tmp_path / "file" / "x"):
        pass
    assert (tmp_path / "file").read_text() == "mine"
