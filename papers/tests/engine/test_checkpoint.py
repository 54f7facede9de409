"""Checkpoints: pieces that travel, damage that is named, and the one before that is taken instead."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.train_example import LEFT, RECIPE, splits, train

from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import hardware_name
from oversmooth.steering.saving import read_file
from oversmooth_papers.engine import checkpoint, logs, loop, training_run
from oversmooth_papers.engine.loop import WatchSettings

SMALL = 20_000


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was stopped after its second step, with two checkpoints in small pieces."""
    folder = tmp_path_factory.mktemp("run") / "run"
    before = checkpoint.save.__defaults__
    checkpoint.save.__defaults__ = (SMALL,)
    try:
        for _ in range(2):
            result = train(RECIPE, splits(), device="cpu", folder=folder, resume=True, minutes=0)
    finally:
        checkpoint.save.__defaults__ = before
    assert result.step == 2
    return folder


@pytest.fixture
def copied(run, tmp_path):
    """The run on another machine."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def finished(folder, on_message=None):
    return train(
        RECIPE,
        splits(),
        device="cpu",
        folder=folder,
        resume=True,
        on_message=on_message,
        watch=WatchSettings(monitor=0),
    )


def test_the_last_two_are_kept_in_small_pieces(run):
    one, two = sorted((run / "checkpoint").iterdir())
    assert (one.name, two.name) == ("000001", "000002")
    pieces = sorted(two.glob("part-*"))
    assert len(pieces) > 5
    assert all(0 < piece.stat().st_size <= SMALL for piece in pieces)
    manifest = json.loads((two / "manifest.json").read_text())
    assert [entry["name"] for entry in manifest["pieces"]] == [piece.name for piece in pieces]
    assert checkpoint.PIECE == 15_000_000
    assert checkpoint.how_far(run) == "epoch 0 of 4"
    assert checkpoint.recipe_of(run) == RECIPE


def test_a_copy_goes_on_as_the_run_would(run, copied, tmp_path):
    """Copied one piece at a time, as bytes: neither times nor rights matter."""
    elsewhere = tmp_path / "elsewhere"
    for file in run.rglob("*"):
        if file.is_file():
            target = elsewhere / file.relative_to(run)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    finished(elsewhere)
    finished(copied)
    whole = train(RECIPE, splits(), device="cpu", folder=tmp_path / "whole", watch=WatchSettings(monitor=0))
    for folder in (elsewhere, copied):
        assert not (folder / "checkpoint").exists()
        for name, value in read_file(folder / loop.MODEL)[0].items():
            assert torch.equal(value, read_file(whole.folder / loop.MODEL)[0][name]), name


def cuts():
    """Places to cut a file of so many bytes, the ends among them."""
    draw = random.Random(0)
    return lambda size: {0, 1, size - 1, *(draw.randrange(size) for _ in range(6))}


def test_cut_off_anywhere_it_gives_way_to_the_one_before(copied):
    newest, before = copied / "checkpoint" / "000002", copied / "checkpoint" / "000001"
    places = cuts()
    for file in sorted(newest.iterdir()):
        whole = file.read_bytes()
        for size in places(len(whole)):
            file.write_bytes(whole[:size])
            found = checkpoint.load(copied, RECIPE)
            assert found.path == before, f"{file.name} cut to {size} of {len(whole)}"
            assert int(found.arrays["position"]) == 1
            (said,) = found.damaged
            assert str(file) in said
        file.unlink()
        assert f"{file} is missing" in checkpoint.load(copied, RECIPE).damaged[0]
        file.write_bytes(whole)
    assert checkpoint.load(copied, RECIPE).path == newest


def test_one_bit_that_differs_is_found(copied):
    newest = copied / "checkpoint" / "000002"
    draw = random.Random(1)
    for file in sorted(newest.iterdir()):
        whole = file.read_bytes()
        for _ in range(4):
            changed = bytearray(whole)
            changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            file.write_bytes(changed)
            assert file.name in checkpoint.load(copied, RECIPE).damaged[0]
        file.write_bytes(whole)


def test_what_a_run_ran_on_is_known_where_it_goes_on(copied, monkeypatch):
    """Of a process that died before its first checkpoint nothing counts, and nothing is said."""
    monkeypatch.setattr(training_run, "hardware_name", lambda _device: "another machine")
    with (copied / "machines.jsonl").open("a") as log:
        log.write('{"from_step": 2, "hardware": "a machine that died"}\n')
    machines = finished(copied).machines
    here = hardware_name(torch.device("cpu"))
    assert [(machine["from_step"], machine["hardware"]) for machine in machines] == [
        (0, here), (1, here), (2, "another machine"),
    ]  # fmt: skip
    assert finished(copied).machines == machines  # read from its files


def test_half_a_line_is_dropped_and_told_of(run, copied):
    """As a power cut may leave it: the next line is not glued to it."""
    told = []
    log = copied / "machines.jsonl"
    log.write_bytes(log.read_bytes()[:-10])
    train(RECIPE, splits(), device="cpu", folder=copied, resume=True, minutes=0, on_message=told.append)
    assert told == [f"{log} is shorter than its checkpoint says: what it lacks is lost, the run is not"]
    before, after = (logs.read(folder / log.name) for folder in (run, copied))
    assert after == [before[0], {**before[0], "from_step": 2}]


def test_a_log_that_is_no_file_is_refused(copied):
    (copied / "machines.jsonl").unlink()
    os.mkfifo(copied / "machines.jsonl")
    with pytest.raises(
        InputError, match=r"machines.jsonl is no plain file, and the run's log goes there; move it away"
    ):
        finished(copied)


@pytest.mark.parametrize("name", [logs.EPOCHS, logs.SMOOTHING, logs.MACHINES])
def test_a_file_of_somebody_elses_is_not_written_over(tmp_path, name):
    for theirs in (b'{"rows": 3}\n', b"notes\n", b'{"epochs": 1}\n', b"\x00" * 40, b"\n"):
        (tmp_path / name).write_bytes(theirs)
        with pytest.raises(InputError, match=r"is not the log of a run, and the run's log goes there; move it away"):
            train(RECIPE, splits(), device="cpu", folder=tmp_path, minutes=0)
        assert (tmp_path / name).read_bytes() == theirs


@pytest.mark.parametrize("begun", [b"", b'{"ep', b'{"epoch": 1, "step"', b'{"epoch": 1, "step": 5}\n{"retry": 1}\n'])
def test_what_a_run_left_that_was_killed_before_its_first_checkpoint_is_begun_anew(tmp_path, begun):
    (tmp_path / logs.EPOCHS).write_bytes(begun)
    result = train(RECIPE, splits(), device="cpu", folder=tmp_path)
    assert logs.read(tmp_path / logs.EPOCHS) == result.epochs
    assert [row["epoch"] for row in result.epochs] == [1, 2, 3, 4]


def test_a_damaged_one_is_told_of_in_the_log_and_the_run_goes_on(copied):
    (copied / "checkpoint" / "000002" / "part-003").write_bytes(b"no")
    on_message = []
    assert finished(copied, on_message.append).finished
    assert len(on_message) == 1
    assert "part-003 is damaged (it has 2 bytes of 20,000): going on from" in on_message[0]
    assert "000001, at step 1" in on_message[0]
    rows = [json.loads(line) for line in (copied / "log.jsonl").read_text().splitlines()]
    assert "part-003 is damaged" in rows[0]["damaged"]
    assert [row["epoch"] for row in rows[1:]] == [1, 2, 3, 4]


def test_where_none_is_whole_the_piece_is_named(copied):
    for number in ("000001", "000002"):
        (copied / "checkpoint" / number / "part-002").unlink()
    with pytest.raises(InputError, match=r"000002.part-002 is missing, and the 1 before it too; copy the run again"):
        finished(copied)
    for number in ("000001", "000002"):
        (copied / "checkpoint" / number / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"000002.manifest\.json is missing"):
        train(RECIPE, splits(), device="cpu", folder=copied)


def test_a_manifest_names_pieces_of_its_own_folder_alone(copied, tmp_path):
    """Even one whose checksum was made to fit."""
    (tmp_path / "secret").write_bytes(b"x")
    newest = copied / "checkpoint" / "000002"
    body = json.loads((newest / "manifest.json").read_text())
    del body["sha256"]
    for wrong in (
        {"pieces": [{"name": "../../../secret", "bytes": 1, "sha256": ""}]},
        {"pieces": [{"name": "part-000"}]},
        {"pieces": 3},
        {"step": "x"},
        {"facts": {"logs": {"log.jsonl": "long"}}},
        {"facts": {"retries": [{"retry": 1}]}},
        {"recipe": {"epochs": "x"}},
    ):
        changed = {**body, **wrong}
        changed["sha256"] = checkpoint._sum(changed)
        (newest / "manifest.json").write_text(json.dumps(changed))
        found = checkpoint.load(copied, RECIPE)
        assert found.path.name == "000001", wrong
    changed = {**body, "version": 3}
    changed["sha256"] = checkpoint._sum(changed)
    (newest / "manifest.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match="of version 3 and this oversmooth reads version 2; update it"):
        checkpoint.load(copied, RECIPE)


def single(folder, **changes):
    """As versions before wrote it: one file, with the recipe and the facts in its metadata."""
    found = checkpoint.load(folder, RECIPE)
    metadata = {"version": "1", "recipe": json.dumps(RECIPE.to_dict()), "facts": json.dumps(found.facts)}
    arrays = {**found.arrays, **changes.pop("arrays", {})}
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    save_file({n: v for n, v in arrays.items() if v is not None}, folder / checkpoint.SINGLE, {**metadata, **changes})


def test_a_run_of_an_earlier_version_goes_on(copied, tmp_path):
    single(copied)
    assert checkpoint.how_far(copied) == "epoch 0 of 4"
    with pytest.raises(InputError, match="not finished; go on with --resume"):
        train(RECIPE, splits(), device="cpu", folder=copied)
    step = train(RECIPE, splits(), device="cpu", folder=copied, resume=True, minutes=0)
    assert step.step == 3
    assert (copied / checkpoint.SINGLE).is_file()  # it is the one before
    finished(copied)
    assert not (copied / checkpoint.SINGLE).exists()
    train(RECIPE, splits(), device="cpu", folder=tmp_path / "whole", watch=WatchSettings(monitor=0))
    ours, theirs = (read_file(f / loop.MODEL)[0] for f in (copied, tmp_path / "whole"))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": "[]"},
        {"facts": '{"seconds": "x"}'},
        {"facts": '{"logs": [1]}'},
        {"facts": "[" * 100_000},
        {"recipe": "{"},
        {"recipe": '{"shape": 4}'},
        {"recipe": "[" * 100_000},
        {"arrays": {"position": None}},
        {"arrays": {"position": torch.zeros(3)}},
        {"arrays": {"losses": torch.zeros(())}},
    ],
)
def test_metadata_that_is_none_of_ours_is_refused(copied, changes):
    single(copied, **changes)
    with pytest.raises(InputError, match=r"checkpoint\.safetensors.*start over"):
        finished(copied)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.head.weight", None),
        ("model.head.weight", torch.zeros(2, 2)),
        ("exp_avg.head.weight", torch.zeros(1)),
        ("position", torch.tensor([10**9])),
        ("position", torch.tensor([-1])),
        ("generator.torch", torch.zeros(10, dtype=torch.uint8)),
        ("generator.order", torch.zeros(5056, dtype=torch.uint8)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(copied, name, value):
    single(copied, arrays={name: value})
    with pytest.raises(InputError, match="is damaged"):
        finished(copied)


def test_what_a_death_left_is_tidied(copied):
    left = [
        copied / "checkpoint" / ".000003-abcd" / "part-000",
        copied / ".checkpoint-gone" / "000001" / "part-000",
        copied / ".model-abcd.safetensors",
    ]
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half")
    (copied / ".mine").write_text("a user's own")
    assert finished(copied).finished
    assert sorted(file.name for file in copied.iterdir()) == [".mine", *LEFT]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="asks Linux which file is open")
def test_all_is_on_the_disk_before_a_name_changes(copied, monkeypatch):
    """A power cut keeps what was synced: the pieces and their folder before the rename, the rename before a removal."""
    synced, events = set(), []
    fsync, replace, rmtree = os.fsync, Path.replace, shutil.rmtree

    def note(handle):
        synced.add(Path(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def renamed(self, target):
        if self.is_dir():
            assert {self, *self.iterdir()} <= synced
            events.append(("renamed", Path(target)))
        return replace(self, target)

    def removed(path, **options):
        if Path(path).name == "000001":
            assert events
            assert events[-1][1].parent in synced
            events.append(("removed", Path(path)))
        rmtree(path, **options)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(checkpoint.shutil, "rmtree", removed)
    found = checkpoint.load(copied, RECIPE)
    checkpoint.save(copied, RECIPE, found.arrays, found.facts)
    assert [what for what, _ in events] == ["renamed", "removed"]
