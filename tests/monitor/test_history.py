"""Histories on disk, alarms, sinks, and what bad input gets."""

import functools
import json
import re
import sys

import pytest
import torch
from support import watched
from support.nightly import nightly

import oversmooth
from oversmooth.monitor import History, JSONLines, Monitor, MonitorWarning, TensorBoard, WandB
from oversmooth.monitor.alarm import Alarms, Crossing
from oversmooth.monitor.names import keys


def step_through(monitor, model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model(watched.probe()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()


def test_a_run_that_restarts_from_a_checkpoint_has_no_step_twice(tmp_path):
    torch.manual_seed(0)
    model = watched.Own().eval()
    file = tmp_path / "run" / "smoothing.jsonl"
    file.parent.mkdir()
    settings = dict(probe=watched.probe(), every=2, blocks="layers.*")
    first = Monitor(model, history=file, **settings)
    step_through(first, model, 4)
    state = first.state_dict()
    step_through(first, model, 4)  # these steps are lost, and made again
    assert first.history.steps == [1, 2, 4, 6, 8]
    again = Monitor(model, history=file, resume=True, **settings)
    assert again.history.steps == [1, 2, 4, 6, 8]
    again.load_state_dict(state)
    assert again.history.steps == [1, 2, 4]
    step_through(again, model, 4)
    for history in (again.history, History.load(file), History.load(file.parent)):
        assert history.steps == [1, 2, 4, 6, 8]
    assert Monitor(model, history=file, resume=True, start=5, **settings).history.steps == [1, 2, 4]
    assert History.load(file).steps == [1, 2, 4]


def test_a_history_whose_last_line_was_cut_off_is_read_up_to_there(tmp_path):
    file = tmp_path / "smoothing.jsonl"
    file.write_text('{"step": 1, "cos": [0.5, null]}\n{"step": 2, "cos": [0.6, 0.7]}\n{"step": 3, "co')
    history = History.load(tmp_path)
    assert history.steps == [1, 2]
    assert history.curve("cos", 1) == [0.5, None]
    assert history.curve("cos") == [0.6, 0.7]
    with pytest.raises(oversmooth.InputError, match="'rank' was not recorded; there is cos"):
        history.curve("rank")


def test_a_run_that_goes_on_after_half_a_line_adds_nothing_to_it(tmp_path):
    file = tmp_path / "smoothing.jsonl"
    file.write_text('{"step": 1, "cos": [0.5]}\n{"step": 2, "co')
    history = History(file, resume=True)
    for step in (2, 3):
        history.add({"step": step, "cos": [0.1]})
    assert History.load(file).steps == [1, 2, 3]
    loaded = History.load(file)
    loaded.add({"step": 4, "cos": [0.2]})
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 2, 3, 4]


def test_what_an_earlier_run_wrote_is_kept_beside(tmp_path):
    (tmp_path / "smoothing.jsonl").write_text('{"step": 1, "cos": [0.5]}\n')
    history = History(tmp_path)
    assert len(history) == 0
    history.add({"step": 1, "cos": [0.1]})
    assert History.load(tmp_path / "smoothing-1.jsonl").curve("cos") == [0.5]
    assert History.load(tmp_path).curve("cos") == [0.1]


def test_to_pandas():
    history = History()
    history.about = {"blocks": ["layers.0"]}
    history.add({"step": 1, "cos": [0.1, 0.2], "asymmetry": [1.0], "verified": 1.0})
    history.add({"step": 5, "cos": [0.3, None]})
    frame = history.to_pandas()
    assert list(frame.columns) == ["step", "depth", "layer", "cos", "asymmetry", "verified"]
    assert frame["layer"].tolist() == ["embedding", "layers.0"] * 2
    assert frame["cos"].tolist()[:3] == [0.1, 0.2, 0.3]
    assert frame["asymmetry"].isna().tolist() == [True, False, True, True]


def test_keys_are_few_and_plain_floats():
    flat = keys({"step": 3, "cos": [0.1, None, 0.3], "asymmetry": [1.0, 2.0], "verified": 1.0})
    assert flat == {
        "oversmooth/cos/layer_00": 0.1,
        "oversmooth/cos/layer_02": 0.3,
        "oversmooth/last/cos": 0.3,
        "oversmooth/asymmetry/layer_01": 1.0,
        "oversmooth/asymmetry/layer_02": 2.0,
        "oversmooth/mean/asymmetry": 1.5,
        "oversmooth/steering/verified": 1.0,
    }
    assert all(type(value) is float for value in flat.values())


ALARMS = [
    (dict(above=0.95), [0.9, 0.96, 0.97, 0.9, 0.96], [2, 5]),
    (dict(below=0.5), [0.6, 0.4, 0.4], [2]),
    (dict(falls_by=10), [1.0, 0.2, 0.09, 0.05, 0.5, 0.01], [3, 6]),
    (dict(rises_by=2), [1.0, 1.9, 2.1], [3]),
]


@pytest.mark.parametrize(("bound", "values", "steps"), ALARMS)
def test_alarms_go_off_where_the_bound_is_crossed_and_not_again_until_it_came_back(bound, values, steps):
    alarms = Alarms([oversmooth.Alarm("cos", **bound, then=lambda _: None)], lambda act, _: act(), pytest.fail)
    for step, v in enumerate(values, 1):
        alarms.check({"step": step, "cos": [v]})
    assert [crossing.step for crossing in alarms.crossings] == steps


def test_alarms_look_where_they_are_told():
    row = {"step": 1, "cos": [0.1, 0.99, 0.2]}
    assert oversmooth.Alarm("cos", above=0.9).crossing(row)[0].depth == 1
    assert oversmooth.Alarm("cos", above=0.9, depth=-1).crossing(row)[0] is None
    assert oversmooth.Alarm("cos", above=0.9, depth=-2).crossing(row)[0].value == 0.99
    assert oversmooth.Alarm("asymmetry", above=0.5).crossing({"step": 1, "asymmetry": [0.1, 0.9]})[0].depth == 2
    assert oversmooth.Alarm("cos", above=0.9).crossing({"step": 1})[0] is None


def test_alarms_warn_call_and_stop():
    heard: list[Crossing] = []
    model = watched.Own()
    alarms = [
        oversmooth.Alarm("cos", above=-2),
        oversmooth.Alarm("effective_rank", below=100, then=heard.append),
        oversmooth.Alarm("hfc_lfc", above=0, then="stop"),
    ]
    monitor = Monitor(model, probe=watched.probe(), blocks="layers.*", alarms=alarms)
    with pytest.warns(MonitorWarning) as caught:
        monitor.step()
    assert [str(w.message).partition(":")[0] for w in caught] == ["alarm at step 1"] * 2
    assert "training is asked to stop" in str(caught[1].message)
    assert heard[0].metric == "effective_rank"
    assert monitor.should_stop


def test_an_alarm_of_two_monitors_or_of_a_run_that_is_taken_back_begins_anew():
    model, alarm = watched.Own(), oversmooth.Alarm("cos", above=-2, then=lambda _: None)
    for _ in range(2):
        monitor = Monitor(model, probe=watched.probe(), every=1, blocks="layers.*", alarms=alarm)
        start = monitor.state_dict()
        monitor.step()
        monitor.load_state_dict(start)
        monitor.step()
        assert [crossing.step for crossing in monitor.crossings] == [1, 1]


def test_an_alarm_names_the_depth_that_fell_by_most():
    alarm = oversmooth.Alarm("hfc_lfc", falls_by=1.5)
    _, memory = alarm.crossing({"step": 0, "hfc_lfc": [4.0, 1.0]})
    assert alarm.crossing({"step": 1, "hfc_lfc": [2.0, 0.01]}, memory)[0].depth == 1


def test_an_alarm_that_can_never_go_off_is_named():
    alarm = oversmooth.Alarm("cos", above=0.9, depth=9)
    with pytest.raises(oversmooth.InputError, match="depth of an alarm for cos is 9 and there are 3 blocks"):
        Monitor(watched.Own(), use_training_batch=True, blocks="layers.*", alarms=alarm)
    with pytest.warns(MonitorWarning, match="an alarm cannot go off: depth of an alarm for cos is 9 and there are 3"):
        Monitor(watched.Own(), probe=watched.probe(), blocks="layers.*", alarms=alarm).snapshot(1)
    assert oversmooth.Alarm("verified", below=0.5).crossing({"step": 3, "verified": 0.0})[0].text == (
        "step 3: whether every promise of steering holds is 0, below 0.5"
    )


def test_a_probe_is_the_monitors_own():
    class Writes(watched.Own):
        def forward(self, x):
            return super().forward(x.mul_(2).add_(1))

    x = watched.probe()
    before = x.clone()
    monitor = Monitor(Writes(), probe=x, blocks="layers.*")
    first = monitor.snapshot(1)
    assert torch.equal(x, before)
    x.add_(3)
    assert monitor.snapshot(2)["cos"] == first["cos"]


def test_spectra_are_those_of_full_precision_inside_autocast():
    monitor = Monitor(watched.Known(), probe=watched.probe(), spectra=1)
    plain = monitor.snapshot(1)
    with torch.autocast("cpu", torch.bfloat16):
        inside = monitor.snapshot(2)
    assert [inside[name] for name in ("rho_smooth", "asymmetry")] == [plain["rho_smooth"], plain["asymmetry"]]


def test_sinks_get_every_look(tmp_path):
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    got = []
    sinks = [
        TensorBoard(tmp_path / "board"),
        JSONLines(tmp_path / "new" / "looks.jsonl"),
        lambda step, values: got.append((step, values)),
    ]
    model = watched.Own()
    with Monitor(model, probe=watched.probe(), every=2, blocks="layers.*", sinks=sinks) as monitor:
        step_through(monitor, model, 4)
    assert [step for step, _ in got] == [1, 2, 4]
    assert got[-1][1] == keys(monitor.history.rows[-1])
    lines = [json.loads(line) for line in (tmp_path / "new" / "looks.jsonl").read_text().splitlines()]
    assert lines == [{"step": step, **values} for step, values in got]
    board = tensorboard.EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    scalars = board.Scalars("oversmooth/cos/layer_03")
    assert [one.step for one in scalars] == [1, 2, 4]
    assert scalars[-1].value == pytest.approx(got[-1][1]["oversmooth/cos/layer_03"], rel=1e-6)


def test_weights_and_biases_gets_looks_with_the_users_own_lines():
    run = Run()
    model = watched.Own()
    with Monitor(model, probe=watched.probe(), every=1, blocks="layers.*", sinks=WandB(run, own_lines=True)) as monitor:
        for step in range(1, 6):
            monitor.step()
            if step in (2, 3):
                run.log({"loss": step})
    assert ("oversmooth/*", "oversmooth/step") in run.defined
    assert [line["oversmooth/step"] for line in run.lines] == [1, 2, 3, 4, 5]  # none is lost, none is there twice
    assert [line.get("loss") for line in run.lines] == [None, 2, 3, None, None]
    run = Run()
    monitor = Monitor(model, probe=watched.probe(), every=1, blocks="layers.*", sinks=run)
    with pytest.warns(MonitorWarning, match="W&B receives fewer lines than there are snapshots") as caught:
        step_through(monitor, model, 3)
    assert len(caught) == 1
    assert run.step == 0  # the user's own count of lines is the user's
    monitor.close()
    assert [line["oversmooth/step"] for line in run.lines] == [3]


class Run:
    """A W&B run as far as lines go: what is not committed joins the next line, and is lost in the end."""

    def __init__(self):
        self.lines, self.open, self.defined, self.step = [], {}, [], 0

    def define_metric(self, name, step_metric=None):
        self.defined.append((name, step_metric))

    def log(self, values, commit=True):
        self.open |= values
        if commit:
            self.lines.append(self.open)
            self.open, self.step = {}, self.step + 1


@nightly
def test_a_real_run_of_weights_and_biases_has_every_look(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=tmp_path, project="x")
    with Monitor(
        watched.Own(), probe=watched.probe(), every=2, blocks="layers.*", sinks=WandB(own_lines=True)
    ) as monitor:
        for step in range(1, 11):
            monitor.step()
            if step % 5 == 0:
                run.log({"loss": step})
    run.finish()
    (file,) = {path.resolve() for path in tmp_path.glob("wandb/offline*/*.wandb")}
    text = file.read_bytes()
    steps = [int(found) for found in re.findall(rb"oversmooth/step\x12?[^0-9]{0,4}(\d+)", text)]
    assert {1, 2, 4, 6, 8, 10} <= {*steps}


def test_a_sink_that_cannot_close_or_says_something_else_each_time_is_named_once(tmp_path):
    class Full(TensorBoard):
        def __call__(self, step, _values):
            raise OSError(28, f"No space left for step {step}")

        def close(self):
            raise OSError(28, "No space left on device")

    sink = Full(type("Writer", (), {"add_scalar": None})())
    model = watched.Own()
    monitor = Monitor(model, probe=watched.probe(), every=1, blocks="layers.*", sinks=sink)
    with pytest.warns(MonitorWarning) as caught:  # noqa: PT031 (every one of them)
        step_through(monitor, model, 3)
        monitor.close()
    assert [str(one.message) for one in caught if "logger" in str(one.message)] == [monitor.failures[0]]
    assert monitor.history.steps == [1, 2, 3]
    (tmp_path / "file").write_text("")
    with pytest.raises(oversmooth.InputError, match="TensorBoard cannot write to"):
        TensorBoard(tmp_path / "file")


def test_what_is_due_follows_from_the_step_alone():
    """The same in a process that knows nothing of those before a restart."""
    known = watched.Known()
    monitor = Monitor(known, watched.probe(), spectra=5)
    assert [step for step in range(1, 13) if "asymmetry" in monitor.snapshot(step)] == [1, 6, 11]  # by hand
    settings = dict(probe=watched.probe(), every=2, spectra=2)
    whole, later = Monitor(known, **settings), Monitor(known, start=5, **settings)
    step_through(whole, known, 12)
    step_through(later, known, 7)
    seen = [[row["step"] for row in one.history.rows if "asymmetry" in row] for one in (whole, later)]
    assert seen[1] == [step for step in seen[0] if step > 5]


def test_a_run_that_is_gone_on_with_and_says_no_step_keeps_all_it_has(tmp_path, monkeypatch):
    settings = dict(probe=watched.probe(), every=2, blocks="layers.*", history=tmp_path)
    model = watched.Own()
    step_through(Monitor(model, **settings), model, 6)
    again = Monitor(model, resume=True, **settings)
    assert again.steps == 6
    step_through(again, model, 2)
    assert History.load(tmp_path).steps == [1, 2, 4, 6, 8]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(oversmooth.InputError, match="give start="):
        Monitor(model, resume=True, **settings)


def test_alarms_that_stop_one_process_and_not_the_others_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    stop = oversmooth.Alarm("cos", above=0.5, then="stop")
    with pytest.raises(oversmooth.InputError, match="give together=True"):
        Monitor(watched.Known(), use_training_batch=True, alarms=stop)
    for settings in (dict(together=True), dict(together=False)):
        Monitor(watched.Known(), use_training_batch=True, alarms=stop, **settings).close()
    Monitor(watched.Known(), watched.probe(), alarms=stop)  # the same batch and weights everywhere


def test_a_disk_that_is_full_does_not_end_the_training(tmp_path, monkeypatch):
    model = watched.Own()
    monitor = Monitor(model, probe=watched.probe(), every=1, blocks="layers.*", history=tmp_path / "s.jsonl")
    monitor.step()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.open", full)
    with pytest.warns(MonitorWarning, match=r"cannot be written .*No space left on device.*memory alone"):
        step_through(monitor, model, 3)
    assert monitor.history.steps == [1, 2, 3, 4]


class Missing:
    """A library that is not installed."""

    def __init__(self, *names):
        self.names = names

    def find_spec(self, name, *_):
        if name.startswith(self.names):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def refused():
    model, x = watched.Own(), watched.probe()
    known = watched.Known()
    yield "no probe", lambda: Monitor(known), "there is no probe; give probe=batch"
    yield "both", lambda: Monitor(known, x, use_training_batch=True), "choose one of them"
    yield (
        "no such blocks",
        lambda: Monitor(model, x, blocks="blocks.*"),
        r"is called 'blocks\.\*'; choose such as 'layers",
    )
    yield "spectra", lambda: Monitor(model, x, blocks="layers.*", spectra=1), "spectra need attention that is known"
    yield (
        "joined",
        lambda: Monitor(model, x, blocks="layers.*", joined=1),
        "joined spectra need attention that is known",
    )
    for what, words in (("parts", "changes by part"), ("joined", "joined spectra")):
        call = functools.partial(Monitor, known, use_training_batch=True, **{what: 1})
        yield f"{what} in passing", call, f"{words} cannot be had of the training batch"
    yield "alarm", lambda: oversmooth.Alarm("loss", above=1), "an alarm's metric is 'loss'; choose one of hfc_lfc"
    yield "ranks", lambda: Monitor(known, x, ranks=0, tokens="stable_rank"), "ranks is 0 and tokens ask for ranks alone"
    yield (
        "not watched",
        lambda: Monitor(known, x, alarms=oversmooth.Alarm("abs_cos", above=0)),
        "an alarm is for abs_cos, which is not recorded",
    )
    yield "no run", lambda: History.load("nowhere"), "nowhere has no smoothing.jsonl; give the directory of a run"


@pytest.mark.parametrize(("call", "sentence"), [case[1:] for case in refused()], ids=[case[0] for case in refused()])
def test_bad_input_gets_one_sentence(call, sentence):
    with pytest.raises(oversmooth.InputError, match=sentence) as caught:
        call()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("make", "library"), [(lambda: TensorBoard("there"), "tensorboard"), (WandB, "wandb")])
def test_a_logger_that_is_not_installed_is_named(make, library, monkeypatch):
    for name in [name for name in sys.modules if name.startswith((library, "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(library, "torch.utils.tensorboard"), *sys.meta_path])
    with pytest.raises(oversmooth.InputError, match=f"{library}, which is not installed; pip install {library}"):
        make()


def test_a_probe_on_another_device_is_moved():
    model = watched.Own().double()
    assert Monitor(model, probe=watched.probe().float(), blocks="layers.*").snapshot(1) is not None


def test_gradients_of_a_probe_without_a_loss_are_left_out_with_a_sentence():
    monitor = Monitor(watched.Own(), probe=watched.probe(), blocks="layers.*", gradients=1)
    with pytest.warns(MonitorWarning, match="the probe comes without a loss"):
        row = monitor.snapshot(1)
    assert "cos" in row
    assert "gradient_norm" not in row
