"""One writer for a directory: who is refused, who is taken over, and who notices that it was."""

import json
import os
import threading
import time

import pytest
from support.interpreters import python

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import lock

ELSEWHERE = {"space": "another machine", "host": "node7"}


def left(folder, seconds_ago=0.0, **changes):
    """A lock file of some process, renewed so long ago."""
    path = folder / lock.NAME
    path.write_text(json.dumps({**json.loads(lock.Lock(folder).text), **changes}))
    old(path, seconds_ago)
    return path


def old(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def gone():
    """The number of a process that has ended."""
    return int(python("-c", "import os; print(os.getpid())").stdout)


def test_it_says_who_and_a_directory_that_stays_empty_is_gone(tmp_path):
    inside = tmp_path / "a" / "b"
    with lock.held(inside):
        said = json.loads((inside / lock.NAME).read_text())
        assert said["pid"] == os.getpid()
        assert said["host"]
    assert not list(tmp_path.iterdir())
    with lock.held(inside):
        (inside / "file").touch()
    assert [path.name for path in inside.iterdir()] == ["file"]
    with pytest.raises(InputError, match="is a file, not a directory"), lock.held(inside / "file" / "c"):
        pass


def test_of_many_at_once_one_is_first_and_the_others_are_told_of_it(tmp_path):
    entered, refused, go, over = [], [], threading.Event(), threading.Event()

    def enter():
        go.wait()
        try:
            with lock.held(tmp_path):
                entered.append(1)
                over.wait(10)
        except InputError as error:
            refused.append(str(error))
            if len(refused) == 7:
                over.set()

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert (len(entered), len(refused)) == (1, 7)
    # Between its creation and its first byte a file says nothing yet.
    assert all("is being written by " in one and "; wait for it, stop it" in one for one in refused)
    assert any(f"by process {os.getpid()} on " in one for one in refused)


@pytest.mark.parametrize(
    ("seconds_ago", "changes"),
    [(0, {"pid": None}), (lock.QUIET + 10, {}), (lock.QUIET + 10, ELSEWHERE)],
    ids=["it has ended", "its number is another's now", "elsewhere, and quiet"],
)
def test_one_whose_owner_is_gone_is_taken_over(tmp_path, seconds_ago, changes):
    left(tmp_path, seconds_ago, **(changes | ({"pid": gone()} if "pid" in changes else {})))
    on_message = []
    with lock.held(tmp_path, on_message=on_message.append) as mine:
        mine.check()
    assert len(on_message) == 1
    assert "is taken over from process" in on_message[0]
    assert changes.get("host", "") in on_message[0]
    assert not list(tmp_path.iterdir())


def test_elsewhere_a_sign_of_life_decides(tmp_path, monkeypatch):
    """The owner's process cannot be looked for: its file is touched, or is not."""
    path = left(tmp_path, 30, **ELSEWHERE)
    monkeypatch.setattr(lock.time, "sleep", lambda _seconds: old(path, 20))  # it is touched meanwhile
    with pytest.raises(InputError, match=r"is being written by process \d+ on node7"), lock.held(tmp_path):
        pass
    monkeypatch.setattr(lock.time, "sleep", lambda _seconds: path.unlink())  # it is released meanwhile
    on_message = []
    with lock.held(tmp_path, on_message=on_message.append):
        pass
    assert "waiting up to 120 s to see whether it lives" in on_message[0]
    assert len(on_message) == 1


def test_force_takes_over_with_a_warning_and_the_first_notices(tmp_path):
    on_message = []
    with lock.held(tmp_path) as first:
        first.check()
        with lock.held(tmp_path, force=True, on_message=on_message.append) as second:
            second.check()
            with pytest.raises(InputError, match="was taken over by process"):
                first.check()
        assert "by force; if it still runs, it stops at its next checkpoint" in on_message[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[" * 3000, "[]", '{"pid": "x"}', '{"pid": 7}', "\0\xff"])
def test_a_file_that_says_nothing_is_taken_over_after_a_while(tmp_path, text):
    path = tmp_path / lock.NAME
    path.write_text(text)
    old(path, lock.QUIET + 10)
    with lock.held(tmp_path) as mine:
        mine.check()
    assert not list(tmp_path.iterdir())


def test_its_owner_touches_it_and_makes_it_again_if_somebody_removed_it(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    with lock.held(tmp_path) as mine:
        path = tmp_path / lock.NAME
        old(path, 1000)
        while time.time() - path.stat().st_mtime > 500:
            time.sleep(0.01)
        path.unlink()
        mine.check()
        assert path.is_file()
    assert not list(tmp_path.iterdir())
