"""How much memory there is, by all who have a say in it."""

import resource
import sys

import pytest

from oversmooth import InputError
from oversmooth.safety import machine


def test_there_is_some():
    assert 2**20 < machine.free_memory() <= sys.maxsize


def test_the_least_of_all_counts(monkeypatch):
    for name in ("_machine", "_control_group", "_own_limit"):
        monkeypatch.setattr(machine, name, lambda: 5 * 10**9)
    monkeypatch.setattr(machine, "_control_group", lambda: 3 * 10**9)
    machine.check_fits(3 * 10**9, "this", "give less")
    with pytest.raises(InputError, match=r"this needs 4 GB of memory, but 3 GB are free; give less"):
        machine.check_fits(4 * 10**9, "this", "give less")


def test_a_limit_of_the_process_counts():
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (2**40, before[1]))
        assert machine._own_limit() < 2**40
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    if before[0] == resource.RLIM_INFINITY:
        assert machine._own_limit() == sys.maxsize


def test_a_control_group_counts_without_what_it_could_let_go(tmp_path, monkeypatch):
    for name, text in {"max": "1000\n", "current": "700\n", "stat": "anon 1\ninactive_file 200\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    assert machine._control_group() == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert machine._control_group() == sys.maxsize
