"""Checkpoints: one file that is whole at every moment, travels, and is refused in one sentence when it is damaged."""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.interpreters import python
from support.places import TEST_FOLDERS
from support.runs import LEFT, QUIET, assert_same_models
from support.train_example import RECIPE, splits, train

from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import hardware_name
from oversmooth_papers.engine import checkpoint, logs, loop


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was stopped after its first step, and again after its second."""
    folder = tmp_path_factory.mktemp("run") / "run"
    for _ in range(2):
        result = train(RECIPE, splits(), folder=folder, resume=True, minutes=0)
    assert result.step == 2
    return folder


@pytest.fixture
def copied(run, tmp_path):
    """The run on another machine."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def finished(folder):
    return train(RECIPE, splits(), folder=folder, resume=True, watch=QUIET)


def test_it_says_what_it_is_of(run):
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoint.safetensors",
        "machines.jsonl",
        "smoothing.jsonl",
    ]
    assert checkpoint.how_far(run) == "epoch 0 of 4"
    assert checkpoint.recipe_of(run) == RECIPE
    assert checkpoint.newest(run) == run / checkpoint.NAME


def test_a_copy_goes_on_as_the_run_would(copied, tmp_path):
    finished(copied)
    assert sorted(file.name for file in copied.iterdir()) == LEFT
    train(RECIPE, splits(), folder=tmp_path / "whole", watch=QUIET)
    assert_same_models(tmp_path / "whole", copied)


def test_cut_off_anywhere_or_with_a_bit_that_differs_it_is_refused(copied):
    file, draw = copied / checkpoint.NAME, random.Random(0)
    whole = file.read_bytes()
    for size in (0, 1, 7, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(6))):
        file.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"checkpoint\.safetensors is damaged.*to start over"):
            checkpoint.load(copied, RECIPE)
    for place in (9, 200, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(12))):
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(InputError, match=r"checkpoint\.safetensors is damaged.*to start over"):
            checkpoint.load(copied, RECIPE)
    file.write_bytes(whole)
    assert int(checkpoint.load(copied, RECIPE).arrays["position"]) == 2


def test_what_a_run_ran_on_is_known_where_it_goes_on(copied, monkeypatch):
    """Of a process that died before its first checkpoint nothing counts, and nothing is said."""
    monkeypatch.setattr(loop, "hardware_name", lambda _device: "another machine")
    with (copied / "machines.jsonl").open("a") as log:
        log.write('{"from_step": 2, "hardware": "a machine that died"}\n')
    machines = finished(copied).machines
    here = hardware_name(torch.device("cpu"))
    assert [(machine["from_step"], machine["hardware"]) for machine in machines] == [
        (0, here), (1, here), (2, "another machine"),
    ]  # fmt: skip
    assert finished(copied).machines == machines  # read from its files


def test_half_a_line_is_dropped(run, copied):
    """As a power cut may leave it: the next line is not glued to it."""
    log = copied / "machines.jsonl"
    log.write_bytes(log.read_bytes()[:-10])
    train(RECIPE, splits(), folder=copied, resume=True, minutes=0)
    before, after = (logs.read(folder / log.name) for folder in (run, copied))
    assert after == [before[0], {**before[0], "from_step": 2}]


@pytest.mark.parametrize("name", [logs.EPOCHS, logs.SMOOTHING, logs.MACHINES])
def test_a_file_of_somebody_elses_is_not_written_over(tmp_path, name):
    for theirs in (b'{"rows": 3}\n', b"notes\n", b'{"epochs": 1}\n', b"\x00" * 40, b"\n"):
        (tmp_path / name).write_bytes(theirs)
        with pytest.raises(InputError, match=r"is not the log of a run, and the run's log goes there; move it away"):
            train(RECIPE, splits(), folder=tmp_path, minutes=0)
        assert (tmp_path / name).read_bytes() == theirs


@pytest.mark.parametrize("begun", [b"", b'{"epoch": 1, "step"', b'{"epoch": 1, "step": 5}\n{"retry": 1}\n'])
def test_what_a_run_left_that_was_killed_before_its_first_checkpoint_is_begun_anew(tmp_path, begun):
    (tmp_path / logs.EPOCHS).write_bytes(begun)
    result = train(RECIPE, splits(), folder=tmp_path)
    assert logs.read(tmp_path / logs.EPOCHS) == result.epochs
    assert [row["epoch"] for row in result.epochs] == [1, 2, 3, 4]


def rewritten(folder, arrays=None, **words):
    """As `checkpoint.save` writes it, with something else in it and a checksum that fits."""
    found = checkpoint.load(folder, RECIPE)
    changed = {n: v for n, v in {**found.arrays, **(arrays or {})}.items() if v is not None}
    words = {"recipe": json.dumps(RECIPE.to_dict()), "facts": json.dumps(found.facts), **words}
    save_file(changed, folder / checkpoint.NAME, {**words, "sha256": checkpoint.checksum(changed, words)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("facts", "[]"),
        ("facts", '{"seconds": "x"}'),
        ("facts", '{"logs": [1]}'),
        ("facts", '{"retries": [{"retry": 1}]}'),
        ("facts", "[" * 100_000),
        ("recipe", "{"),
        ("recipe", '{"shape": 4}'),
        ("recipe", "[" * 100_000),
        ("model.head.weight", None),
        ("model.head.weight", torch.zeros(2, 2)),
        ("exp_avg.head.weight", torch.zeros(1)),
        ("position", None),
        ("position", torch.zeros(3)),
        ("position", torch.tensor([10**9])),
        ("position", torch.tensor([-1])),
        ("losses", torch.zeros(())),
        ("generator.torch", None),
        ("generator.torch", torch.zeros(10, dtype=torch.uint8)),
        ("generator.order", torch.zeros(5056, dtype=torch.uint8)),
    ],
)
def test_what_does_not_fit_is_refused(copied, name, value):
    rewritten(copied, **{name: value}) if isinstance(value, str) else rewritten(copied, {name: value})
    with pytest.raises(InputError, match=r"checkpoint\.safetensors is damaged.*to start over"):
        finished(copied)


_SAVE = """
import os, resource, signal, sys
from pathlib import Path
sys.path[:0] = {tests!r}
from support.train_example import RECIPE
from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import checkpoint

write = checkpoint.save_file

def saved(folder, share):
    def killed(arrays, path, words):
        write(arrays, path, words)
        os.truncate(path, int(share * path.stat().st_size))
        os.kill(os.getpid(), signal.SIGKILL)

    if share < 0:  # a limit on the size of files stands for a full disk: the system refuses bytes half-way
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    else:
        checkpoint.save_file = killed
    found = checkpoint.load(folder, RECIPE)
    found.arrays["position"] += 1
    try:
        checkpoint.save(folder, RECIPE, found.arrays, found.facts)
    except InputError as error:
        os.write(1, str(error).encode())
    os._exit(0)

for name, share in {shares}.items():
    child = os.fork()  # what was imported need not be again
    if not child:
        saved(Path({folder!r}) / name, share)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_killed_while_it_is_written_or_on_a_full_disk_the_one_before_is_there(run, tmp_path):
    shares = {"begun": 0.0, "half": 0.5, "written": 1.0, "full": -1.0}
    for name in shares:
        shutil.copytree(run, tmp_path / name)
    code = _SAVE.format(tests=TEST_FOLDERS, folder=str(tmp_path), shares=shares)
    done = python("-c", code)
    for name, share in shares.items():
        folder, killed = tmp_path / name, share >= 0
        assert (folder / checkpoint.NAME).read_bytes() == (run / checkpoint.NAME).read_bytes()
        assert f"{name} {-signal.SIGKILL if killed else 0}" in done.stdout, done
        assert len(list(folder.glob(".checkpoint.*"))) == killed
        (folder / ".checkpoint.0123abcd-17-abcdefgh.oversmooth.safetensors").write_bytes(b"of another machine")
        (folder / ".mine").write_text("a user's own")
        assert finished(folder).finished
        assert sorted(file.name for file in folder.iterdir()) == [".mine", *LEFT]
    for words in ("cannot be written", "free space", "the previous file is unchanged"):
        assert words in done.stdout
