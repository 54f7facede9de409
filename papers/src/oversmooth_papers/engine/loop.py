"""``train(task)``: one training run, from its first step to the saved model.

A run uses one process on a CPU or a GPU, or several under torchrun. Its result is that of the last epoch, not the best
one. Checkpoints follow the clock, not epochs: one after the first step, one a few seconds later, then one per minute.

Read `train`, then `Run.go`, `Run._epoch` and `Run.next_step`. `step` has a step's arithmetic, `checkpoint` the file.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oversmooth.safety import errors, precision
from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import hardware_name
from oversmooth.safety.processes import joined, number
from oversmooth.steering.reparametrized import SingularError
from oversmooth_papers.engine import checkpoint, lock, logs
from oversmooth_papers.engine.failure import Diverged, not_finite
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.result import Progress, Result, RunSettings, WatchSettings
from oversmooth_papers.engine.saved_model import load_model, notes_of, recipe_of, save_model, stored_as
from oversmooth_papers.engine.smoothing import Watcher
from oversmooth_papers.engine.step import Step
from oversmooth_papers.engine.stopping import REASONS, interruptible, reason
from oversmooth_papers.engine.task import Evaluation, Task

__all__ = ["MODEL", "Progress", "Result", "Reuse", "Run", "RunSettings", "WatchSettings", "train"]

MODEL = "model.safetensors"
SECONDS_BETWEEN_REPORTS = 0.2
_RETRIES = 3
_EARLY = (0.0, 10.0)  # seconds until the first two checkpoints of a run: most failures come early


def train(task: Task, settings: RunSettings | None = None, *, reuse: Reuse | None = None) -> Result:
    """Train as the task's recipe says.

    Ctrl-C stops a run at a checkpoint; a second Ctrl-C stops it at once. SIGTERM and SIGUSR2, which batch systems send
    before they take a machine back, stop it at a checkpoint too.

    Only one process writes to a folder. A folder whose writer has ended is taken over.

    reuse: pass the same object to several calls, and runs that differ only in the seed or in a method's strength share
    compiled code. Each result's model is then overwritten by the next run.
    """
    settings = settings or RunSettings()
    end = None if settings.minutes is None else time.monotonic() + 60 * settings.minutes
    device = device_named(settings.device)
    if settings.watch.tensorboard:
        logs.check_board()
    backend = "nccl" if device.type == "cuda" else "gloo"
    with joined(backend) as place, float32_products(device), ExitStack() as stack:
        ranks, writer = Ranks(*place), None
        if settings.folder is not None:
            folder = Path(settings.folder)
            if ranks.first:  # only the first process writes; if it fails here, torchrun ends the others
                writer = stack.enter_context(lock.held(folder, force=settings.force, on_message=settings.on_message))
            ranks.wait()  # for the first process, which may have to clean up after an earlier run
            if (finished := _finished(task, folder, settings.resume)) is not None:
                return finished
        try:
            return Run(task, device, ranks, settings, writer, reuse or Reuse()).go(end)
        except torch.OutOfMemoryError as error:
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else device
            what = f"a batch of {task.recipe.batch} does not fit into the memory of {name}"
            raise InputError(f"{what}; give a smaller batch") from error


def _finished(task: Task, folder: Path, resume: bool) -> Result | None:
    """The result of a finished run in this folder, if any; raises `InputError` for a run not to be overwritten."""
    path = folder / MODEL
    if (recorded := checkpoint.recipe_of(folder)) is not None:
        if resume:
            return None
        remedy = "go on with --resume, or name another directory"
        raise InputError(f"{folder} holds a run of {recorded.title}, not finished; {remedy}")
    if not path.is_file():
        return None
    if (recorded := recipe_of(path)) is None:
        raise InputError(f"{path} is no model that oversmooth train wrote; name another directory")
    if not resume:
        raise InputError(f"{folder} holds a finished run of {recorded.title}; name another directory")
    if (differs := recorded.difference(task.recipe)) is not None:
        raise InputError(f"{folder} holds a finished run of another recipe: {differs}; name another directory")
    notes, lines = notes_of(path), logs.read(folder / logs.EPOCHS)
    seconds = float(notes.pop("seconds", None) or 0)
    epochs = [line for line in lines if "epoch" in line]
    steps = epochs[-1].get("step", 0) if epochs else 0
    return Result(
        recipe=task.recipe,
        why="finished",
        step=steps,
        steps=steps,
        scores={name: value for name, value in notes.items() if value is not None},
        epochs=epochs,
        smoothing=logs.read(folder / logs.SMOOTHING),
        seconds=seconds,
        folder=folder,
        model=load_model(path, task.plain_model_of)[0],
        retries=[line for line in lines if "retry" in line],
        machines=logs.read(folder / logs.MACHINES),
    )


def device_named(name: str | torch.device | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise InputError(f"there is no device {name!r}; give cpu, cuda or cuda:1") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"device is {name} but torch finds no GPU here; give --device cpu")
        local = number("LOCAL_RANK", torch.cuda.current_device())  # torchrun: one GPU per process
        device = torch.device("cuda", local if device.index is None else device.index)
        if (count := torch.cuda.device_count()) <= (device.index or 0):
            raise InputError(f"device is {device} and there are {count} GPUs; give cuda:0 to cuda:{count - 1}")
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise InputError(f"device is {name}; training runs on cpu and cuda")
    return device


def float32_products(device: torch.device) -> Any:
    """On a GPU, let float32 products outside autocast use tensor cores."""
    return precision.float32_products("high") if device.type == "cuda" else nullcontext()


Parts = tuple[Step, Evaluation, Watcher | None]
"""What a run is built of, on the device, with the initial weights of the task's seed."""


class Reuse:
    """``Reuse()``, passed to successive calls of `train`: each reuses what the last one built, if it can.

    The next run overwrites the model of a result: copy it if you need it.
    """

    def __init__(self) -> None:
        self._last: tuple[Parts, tuple[Any, ...]] | None = None
        self.reused = 0  # runs that reused the parts of the one before

    def parts(self, task: Task, device: torch.device, ranks: Ranks, settings: RunSettings) -> Parts:
        """The last run's parts, reset to the beginning of this one, or new ones."""
        watch, compiled = settings.watch, settings.compiled
        needed = (device, watch.monitor, watch.watcher, compiled)
        if self._last and self._last[1] == needed and ranks.world == 1 and self._last[0][0].begin_again(task):
            self.reused += 1
            return self._last[0]
        self._last = None  # freed before new parts are built: memory may not hold both
        task.check_memory(device)
        model = task.model().to(device)
        step, evaluation = Step(task, model, device, ranks, compiled=compiled), task.evaluation(model, device)
        parts = step, evaluation, watch.watcher(task, model, device, watch.monitor) if watch.monitor else None
        self._last = parts, needed
        return parts


@dataclass
class Run:
    """One run in this process: its epochs, logs and checkpoints, and how it stops, resumes and retries."""

    task: Task
    device: torch.device
    ranks: Ranks
    settings: RunSettings = field(default_factory=RunSettings)
    lock: lock.Lock | None = None  # of the folder, if this process writes there
    reuse: Reuse = field(default_factory=Reuse)

    def __post_init__(self) -> None:
        settings, self.recipe = self.settings, self.task.recipe
        self.folder = None if settings.folder is None else Path(settings.folder)
        self.writes_to = self.folder if self.ranks.first else None
        self.signals: list[int] = []  # received, that ask the run to stop
        self.facts: checkpoint.Facts = {"seconds": 0.0, "epoch_seconds": 0.0, "scores": {}, "logs": {}, "retries": []}
        saved = None if self.folder is None else checkpoint.load(self.folder, self.recipe)
        self.step, self.evaluation, self.watcher = self.reuse.parts(self.task, self.device, self.ranks, settings)
        if saved is not None:
            self._restore(saved)
        for remark in self.step.remarks if self.ranks.first else ():
            settings.on_message(remark)
        self.step.draws.attempt = len(self.facts["retries"])
        board_from = self.step.done if settings.watch.tensorboard else None
        self.logs = logs.RunLogs(self.writes_to, self.facts["logs"], board_from=board_from)
        self.speed = 0.0  # units per second in the last full epoch
        self.timed_until = self.saved_at = time.monotonic()
        self.saves = 0 if saved is None else len(_EARLY)
        self.started_at: int | None = self.step.done  # where this process begins, until the log of machines has it
        self.agree_at = 0  # the step at which several processes next decide together whether to stop or save
        self.reported_at = 0.0
        # A step at or before the current one with the augmentation's state there: a failed batch is drawn from it.
        self.replay_from: tuple[int, Tensor] = (self.step.done, self.step.draws.augment.get_state())
        # Where a retry goes back to: the last checkpoint, or the beginning.
        self.last_checkpoint = (self.step.state(), self._facts()) if settings.on_nan == "retry" else None

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        """Load a checkpoint into the step; raises `InputError` for one of other data or another kind of device."""
        arrays = saved.arrays

        def fits(name: str, current: Tensor) -> bool:
            return name in arrays and (arrays[name].dtype, arrays[name].shape) == (current.dtype, current.shape)

        differs = [name for name, current in self.step.state().items() if not fits(name, current)]
        if differs == ["losses"] and arrays.get("losses", torch.zeros(())).dim() == 1:
            was = f"{self.folder} was trained with {len(arrays['losses'])} steps per epoch"
            raise InputError(f"{was} and these data give {self.step.steps}; give the data it began with")
        if differs == ["generator.order", "generator.augment"] and set(differs) <= arrays.keys():
            here, there = ("a GPU", "a CPU") if self.device.type == "cuda" else ("a CPU", "a GPU")
            was = f"{self.folder} was trained on {there}, whose random numbers {here} cannot go on with"
            raise InputError(f"{was}; resume it on {there}, or name another directory")
        try:
            if differs or not 0 <= int(arrays["position"]) <= self.step.total:
                raise ValueError(f"{differs[0] if differs else 'position'} does not fit the recipe")
            torch.set_rng_state(arrays["generator.torch"])
            self.step.load(arrays)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:  # torch checks the states of generators
            raise InputError(f"{saved.path} is damaged ({errors.reason(error)}); remove it to start over") from error
        self.facts |= saved.facts

    def go(self, end: float | None) -> Result:
        """Run to the last step, or until the time is up."""
        step, why = self.step, ""
        self.timed_until = self.saved_at = time.monotonic()
        with interruptible() as self.signals:
            while step.done < step.total and not why:
                try:
                    why = self._epoch(end)
                except Diverged as error:
                    self._retry(error)
            if not why:
                self._finish()
        self.logs.close()
        return Result(
            recipe=self.recipe,
            why=why or "finished",
            step=step.done,
            steps=step.total,
            scores={} if why else self.facts["scores"],
            epochs=self.logs.epoch_rows(),
            smoothing=self.logs.smoothing.rows,
            seconds=self.facts["seconds"],
            folder=self.folder,
            model=step.model,
            retries=[dict(retry) for retry in self.facts["retries"]],
            machines=self.logs.machines.rows,
        )

    def _epoch(self, end: float | None) -> str:
        """The rest of the current epoch; returns why the run stops here, or an empty string."""
        step = self.step
        inside = step.done % step.steps
        if inside == 0:
            step.begin_epoch()
        self.replay_from = (step.done, step.draws.augment.get_state())
        for _ in range(inside, step.steps):
            self.next_step()
            if step.done % step.steps == 0:
                self._end_epoch()
            if why := self._stop_or_save(end):
                return why
        return ""

    def next_step(self) -> None:
        """One step, and the snapshot of smoothing that is due after it."""
        try:
            self.step.run()
        except SingularError as error:  # inside a CUDA graph the weights become NaN instead
            raise Diverged(f"step {self.step.done + 1:,}: {error}") from None
        if self.started_at is not None:  # after the first step: a process that fails earlier logs nothing
            self._log_machine(self.started_at)
        done, every = self.step.done, self.settings.watch.monitor
        if self.device.type == "cpu":
            self._check()  # on a GPU once an epoch: reading the flag waits for the device
            self._report()
        is_due = self.ranks.first and every and (done % every == 0 or done in (1, self.step.total))
        if self.watcher is not None and is_due and (snapshot := self.watcher.snapshot(done)) is not None:
            self.logs.record(self.logs.smoothing, {"step": done, **snapshot})

    def _log_machine(self, step: int) -> None:
        row = {"from_step": step, "hardware": hardware_name(self.device), "torch": torch.__version__}
        if self.ranks.world > 1:
            row["processes"] = self.ranks.world
        if self.step.asked_to_compile and not self.step.compiled:
            row["compiled"] = False
        self.logs.machines.write(row)
        self.started_at = None

    def _check(self) -> None:
        if int(self.step.failed) >= 0:
            path = None if self.folder is None else checkpoint.newest(self.folder)
            raise not_finite(self.step, self.replay_from, "the beginning" if path is None else f"{path} with --resume")

    def _end_epoch(self) -> None:
        """Test the model if a test is due, and log the epoch."""
        step, recipe, evaluate = self.step, self.recipe, self.settings.watch.evaluate
        self._check()
        losses = self.ranks.mean(step.losses).tolist()  # waits for the device
        epoch = step.done // step.steps
        self._add_time()
        self.speed = step.steps * step.feed.units_per_step / max(self.facts["epoch_seconds"], 1e-9)
        row: dict[str, Any] = {"epoch": epoch, "step": step.done, "loss": sum(losses) / len(losses)}
        row["lr"] = step.rates[step.done - 1]
        if step.rising is not None:
            row["strength_share"] = step.rising.share(step.done)
        row |= {f"{recipe.unit}_per_s": round(self.speed, 1), "seconds": round(self.facts["seconds"], 3)}
        self.facts["epoch_seconds"] = 0.0
        every = max(1, recipe.total_epochs // 20) if evaluate is None else evaluate
        is_last = epoch == recipe.total_epochs
        if self.ranks.first and (is_last or (every > 0 and epoch % every == 0)):
            scores = dict(self.evaluation.scores(final=is_last))
            row |= scores
            self.facts["scores"] = scores
            self._add_time(training=False)
        self.logs.record(self.logs.epochs, row)
        self._report(row["loss"], force=True)

    def _stop_or_save(self, end: float | None) -> str:
        """Save if it is time; returns why the run stops here. Several processes decide together, at the same step."""
        step, interval = self.step, self.settings.watch.save
        if self.ranks.world > 1 and step.done % step.steps and step.done < self.agree_at:
            return ""  # deciding together makes all processes wait for each other
        wait = interval if self.saves >= len(_EARLY) else min(_EARLY[self.saves], interval)
        is_time = time.monotonic() - self.saved_at >= wait
        # The next decision is about a second away, by the first process's speed.
        pause = self._current_speed() / step.feed.units_per_step if self.ranks.first else 0.0
        why, save, pause = self.ranks.highest(REASONS.index(reason(self.signals, end)), is_time, pause)
        self.agree_at = step.done + max(1, round(pause))
        if step.done == step.total:
            return ""
        if why or save:
            self.save()
        return REASONS[round(why)]

    def save(self) -> None:
        """Write a checkpoint. Every process calls this; the first one writes."""
        self._check()
        self._add_time()
        losses = self.ranks.mean(self.step.losses).cpu()  # of all processes: each resumes from the same file
        if self.writes_to is not None or self.last_checkpoint is not None:
            state, facts = {**self.step.state(), "losses": losses}, self._facts()
            if self.last_checkpoint is not None:
                self.last_checkpoint = (state, facts)
            if self.writes_to is not None:
                self._check_lock()
                checkpoint.save(self.writes_to, self.recipe, state, facts)
        self._add_time(training=False)  # saving does not count towards an epoch's speed
        self.saves += 1
        self.saved_at = time.monotonic()

    def _check_lock(self) -> None:
        if self.lock is not None:
            self.lock.check()

    def _facts(self) -> checkpoint.Facts:
        """A copy of the current facts, for a checkpoint."""
        return {**self.facts, "logs": self.logs.sync(), "retries": list(self.facts["retries"])}

    def _retry(self, error: Diverged) -> None:
        """Return to the last checkpoint and continue with other random numbers, at most three times."""
        if self.last_checkpoint is None:
            raise error
        retries = self.facts["retries"]
        if len(retries) == _RETRIES:
            raise Diverged(f"{error}; {_RETRIES} times it went back to a checkpoint, with other draws, in vain")
        arrays, facts = self.last_checkpoint
        failed, back = int(self.step.failed), int(arrays["position"])
        at = 1 + (self.step.done if failed < 0 else failed)
        retry = checkpoint.Retry(retry=len(retries) + 1, failed_at_step=at, back_to_step=back, said=str(error))
        retries.append(retry)
        self.step.load(arrays)
        self.step.draw_anew(len(retries))
        self._add_time(training=False)  # failed steps do not count towards an epoch's speed
        self.facts["scores"], self.facts["epoch_seconds"] = facts["scores"], facts["epoch_seconds"]
        self.logs.go_back(facts["logs"], back)
        self.logs.epochs.write(dict(retry))
        self.save()  # a run resumed from here knows of the retry

    def _add_time(self, training: bool = True) -> None:
        """Count the time since the last call: in the run's seconds, and in the epoch's if it was spent on steps."""
        now = time.monotonic()
        spent, self.timed_until = now - self.timed_until, now
        self.facts["seconds"] += spent
        if training:
            self.facts["epoch_seconds"] += spent

    def _current_speed(self) -> float:
        """Units per second in the last full epoch; in the first epoch, so far."""
        if self.speed:
            return self.speed
        inside = (self.step.done - 1) % self.step.steps + 1
        seconds = self.facts["epoch_seconds"] + time.monotonic() - self.timed_until
        return inside * self.step.feed.units_per_step / max(1e-9, seconds)

    def _report(self, loss: float | None = None, force: bool = False) -> None:
        """Call `on_progress`, unless the last call was a moment ago."""
        now, on_progress = time.monotonic(), self.settings.on_progress
        if on_progress is None or not self.ranks.first:
            return
        if now - self.reported_at < SECONDS_BETWEEN_REPORTS and not force:
            return
        self.reported_at = now
        step, speed, recipe, rows = self.step, self._current_speed(), self.recipe, self.logs.epoch_rows()
        on_progress(
            Progress(
                step=step.done,
                steps=step.total,
                epoch=max(1, math.ceil(step.done / step.steps)),  # the last step of an epoch belongs to it
                epochs=recipe.total_epochs,
                speed=speed,
                unit=recipe.unit,
                seconds_left=(step.total - step.done) * step.feed.units_per_step / max(1e-9, speed),
                loss=rows[-1]["loss"] if loss is None and rows else loss,
                scores=recipe.describe(scores) if (scores := self.facts["scores"]) else "",
            )
        )

    def _finish(self) -> None:
        """Save the model, then remove the checkpoint."""
        if self.writes_to is not None:
            self._check_lock()
            model, notes = self.step.model, {**self.facts["scores"], "seconds": round(self.facts["seconds"], 1)}
            self.task.save_beside(model, self.writes_to)
            dtype, more = stored_as(model), self.task.metadata()
            save_model(model, self.recipe, self.writes_to / MODEL, dtype=dtype, notes=notes, more=more)
            checkpoint.remove(self.writes_to)
        self.ranks.wait()
