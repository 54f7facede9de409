"""Jobs on this machine: what comes of each, and what is refused."""

import os
import signal
import stat
import subprocess
import sys
import threading

import pytest
from support.interpreters import import_path
from support.job_examples import Write

from oversmooth.launching import Cell, JobSettings, launch, queue, queued
from oversmooth.safety.errors import InputError


@pytest.fixture(autouse=True)
def _jobs_find_these_modules(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", import_path())


def cells(folder, **kinds):
    return [Cell(name, folder / f"{name}.json", Write(folder / f"{name}.json", **how)) for name, how in kinds.items()]


def test_every_job_is_run_until_its_cell_is_there_or_it_failed_three_times(tmp_path):
    wanted = cells(
        tmp_path,
        quick={},
        killed=dict(first="killed"),
        warned=dict(first="warned"),
        refused=dict(always="refused"),
        broken=dict(always="broken"),
    )
    said, jobs = [], tmp_path / "jobs"
    failed = launch(wanted, jobs, JobSettings("local", at_once=2, seconds=0.05), said.append)
    assert {cell.title for cell in wanted if cell.path.is_file()} == {"quick", "killed", "warned"}
    assert failed == {
        "refused": "failed 3 times, last with: the data are 3; give 4",
        "broken": "failed 3 times, last with: RuntimeError: unlikely",
    }
    tries = {cell.title: len(cell.path.with_suffix(".tries").read_text().splitlines()) for cell in wanted}
    assert tries == dict(quick=1, killed=2, warned=2, refused=3, broken=3)
    # Being warned of a time limit is no failure: the same job went on.
    sent = {name: sum(line.startswith(f"{name}: sent") for line in said) for name in tries}
    assert sent == dict(quick=1, killed=2, warned=1, refused=3, broken=3)
    # The files of jobs that failed stay to be read, in a folder of the user's own.
    assert {row["title"]: state for row, state in queued(jobs)} == dict.fromkeys(failed, "not in the queue")
    assert stat.S_IMODE(jobs.stat().st_mode) == 0o700
    # What is there is not run again, and nothing is left.
    rest = [cell for cell in wanted if cell.title in ("quick", "killed")]
    assert launch(rest, tmp_path / "others", JobSettings("local")) == {}
    assert not (tmp_path / "others").exists()


def test_jobs_of_a_stopped_launcher_end(tmp_path):
    (asleep,) = cells(tmp_path, asleep=dict(always="asleep"))
    begun, sent = asleep.path.with_suffix(".tries"), []

    def stop():  # while jobs are being sent, Ctrl-C is ignored
        while not begun.exists() or not sent:
            threading.Event().wait(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        launch([asleep], tmp_path / "jobs", JobSettings("local", seconds=0.05), sent.append)
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)
    (state,) = [state for _, state in queued(tmp_path / "jobs")]
    assert state == "not in the queue"


def test_only_a_folder_of_the_users_own_is_used(tmp_path):
    private = tmp_path / "jobs"
    queue.check_private(private)
    private.chmod(0o750)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for folder in (private, link):
        with pytest.raises(InputError, match="others may write to it"):
            launch(cells(tmp_path, one={}), folder, JobSettings("local"))
    with pytest.raises(InputError, match="private"):
        queued(private)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be made"):
        queue.check_private(tmp_path / "file")


@pytest.fixture
def full_disk(tmp_path):
    """A disk of 64 kB, and 4 free."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True).returncode:
        pytest.skip("only root mounts a disk")
    (place / "others").write_bytes(bytes(60 * 1024))
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_is_one_sentence_and_finished_cells_are_kept(tmp_path, full_disk):
    large = cells(full_disk, large=dict(size=8192))
    failed = launch([*cells(tmp_path, one={}), *large], tmp_path / "jobs", JobSettings("local"))
    assert failed.keys() == {"large"}
    assert "failed 3 times, last with: " in failed["large"]
    assert "large.json cannot be written: No space left on device; free space" in failed["large"]
    assert (tmp_path / "one.json").is_file()
    with pytest.raises(InputError, match=r"no job can be sent .*No space left on device"):
        launch(cells(tmp_path, two={}), full_disk / "jobs", JobSettings("local"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"array": "1-3"}, "'array', which cannot be set"),
        ({"x\nsbatch": "1"}, "cannot be set"),
        ({"time": "1:00:00"}, "time=1:00:00 is not a number of minutes"),
        ({"time": "0"}, "not a number of minutes"),
    ],
)
def test_options_of_sbatch_are_checked(options, sentence):
    with pytest.raises(InputError, match=sentence):
        JobSettings("slurm", slurm=options)


def test_a_machine_without_slurm_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="finds no sbatch on this machine; use a login node, or --launcher local"):
        launch(cells(tmp_path, one={}), tmp_path / "jobs", JobSettings("slurm"))
    assert queue.slurm_states() is None


def test_without_submitit_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match=r"install oversmooth\[cluster\]"):
        launch(cells(tmp_path, one={}), tmp_path / "jobs", JobSettings("local"))


def test_the_queue_is_read_as_squeue_prints_it(tmp_path, monkeypatch):
    said = "12_0|RUNNING|None\n12_1|PENDING|JobArrayTaskLimit\n13|PENDING|Nodes required are DOWN, DRAINED|or\n"
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_how: subprocess.CompletedProcess([], 0, said, ""))
    states = queue.slurm_states()
    assert states == {
        "12_0": "RUNNING",
        "12_1": "PENDING (JobArrayTaskLimit)",
        "13": "PENDING (Nodes required are DOWN, DRAINED|or)",
    }
    queue.check_private(tmp_path / "jobs")
    for job in ("12_1", "99"):
        queue.record(tmp_path / "jobs", dict(title=job, cell=f"/no/{job}.json", launcher="slurm", job=job))
    assert [state for _, state in queued(tmp_path / "jobs")] == [
        "PENDING (JobArrayTaskLimit)",
        "not in the queue",
    ]
    queue._path(tmp_path / "jobs", "/no/99.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        queued(tmp_path / "jobs")
