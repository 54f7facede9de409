"""One writer for a directory: who is refused, who is taken over, and who notices that it was."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import lock

OTHER = "another machine"


def left(folder, **changes):
    """A lock file of some process."""
    text = json.dumps({**json.loads(lock.Lock(folder).text), **changes})
    (folder / lock.NAME).write_text(text)
    return folder / lock.NAME


def gone():
    """The number of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def old(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_it_is_there_while_the_block_lasts_and_says_who(tmp_path):
    with lock.held(tmp_path):
        said = json.loads((tmp_path / lock.NAME).read_text())
        assert said["pid"] == os.getpid()
        assert said["host"]
    assert not list(tmp_path.iterdir())


def test_a_directory_is_made_and_gone_if_nothing_came_into_it(tmp_path):
    with lock.held(tmp_path / "a" / "b"):
        pass
    assert not list(tmp_path.iterdir())
    with lock.held(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "file").touch()
    assert (tmp_path / "a" / "b" / "file").is_file()
    with pytest.raises(InputError, match="is a file, not a directory"), lock.held(tmp_path / "a" / "b" / "file" / "c"):
        pass


def test_a_second_writer_is_told_of_the_first(tmp_path):
    said = rf"is being written by process {os.getpid()} on .*; wait for it, stop it"
    with lock.held(tmp_path):
        with pytest.raises(InputError, match=said), lock.held(tmp_path):
            pass
        assert (tmp_path / lock.NAME).is_file()


def test_of_many_at_once_one_is_first(tmp_path):
    entered, refused, go = [], [], threading.Event()

    def enter():
        go.wait()
        try:
            with lock.held(tmp_path):
                entered.append(1)
                over.wait(10)
        except InputError:
            refused.append(1)
            if len(refused) == 7:
                over.set()

    over = threading.Event()
    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert (len(entered), len(refused)) == (1, 7)


@pytest.mark.parametrize("changes", [{}, {"started": "1"}], ids=["ended", "its number is another's now"])
def test_one_whose_owner_is_gone_is_taken_over(tmp_path, changes):
    left(tmp_path, pid=os.getpid() if changes else gone(), **changes)
    on_message = []
    with lock.held(tmp_path, on_message=on_message.append) as mine:
        mine.check()
    assert len(on_message) == 1
    assert "is taken over from process" in on_message[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="Linux says what has ended but was not waited for")
def test_one_that_ended_and_was_not_waited_for_is_gone(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    started = lock._started(process.pid)
    while lock._started(process.pid) != "ended":
        time.sleep(0.01)
    left(tmp_path, pid=process.pid, started=started)
    with lock.held(tmp_path):
        pass
    process.wait()


def test_elsewhere_a_sign_of_life_decides(tmp_path, monkeypatch):
    """The owner's process cannot be looked for: its file is touched, or is not."""
    path = left(tmp_path, space=OTHER, host="node7")
    old(path, lock.QUIET + 10)
    on_message = []
    with lock.held(tmp_path, on_message=on_message.append):
        pass
    assert "taken over" in on_message[0]
    assert "on node7" in on_message[0]
    path = left(tmp_path, space=OTHER, host="node7")
    old(path, 30)
    monkeypatch.setattr(lock.time, "sleep", lambda _seconds: old(path, 20))  # it is touched meanwhile
    with pytest.raises(InputError, match=r"is being written by process \d+ on node7"), lock.held(tmp_path):
        pass
    monkeypatch.setattr(lock.time, "sleep", lambda _seconds: path.unlink())  # it is released meanwhile
    on_message.clear()
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


def test_a_lock_that_somebody_removed_is_made_again(tmp_path):
    with lock.held(tmp_path) as mine:
        (tmp_path / lock.NAME).unlink()
        mine.check()
        assert (tmp_path / lock.NAME).is_file()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[" * 3000, "[]", '{"pid": "x"}', '{"pid": 7}', "\0\xff"])
def test_a_file_that_says_nothing_is_taken_over_after_a_while(tmp_path, text):
    path = tmp_path / lock.NAME
    path.write_text(text)
    old(path, lock.QUIET + 10)
    with lock.held(tmp_path) as mine:
        mine.check()
    assert not list(tmp_path.iterdir())


def test_its_owner_touches_it(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    with lock.held(tmp_path):
        path = tmp_path / lock.NAME
        old(path, 1000)
        while time.time() - path.stat().st_mtime > 500:
            time.sleep(0.01)
