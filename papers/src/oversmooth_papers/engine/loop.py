"""``train(task)``: a run on a device, in a folder, from its first step to the model that it leaves.

One process on a CPU or a GPU, or many under torchrun. The result is that of the last epoch, never of the best one.
Checkpoints belong to the clock, not to epochs: the first after the first step, the next a few seconds later, and then
one per minute, within epochs too.

Read `train`, then `Run.go`, `Run._epoch` and `Run._one`; what a step does is in `step`, what a file holds in
`checkpoint`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oversmooth.safety import errors, precision
from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import hardware_name
from oversmooth.steering.reparametrized import SingularError
from oversmooth_papers.engine import checkpoint, lock, logs
from oversmooth_papers.engine.failure import Diverged, not_finite
from oversmooth_papers.engine.ranks import Ranks, joined, number
from oversmooth_papers.engine.result import ON_NAN, OnNan, Progress, Result, WatchSettings
from oversmooth_papers.engine.saved_model import load_model, notes_of, recipe_of, save_model, stored_as
from oversmooth_papers.engine.smoothing import Watcher
from oversmooth_papers.engine.step import Step
from oversmooth_papers.engine.stopping import REASONS, interruptible, reason
from oversmooth_papers.engine.task import Evaluation, Task

__all__ = ["MODEL", "Progress", "Result", "Reuse", "Run", "WatchSettings", "train"]

MODEL = "model.safetensors"
_RETRIES = 3
_EARLY = (0.0, 10.0)  # seconds until the first two checkpoints of a run: much goes wrong at the beginning


def train(
    task: Task,
    *,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    minutes: float | None = None,
    watch: WatchSettings | None = None,
    progress: Callable[[Progress], None] | None = None,
    compiled: bool | None = None,
    on_nan: OnNan = "stop",
    force: bool = False,
    on_message: Callable[[str], None] | None = None,
    reuse: Reuse | None = None,
) -> Result:
    """Train as the task's recipe says.

    folder: for logs, the checkpoint and the model; without one nothing is written.

    resume: go on where the checkpoint in the folder is, or begin if there is none. minutes: stop at a checkpoint after
    so long. Ctrl-C does the same; pressed again, it stops at once. So do SIGTERM and SIGUSR2, by which batch systems
    ask for the machine. compiled: by default on a GPU. on_message: receives sentences on the way, such as that compiled
    code is not used.

    A folder has one writer. One whose writer is gone is taken over; force takes it over whoever writes there.

    on_nan: when a step is not finite, "stop" says which layer was the first; "retry" goes back to the last checkpoint,
    or the beginning, and on with other draws, three times at most, and says so in the log and in the result.

    reuse: given to several calls, lets runs that differ in the seed, or in the strength of a method, share what was
    compiled; each result's model is then the next run's too.
    """
    if on_nan not in ON_NAN:
        raise InputError(f"on_nan is {on_nan!r}; choose 'stop' or 'retry'")
    if minutes is not None and not minutes >= 0:
        raise InputError(f"minutes is {minutes}; give 0 or more")
    end = None if minutes is None else time.monotonic() + 60 * minutes
    device, watch = device_named(device), watch or WatchSettings()
    if watch.tensorboard:
        logs.check_board()
    where = None if folder is None else Path(folder)
    with joined(device) as ranks, float32_products(device), ExitStack() as stack:
        mine = None
        if where is not None:
            if ranks.first:  # which alone writes; if it cannot have the folder, it ends, and torchrun ends the others
                mine = stack.enter_context(lock.held(where, force=force, on_message=on_message))
            ranks.wait()  # until the first has the folder, and has written what a run before this one left there
            if (finished := _finished(task, where, resume)) is not None:
                return finished
        try:
            return Run(
                task, device, where, ranks, watch, progress, compiled, on_nan, on_message, mine, reuse or Reuse()
            ).go(end)
        except torch.OutOfMemoryError as error:
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else device
            raise InputError(
                f"a batch of {task.recipe.batch} does not fit into the memory of {name}; give a smaller batch"
            ) from error


def _finished(task: Task, folder: Path, resume: bool) -> Result | None:
    """The run in this folder if it is over; raises `InputError` for one that must not be overwritten."""
    path = folder / MODEL
    if (recorded := checkpoint.recipe_of(folder)) is not None:
        if resume:
            return None
        raise InputError(
            f"{folder} holds a run of {recorded.title}, not finished; go on with --resume, or name another directory"
        )
    if not path.is_file():
        return None
    if (recorded := recipe_of(path)) is None:
        raise InputError(f"{path} is no model that oversmooth train wrote; name another directory")
    if not resume:
        raise InputError(f"{folder} holds a finished run of {recorded.title}; name another directory")
    if (differs := recorded.difference(task.recipe)) is not None:
        raise InputError(f"{folder} holds a finished run of another recipe: {differs}; name another directory")
    notes, lines = notes_of(path), logs.read(folder / logs.EPOCHS)
    epochs = [line for line in lines if "epoch" in line]
    steps = epochs[-1].get("step", 0) if epochs else 0
    return Result(
        recipe=task.recipe,
        why="finished",
        step=steps,
        steps=steps,
        scores={name: value for name, value in notes.items() if name != "seconds" and value is not None},
        epochs=epochs,
        smoothing=logs.read(folder / logs.SMOOTHING),
        seconds=float(notes.get("seconds") or 0),
        folder=folder,
        model=load_model(path, lambda _recipe: task.plain_model())[0],
        retries=[line for line in lines if "retry" in line],
        machines=logs.read(folder / logs.MACHINES),
    )


def device_named(name: str | torch.device | None) -> torch.device:
    """By default the GPU if there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise InputError(f"there is no device {name!r}; give cpu, cuda or cuda:1") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"device is {name} but torch finds no GPU here; give --device cpu")
        own = number("LOCAL_RANK", torch.cuda.current_device())  # torchrun: a GPU for each process
        device = torch.device("cuda", own if device.index is None else device.index)
        if (count := torch.cuda.device_count()) <= (device.index or 0):
            raise InputError(f"device is {device} and there are {count} GPUs; give cuda:0 to cuda:{count - 1}")
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise InputError(f"device is {name}; training runs on cpu and cuda")
    return device


def float32_products(device: torch.device) -> Any:
    """What autocast leaves in float32 may use tensor cores on a GPU."""
    return precision.float32_products("high") if device.type == "cuda" else nullcontext()


Parts = tuple[Step, Evaluation, Watcher | None]
"""What a run is built of, on the device, with the weights that the task's seed gives."""


class Reuse:
    """``Reuse()``, given to one `train` after the other: each takes over what the last one built, where it can.

    The model of a result belongs to the next run then: keep a copy of what is to be kept.
    """

    def __init__(self) -> None:
        self._last: tuple[Parts, tuple[Any, ...]] | None = None
        self.reused = 0
        """How often something was taken over."""

    def parts(
        self, task: Task, device: torch.device, ranks: Ranks, watch: WatchSettings, compiled: bool | None
    ) -> Parts:
        """The last run's, put to the beginning of this one, or new ones."""
        asked = (device, watch.monitor, watch.watcher, compiled)
        if self._last and self._last[1] == asked and ranks.world == 1 and self._last[0][0].begin_again(task):
            self.reused += 1
            return self._last[0]
        self._last = None  # before others are built: two may not fit
        task.check_memory(device)
        model = task.model().to(device)
        step, evaluation = Step(task, model, device, ranks, compiled=compiled), task.evaluation(model, device)
        parts = step, evaluation, watch.watcher(task, model, device, watch.monitor) if watch.monitor else None
        self._last = parts, asked
        return parts


@dataclass
class Run:
    """One run in this process: its epochs, what is logged and saved on the way, and how it stops and goes on."""

    task: Task
    device: torch.device
    folder: Path | None
    ranks: Ranks
    watch: WatchSettings
    progress: Callable[[Progress], None] | None
    compiled: bool | None
    on_nan: OnNan = "stop"
    on_message: Callable[[str], None] | None = None
    """Receives sentences that a user should see."""
    lock: lock.Lock | None = None
    """Of the folder, where this process writes."""
    reuse: Reuse = field(default_factory=lambda: Reuse())

    def __post_init__(self) -> None:
        self.recipe = self.task.recipe
        self.writes = self.folder if self.ranks.first else None
        self.received: list[int] = []
        """Signals to stop."""
        self.facts: checkpoint.Facts = {"seconds": 0.0, "epoch_seconds": 0.0, "scores": {}, "logs": {}, "retries": []}
        """What a checkpoint holds beside arrays."""
        saved = None if self.folder is None else checkpoint.load(self.folder, self.recipe)
        parts = self.reuse.parts(self.task, self.device, self.ranks, self.watch, self.compiled)
        self.step, self.evaluation, self.watcher = parts
        if saved is not None:
            self._take_up(saved)
        if self.on_message is not None and self.ranks.first:
            for remark in self.step.remarks:
                self.on_message(remark)
        self.step.attempt = len(self.facts["retries"])
        self.logs = [
            logs.Log(self.writes, name, self.facts["logs"].get(name, 0))
            for name in (logs.EPOCHS, logs.SMOOTHING, logs.MACHINES)
        ]
        self.log, self.smoothing, self.machines = self.logs
        self.board = logs.Board(self.writes, self.step.done) if self.watch.tensorboard and self.writes else None
        self.speed = 0.0
        """Units per second in the epoch before."""
        self.since = self.saved_at = time.monotonic()
        self.saves = 0 if saved is None else len(_EARLY)
        self.from_step: int | None = self.step.done
        """Where this process takes the run up, until that is in the log of machines."""
        self.ask_at = 0
        """The step at which processes ask each other next."""
        self.told_at = 0.0
        self.mark: tuple[int, Tensor] = (self.step.done, self.step.generator.get_state())
        self.kept = (self.step.state(), self._facts()) if self.on_nan == "retry" else None
        """The last checkpoint, or the beginning, to go back to."""

    def _take_up(self, saved: checkpoint.Checkpoint) -> None:
        """Put the step where the checkpoint is; raises `InputError` for one of other data or another kind of device."""
        arrays = saved.arrays

        def fits(name: str, own: Tensor) -> bool:
            return name in arrays and (arrays[name].dtype, arrays[name].shape) == (own.dtype, own.shape)

        differs = [name for name, own in self.step.state().items() if not fits(name, own)]
        if differs == ["losses"] and "losses" in arrays and arrays["losses"].dim() == 1:
            raise InputError(
                f"{self.folder} was trained with {len(arrays['losses'])} steps per epoch and these data give "
                f"{self.step.steps}; give the data it began with"
            )
        if differs == ["generator.order", "generator.augment"] and set(differs) <= arrays.keys():
            here, there = ("a GPU", "a CPU") if self.device.type == "cuda" else ("a CPU", "a GPU")
            raise InputError(
                f"{self.folder} was trained on {there}, whose random numbers {here} cannot go on with; "
                f"resume it on {there}, or name another directory"
            )
        try:
            if differs or not 0 <= int(arrays["position"]) <= self.step.total:
                raise ValueError(f"{differs[0] if differs else 'position'} does not fit the recipe")
            torch.set_rng_state(arrays["generator.torch"])
            self.step.load(arrays)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:  # torch looks into generators' states
            raise InputError(f"{saved.path} is damaged ({errors.reason(error)}); remove it to start over") from error
        self.facts |= saved.facts

    def go(self, end: float | None) -> Result:
        """To the end, or until the time is up."""
        step, why = self.step, ""
        self.since = self.saved_at = time.monotonic()
        with interruptible() as self.received:
            while step.done < step.total and not why:
                try:
                    why = self._epoch(end)
                except Diverged as error:
                    self._go_back(error)
            if not why:
                self._finish()
        if self.board is not None:
            self.board.close()
        return Result(
            recipe=self.recipe,
            why=why or "finished",
            step=step.done,
            steps=step.total,
            scores={} if why else self.facts["scores"],
            epochs=self._epochs(),
            smoothing=self.smoothing.rows,
            seconds=self.facts["seconds"],
            folder=self.folder,
            model=step.model,
            retries=[dict(retry) for retry in self.facts["retries"]],
            machines=self.machines.rows,
        )

    def _epoch(self, end: float | None) -> str:
        """The rest of an epoch, or as far as the time allows; why the run stops here, if it does."""
        step = self.step
        inside = step.done % step.steps
        if inside == 0:
            step.begin_epoch()
        self.mark = (step.done, step.generator.get_state())
        for _ in range(inside, step.steps):
            self._one()
            if step.done % step.steps == 0:
                self._end_epoch()
            if why := self._stop_or_save(end):
                return why
        return ""

    def _one(self) -> None:
        """One step, and the snapshot of smoothing that is due after it."""
        try:
            self.step.run()
        except SingularError as error:  # a graph cannot say so, and gives NaN
            raise Diverged(f"step {self.step.done + 1:,}: {error}") from None
        self._note_machine()
        done = self.step.done
        if self.device.type == "cpu":
            self._check()  # on a GPU once an epoch: asking makes it wait
            self._tell()
        due = self.watch.monitor and (done % self.watch.monitor == 0 or done in (1, self.step.total))
        if self.watcher is not None and self.ranks.first and due and (seen := self.watcher.look(done)) is not None:
            self._record(self.smoothing, {"step": done, **seen})

    def _note_machine(self) -> None:
        """After the first step: a process that does not get so far leaves nothing."""
        if self.from_step is None:
            return
        row = {"from_step": self.from_step, "hardware": hardware_name(self.device), "torch": torch.__version__}
        if self.ranks.world > 1:
            row["processes"] = self.ranks.world
        if self.step.asked_to_compile and not self.step.compiled:
            row["compiled"] = False
        self.machines.write(row)
        self.from_step = None

    def _record(self, log: logs.Log, row: dict[str, Any]) -> None:
        log.write(row)
        if self.board is not None:
            self.board.write(row["step"], row)

    def _epochs(self) -> list[dict[str, Any]]:
        """Lines of the log, but for those that say that the run went back."""
        return [row for row in self.log.rows if "epoch" in row]

    def _check(self) -> None:
        """Raise `Diverged` for a step that was not finite."""
        if int(self.step.failed) >= 0:
            path = None if self.folder is None else checkpoint.newest(self.folder)
            raise not_finite(self.step, self.mark, "the beginning" if path is None else f"{path} with --resume")

    def _end_epoch(self) -> None:
        """Its loss, the test if one is due, and a line of the log."""
        step, recipe = self.step, self.recipe
        self._check()
        losses = self.ranks.mean(step.losses).tolist()  # waits for the epoch's end
        epoch = step.done // step.steps
        self._clock()
        self.speed = step.steps * step.feed.units_per_step / max(self.facts["epoch_seconds"], 1e-9)
        row: dict[str, Any] = {
            "epoch": epoch,
            "step": step.done,
            "loss": sum(losses) / len(losses),
            "lr": step.rates[step.done - 1],
            **({} if step.rising is None else {"strength_share": step.rising.share(step.done)}),
            f"{recipe.unit}_per_s": round(self.speed, 1),
            "seconds": round(self.facts["seconds"], 3),
        }
        self.facts["epoch_seconds"] = 0.0
        every = max(1, recipe.total_epochs // 20) if self.watch.evaluate is None else self.watch.evaluate
        is_last = epoch == recipe.total_epochs
        if self.ranks.first and (is_last or (every > 0 and epoch % every == 0)):
            scores = dict(self.evaluation.scores(final=is_last))
            row |= scores
            self.facts["scores"] = scores
            self._clock(training=False)
        self._record(self.log, row)
        self._tell(row["loss"], force=True)

    def _stop_or_save(self, end: float | None) -> str:
        """Save if it is time to; why the run stops here, if it does. All processes decide alike, at the same step."""
        step = self.step
        if self.ranks.world > 1 and step.done % step.steps and step.done < self.ask_at:
            return ""  # asking makes all of them wait for each other
        wait = self.watch.save if self.saves >= len(_EARLY) else min(_EARLY[self.saves], self.watch.save)
        is_time = time.monotonic() - self.saved_at >= wait
        # They ask again after a second or so, by the steps a second that the first process knows.
        pause = self._units_a_second() / step.feed.units_per_step if self.ranks.first else 0.0
        why, save, pause = self.ranks.highest(REASONS.index(reason(self.received, end)), is_time, pause)
        self.ask_at = step.done + max(1, round(pause))
        if step.done == step.total:
            return ""
        if why or save:
            self.save()
        return REASONS[round(why)]

    def save(self) -> None:
        """The checkpoint, by the first process."""
        self._check()
        self._clock()
        losses = self.ranks.mean(self.step.losses).cpu()  # of all processes: each goes on from what the first writes
        if self.writes is not None or self.kept is not None:
            state, facts = {**self.step.state(), "losses": losses}, self._facts()
            if self.kept is not None:
                self.kept = (state, facts)
            if self.writes is not None:
                if self.lock is not None:
                    self.lock.check()
                for log in self.logs:
                    log.sync()
                checkpoint.save(self.writes, self.recipe, state, facts)
        self._clock(training=False)  # what saving took is no part of an epoch's speed
        self.saves += 1
        self.saved_at = time.monotonic()

    def _facts(self) -> checkpoint.Facts:
        """As they are now, to be kept."""
        lengths, retries = {log.name: log.length for log in self.logs}, list(self.facts["retries"])
        return {**self.facts, "logs": lengths, "retries": retries}

    def _go_back(self, error: Diverged) -> None:
        """To the last checkpoint, to go on with other random numbers; raises the error where that is not wanted, or has
        been done often enough.
        """
        if self.kept is None:
            raise error
        retries = self.facts["retries"]
        if len(retries) == _RETRIES:
            raise Diverged(f"{error}; {_RETRIES} times it went back to a checkpoint, with other draws, in vain")
        arrays, facts = self.kept
        failed, back = int(self.step.failed), int(arrays["position"])
        retry = checkpoint.Retry(
            retry=len(retries) + 1,
            failed_at_step=1 + (self.step.done if failed < 0 else failed),
            back_to_step=back,
            said=str(error),
        )
        retries.append(retry)
        self.step.load(arrays)
        self.step.draw_anew(len(retries))
        self._clock(training=False)  # what was in vain took time, and is no part of an epoch's speed
        self.facts["scores"], self.facts["epoch_seconds"] = facts["scores"], facts["epoch_seconds"]
        for log in (self.log, self.smoothing):
            log.cut(facts["logs"][log.name])
        if self.board is not None and self.folder is not None:
            self.board.close()
            self.board = logs.Board(self.folder, back)
        self.log.write(dict(retry))
        self.save()  # who resumes it goes on from here, and knows

    def _clock(self, training: bool = True) -> None:
        """Adds the time since it was last asked to the run's, and to the epoch's if it was spent on steps."""
        now = time.monotonic()
        spent, self.since = now - self.since, now
        self.facts["seconds"] += spent
        if training:
            self.facts["epoch_seconds"] += spent

    def _units_a_second(self) -> float:
        """In the epoch before, or so far in the first."""
        if self.speed:
            return self.speed
        inside = (self.step.done - 1) % self.step.steps + 1
        seconds = self.facts["epoch_seconds"] + time.monotonic() - self.since
        return inside * self.step.feed.units_per_step / max(1e-9, seconds)

    def _tell(self, loss: float | None = None, force: bool = False) -> None:
        """Where the run is, a few times a second at most."""
        now = time.monotonic()
        if self.progress is None or not self.ranks.first or (not force and now - self.told_at < 0.2):
            return
        self.told_at = now
        step, speed, recipe, rows = self.step, self._units_a_second(), self.recipe, self._epochs()
        self.progress(
            Progress(
                step=step.done,
                steps=step.total,
                epoch=max(1, math.ceil(step.done / step.steps)),  # after its last step it is that one still
                epochs=recipe.total_epochs,
                speed=speed,
                unit=recipe.unit,
                seconds_left=(step.total - step.done) * step.feed.units_per_step / max(1e-9, speed),
                loss=rows[-1]["loss"] if loss is None and rows else loss,
                scores=recipe.describe(scores) if (scores := self.facts["scores"]) else "",
            )
        )

    def _finish(self) -> None:
        """The model, and then no checkpoint: there is nothing to go on with."""
        if self.writes is not None:
            if self.lock is not None:
                self.lock.check()
            model, notes = self.step.model, {**self.facts["scores"], "seconds": round(self.facts["seconds"], 1)}
            self.task.save_beside(model, self.writes)
            dtype, more = stored_as(model), self.task.metadata()
            save_model(model, self.recipe, self.writes / MODEL, dtype=dtype, notes=notes, more=more)
            checkpoint.remove(self.writes)
        self.ranks.wait()
