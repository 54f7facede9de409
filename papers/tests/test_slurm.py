"""Jobs on a real SLURM of one node, and what may happen to them there. Minutes: SLURM delays what it requeues."""

import os
import subprocess
import threading
import time

import pytest
from support import slurm
from support.commands import make_cifar, run
from support.interpreters import import_path
from support.job_examples import Write
from support.launched_example import SlowRun
from support.runs import QUIET, assert_same_models
from support.train_example import RECIPE, splits, train

from oversmooth.launching import Cell, JobSettings, launch, queued
from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.loop import MODEL

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(slurm.lacking()), reason=slurm.lacking())]
SOON = dict(time="2")


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory):
    before = os.environ.get("PYTHONPATH")
    os.environ |= {"PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"}
    with slurm.running(tmp_path_factory.mktemp("slurm")) as lose_node:
        yield lose_node
        print(call("sacct", "-D", "-X", "-o", "JobID,State%16,ExitCode,Elapsed"))  # shown by pytest -s
    os.environ.pop("PYTHONPATH")
    os.environ |= {} if before is None else {"PYTHONPATH": before}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    train(RECIPE, splits(), folder=folder, watch=QUIET)
    return folder


def call(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def cell(folder, name="one", **how):
    return Cell(name, folder / f"{name}.json", Write(folder / f"{name}.json", **how))


def slow(folder, seconds=2.0):
    return Cell("run", folder / "run" / MODEL, SlowRun(folder / "run", seconds))


def job_of(line):
    return line.rpartition(" ")[2]


class Witness:
    """Receives a launcher's messages, and answers the first that begins like this."""

    def __init__(self, begins, answer):
        self.begins, self.answer, self.said = begins, answer, []

    def __call__(self, line):
        print(line)
        self.said.append(line)
        if line.startswith(self.begins) and self.answer is not None:
            answer, self.answer = self.answer, None
            threading.Thread(target=answer, args=(line,), daemon=True).start()


def settings(**slurm):
    return JobSettings("slurm", slurm=SOON | slurm, seconds=1.0)


def running(job):
    """Wait until it is, so that its process has begun."""
    while call("squeue", "-h", "-r", "-o", "%T", "-j", job) != "RUNNING":
        time.sleep(0.5)


def test_cells_are_made_in_arrays_as_large_as_slurm_takes(tmp_path):
    wanted = [cell(tmp_path, f"cell{n}") for n in range(slurm.MOST_IN_ARRAY + 2)]
    wanted += [cell(tmp_path, "killed", first="killed"), cell(tmp_path, "refused", always="refused")]
    witness = Witness("", None)
    failed = launch(wanted, tmp_path / "jobs", settings(), witness)
    assert failed == {"refused": "failed 3 times, last with: the data are 3; give 4"}
    assert all(one.path.is_file() for one in wanted[:-1])
    first = [job_of(line) for line in witness.said[: len(wanted)]]
    assert len({job.partition("_")[0] for job in first}) == 2
    assert max(sum(job.startswith(number.partition("_")[0]) for job in first) for number in first) == 5


def test_a_time_limit_requeues_a_run_that_goes_on_bit_for_bit(tmp_path, whole):
    """SLURM's signal comes up to a minute early: under a limit of two, within 30 to 90 seconds of a run of 100."""
    one, witness = slow(tmp_path, seconds=5), Witness("", None)
    assert launch([one], tmp_path / "jobs", settings(), witness) == {}
    assert sum(": sent as job" in line for line in witness.said) == 1
    job = job_of(witness.said[0])
    restarts = call("sacct", "-n", "-X", "-D", "-P", "-j", job, "-o", "State").splitlines()
    print(restarts)
    assert len(restarts) >= 2
    assert "REQUEUED" in restarts[0]
    assert_same_models(one.path.parent, whole)


@pytest.mark.parametrize(("partition", "sent"), [("usual", 2), ("requeued", 1)])
def test_a_preempted_job_goes_on_bit_for_bit(tmp_path, whole, partition, sent):
    """Sent again where preemption cancels; requeued by SLURM elsewhere."""

    def preempt(line):
        running(job_of(line))
        while not (tmp_path / "run" / "checkpoint.safetensors").is_file():
            time.sleep(0.2)
        call("sbatch", "-p", "first", "--exclusive", "-t", "1", "-o", "/dev/null", "--wrap", "sleep 5")

    one, witness = slow(tmp_path), Witness("run: sent as job", preempt)
    assert launch([one], tmp_path / "jobs", settings(partition=partition), witness) == {}
    assert sum(": sent as job" in line for line in witness.said) == sent
    assert "PREEMPTED" in call("sacct", "-n", "-X", "-D", "-P", "-j", job_of(witness.said[0]), "-o", "State")
    assert_same_models(one.path.parent, whole)


def test_a_run_whose_node_was_lost_goes_on_bit_for_bit(cluster, tmp_path, whole):
    def lose(line):
        running(job_of(line))
        while not (tmp_path / "run" / "checkpoint.safetensors").is_file():
            time.sleep(0.2)
        cluster()

    one, witness = slow(tmp_path), Witness("run: sent as job", lose)
    assert launch([one], tmp_path / "jobs", settings(), witness) == {}
    assert "NODE_FAIL" in call("sacct", "-n", "-X", "-D", "-P", "-j", job_of(witness.said[0]), "-o", "State")
    assert_same_models(one.path.parent, whole)


def test_a_cancelled_job_is_not_sent_again(tmp_path):
    def cancel(line):
        running(job_of(line))
        call("scancel", job_of(line))

    witness = Witness("one: sent as job", cancel)
    failed = launch([cell(tmp_path, always="asleep")], tmp_path / "jobs", settings(), witness)
    assert failed == {"one": "its job was cancelled; the same command sends it again"}


def test_jobs_wait_for_a_drained_node(tmp_path):
    node = call("sinfo", "-h", "-o", "%n")
    call("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    shown = []

    def look(_line):
        shown.extend((row["title"], state) for row, state in queued(tmp_path / "jobs"))
        call("scontrol", "update", f"nodename={node}", "state=resume")

    witness = Witness("1 PENDING", look)
    assert launch([cell(tmp_path)], tmp_path / "jobs", settings(), witness) == {}
    assert [title for title, _ in shown] == ["one"]
    assert "PENDING" in shown[0][1]


def test_a_stopped_launcher_leaves_jobs_that_the_next_one_waits_for(tmp_path):
    node = call("sinfo", "-h", "-o", "%n")
    call("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    said = []

    def first(line):
        said.append(line)
        if "PENDING" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch([cell(tmp_path)], tmp_path / "jobs", settings(), first)
    job = job_of(said[0])
    assert said[-1] == f"1 cells stay in the queue; the same command waits for them, and scancel {job} cancels them"
    call("scontrol", "update", f"nodename={node}", "state=resume")
    witness = Witness("", None)
    assert launch([cell(tmp_path)], tmp_path / "jobs", settings(), witness) == {}
    assert witness.said[0] == f"one: is job {job} already"
    assert not any("sent" in line for line in witness.said)
    assert not (tmp_path / "jobs").exists()


def test_a_partition_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="Invalid partition name specified"):
        launch([cell(tmp_path)], tmp_path / "jobs", settings(partition="none"))


def test_a_folder_that_others_can_write_to_is_not_read_by_jobs(tmp_path):
    node = call("sinfo", "-h", "-o", "%n")
    call("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")

    def resume(_line):
        (tmp_path / "jobs").chmod(0o777)
        call("scontrol", "update", f"nodename={node}", "state=resume")

    witness = Witness("1 PENDING", resume)
    with pytest.raises(InputError, match="others may write to it"):
        launch([cell(tmp_path)], tmp_path / "jobs", settings(), witness)
    while call("squeue", "-h", "-o", "%i"):
        time.sleep(0.5)
    assert "is not private" in (tmp_path / "jobs").joinpath(f"{job_of(witness.said[0])}_0_log.err").read_text()
    assert not (tmp_path / "one.json").exists()


def test_a_table_by_jobs_is_the_table(tmp_path, monkeypatch):
    data = make_cifar(tmp_path / "cifar-100-binary", 1200, 60)
    given = ("reproduce", "table2", "--quick", "--cells", "plain", "--data", data, "--device", "cpu")
    assert run(monkeypatch, *given, "--results", tmp_path / "plain") == 0
    with_jobs = ("--launcher", "slurm", "--slurm", "time=5")
    assert run(monkeypatch, *given, "--results", tmp_path / "jobs", *with_jobs) == 0
    assert_same_models(tmp_path / "plain" / "models", tmp_path / "jobs" / "models")
