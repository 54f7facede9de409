"""One run in this process: its epochs, what is logged and saved on the way, and how it stops and goes on.

Checkpoints belong to the clock, not to epochs: the first after the first step, the next a few seconds later, and then
one per minute, within epochs too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oversmooth.safety import errors
from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import hardware_name
from oversmooth.steering.reparametrized import SingularError
from oversmooth_papers.engine import checkpoint, failure, logs
from oversmooth_papers.engine import disk_space as room
from oversmooth_papers.engine.lock import Lock
from oversmooth_papers.engine.parts import Reuse
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.engine.result import OnNan, Progress, Result, WatchSettings
from oversmooth_papers.engine.saved_model import save_model, stored_as
from oversmooth_papers.engine.stopping import REASONS, interruptible, reason
from oversmooth_papers.engine.task import Task

MODEL = "model.safetensors"
_RETRIES = 3
_EARLY = (0.0, 10.0)  # seconds until the first two checkpoints of a run: much goes wrong at the beginning


class Run:
    """One run in this process."""

    def __init__(
        self,
        task: Task,
        device: torch.device,
        folder: Path | None,
        ranks: Ranks,
        watch: WatchSettings,
        progress: Callable[[Progress], None] | None,
        compiled: bool | None,
        on_nan: OnNan = "stop",
        on_message: Callable[[str], None] | None = None,
        lock: Lock | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        """on_message: sentences that a user should see. lock: of the folder, where this process writes."""
        self.task, self.recipe = task, task.recipe
        self.device, self.folder, self.ranks, self.watch = device, folder, ranks, watch
        self.progress = progress if ranks.first else None
        self.on_message = on_message if on_message is not None and ranks.first else lambda _line: None
        self.lock = lock
        self.heard: list[int] = []
        if folder is not None and ranks.first:
            checkpoint.tidy(folder)
        saved = None if folder is None else checkpoint.load(folder, self.recipe)
        self.reuse = Reuse() if reuse is None else reuse
        parts = self.reuse.parts(task, device, ranks, watch=watch, compiled=compiled)
        self.model, self.step = parts.model, parts.step
        self.evaluation, self.watcher = parts.evaluation, parts.watcher
        for remark in self.step.remarks:
            self.on_message(remark)
        facts: checkpoint.Facts = {} if saved is None else self._resume(saved)
        self.scores: Scores
        self.seconds, self.scores = float(facts.get("seconds", 0)), _scores(facts)
        self.epoch_seconds = float(facts.get("epoch_seconds", 0))
        lengths = facts.get("logs", {})
        self.log, self.smoothing, self.machines = (
            None if folder is None or not ranks.first else logs.Log(folder / name, lengths.get(name, 0))
            for name in (logs.EPOCHS, logs.SMOOTHING, logs.MACHINES)
        )
        self.rows: list[dict[str, Any]] = [] if self.log is None else [r for r in self.log.rows if "epoch" in r]
        self.looks: list[dict[str, Any]] = [] if self.smoothing is None else list(self.smoothing.rows)
        self.retries: list[checkpoint.Retry] = list(facts.get("retries", []))
        self.step.attempt = len(self.retries)
        if saved is not None:
            self._tell_damaged(saved)
        self.all_logs = [log for log in (self.log, self.smoothing, self.machines) if log is not None]
        for log in self.all_logs:
            if log.lost:
                self.on_message(
                    f"{log.path} is shorter than its checkpoint says: what it lacks is lost, the run is not"
                )
        wanted = watch.tensorboard and folder is not None and ranks.first
        self.board = logs.Board(folder, self.step.done) if wanted and folder is not None else None
        self.speed = 0.0
        self.since = time.monotonic()
        self.saved_at = self.since
        self.saves = 0 if saved is None else len(_EARLY)
        self.from_step: int | None = self.step.done
        """Where this process takes the run up, until that is in the log of machines."""
        self.ask_at = 0
        """The step at which processes ask each other next."""
        self.told_at = 0.0
        self.mark: tuple[int, Tensor] = (self.step.done, self.step.generator.get_state())
        self.kept = (self.step.state(), self._facts()) if on_nan == "retry" else None
        """The last checkpoint, or the beginning, to go back to."""

    def _resume(self, saved: checkpoint.Checkpoint) -> checkpoint.Facts:
        arrays, path = saved.arrays, saved.path
        if len(arrays["losses"]) != self.step.steps:
            raise InputError(
                f"{self.folder} was trained with {len(arrays['losses'])} steps per epoch and these data give "
                f"{self.step.steps}; give the data it began with"
            )
        if arrays["generator.augment"].shape != self.step.generator.get_state().shape:
            here, there = ("a GPU", "a CPU") if self.device.type == "cuda" else ("a CPU", "a GPU")
            raise InputError(
                f"{self.folder} was trained on {there}, whose random numbers {here} cannot go on with; "
                f"resume it on {there}, or name another directory"
            )
        for name, own in self.step.state().items():
            if name not in arrays or (arrays[name].shape, arrays[name].dtype) != (own.shape, own.dtype):
                raise InputError(f"{path} is damaged: {name} does not fit the recipe; remove it to go on without it")
        if not 0 <= int(arrays["position"]) <= self.step.total:
            at = f"step {int(arrays['position']):,} of {self.step.total:,}"
            raise InputError(f"{path} is damaged: it is at {at}; remove it to go on without it")
        try:
            torch.set_rng_state(arrays["generator.torch"])
            self.step.load(arrays)
        except (RuntimeError, TypeError) as error:  # torch looks into the states of its generators
            raise InputError(f"{path} is damaged ({errors.reason(error)}); remove it to go on without it") from error
        return saved.facts

    def _tell_damaged(self, saved: checkpoint.Checkpoint) -> None:
        for damage in saved.damaged:
            self.on_message(f"{damage}: going on from {saved.path}, at step {self.step.done:,}")
            if self.log is not None:
                self._write(self.log, {"damaged": damage, "step": self.step.done})

    def go(self, end: float | None) -> Result:
        """To the end, or until the time is up."""
        step, why = self.step, "finished"
        self.since = self.saved_at = time.monotonic()
        with interruptible() as self.heard:
            try:
                while step.done < step.total and why == "finished":
                    try:
                        why = self._epoch(end) or why
                    except failure.Diverged as error:
                        self._go_back(error)
                if why == "finished":
                    self._finish()
            except RuntimeError as error:
                if (lost := failure.lost_device(error, self.device, step.done, self._saved())) is None:
                    raise
                raise lost from error
        if self.board is not None:
            self.board.close()
        return Result(
            recipe=self.recipe,
            finished=why == "finished",
            why=why,
            step=step.done,
            steps=step.total,
            scores=self.scores if why == "finished" else {},
            epochs=self.rows,
            smoothing=self.looks,
            seconds=self.seconds,
            folder=self.folder,
            model=self.model,
            retries=[dict(retry) for retry in self.retries],
            machines=[] if self.machines is None else self.machines.rows,
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

    def _stop_or_save(self, end: float | None) -> str:
        """Save if it is time to; why the run stops here, if it does. All processes decide alike, at the same step."""
        step = self.step
        if self.ranks.world > 1 and step.done % step.steps and step.done < self.ask_at:
            return ""  # asking makes all of them wait for each other
        why, save, pause = self.ranks.highest(
            REASONS.index(reason(self.heard, end)), self._is_time(), self._steps_a_second()
        )
        self.ask_at = step.done + max(1, round(pause))
        if step.done == step.total:
            return ""
        if why or save:
            self.save()
        return REASONS[round(why)]

    def _is_time(self) -> bool:
        wait = self.watch.save if self.saves >= len(_EARLY) else min(_EARLY[self.saves], self.watch.save)
        return time.monotonic() - self.saved_at >= wait

    def _steps_a_second(self) -> float:
        """As the first process knows it, whose word all take."""
        return self._units_a_second() / self.step.feed.units_per_step if self.ranks.first else 0.0

    def _units_a_second(self) -> float:
        """In the epoch before, or so far in the first."""
        if self.speed:
            return self.speed
        inside = (self.step.done - 1) % self.step.steps + 1
        return inside * self.step.feed.units_per_step / max(1e-9, self.epoch_seconds + time.monotonic() - self.since)

    def _go_back(self, error: failure.Diverged) -> None:
        """To the last checkpoint, to go on with other random numbers; raises the error where that is not wanted, or has
        been done often enough.
        """
        if self.kept is None:
            raise error
        if len(self.retries) == _RETRIES:
            raise failure.Diverged(f"{error}; {_RETRIES} times it went back to a checkpoint, with other draws, in vain")
        arrays, facts = self.kept
        failed, back = int(self.step.failed), int(arrays["position"])
        failed = 1 + (self.step.done if failed < 0 else failed)
        number = len(self.retries) + 1
        retry = checkpoint.Retry(retry=number, failed_at_step=failed, back_to_step=back, said=str(error))
        self.retries.append(retry)
        self.step.load(arrays)
        self.step.draw_anew(len(self.retries))
        self._clock(training=False)  # what was in vain took time, and is no part of an epoch's speed
        self.scores, self.epoch_seconds = _scores(facts), facts["epoch_seconds"]
        for log in (self.log, self.smoothing):
            if log is not None:
                log.cut(facts["logs"][log.path.name])
        self.rows = [row for row in self.rows if row["step"] <= back]
        self.looks = [row for row in self.looks if row["step"] <= back]
        if self.board is not None and self.folder is not None:
            self.board.close()
            self.board = logs.Board(self.folder, back)
        if self.log is not None:
            self._write(self.log, dict(retry))
        self.save()  # who resumes it goes on from here, and knows

    def _one(self) -> None:
        full = False
        try:
            self.step.run()
        except torch.OutOfMemoryError:
            full = True
        except SingularError as error:  # a graph cannot say so, and gives NaN
            raise failure.Diverged(f"step {self.step.done + 1:,}: {error}") from None
        if full:
            self.model = self.step = self.evaluation = self.watcher = None  # type: ignore[assignment]
            self.reuse.forget()
            raise failure.too_large(self.task, self.device)
        self._note_machine()
        done = self.step.done
        if self.device.type == "cpu":
            self._check()  # on a GPU once an epoch: asking makes it wait
            self._tell()
        due = self.watch.monitor and (done % self.watch.monitor == 0 or done in (1, self.step.total))
        if self.watcher is not None and self.ranks.first and due and (seen := self.watcher.look(done)) is not None:
            row = {"step": done, **seen}
            if self.smoothing is not None:
                self._write(self.smoothing, row)
            self.looks.append(row)
            if self.board is not None:
                self.board.write(done, row)

    def _note_machine(self) -> None:
        """After the first step: a process that does not get so far leaves nothing."""
        if self.machines is not None and self.from_step is not None:
            here: dict[str, Any] = {"hardware": hardware_name(self.device), "torch": torch.__version__}
            if self.ranks.world > 1:
                here["processes"] = self.ranks.world
            if self.step.asked_to_compile and not self.step.compiled:
                here["compiled"] = False
            self._write(self.machines, {"from_step": self.from_step, **here})
        self.from_step = None

    def _check(self) -> None:
        if int(self.step.failed) >= 0:
            raise failure.not_finite(self.step, self.mark, self._saved())

    def _saved(self) -> str:
        """Where one can go on from, in words."""
        path = None if self.folder is None else checkpoint.newest(self.folder)
        return "the beginning" if path is None else f"{path} with --resume"

    def _end_epoch(self) -> None:
        step, recipe = self.step, self.recipe
        self._check()
        losses = self.ranks.mean(step.losses).tolist()  # waits for the epoch's end
        epoch, spent = step.done // step.steps, self._clock()
        self.speed = step.steps * step.feed.units_per_step / max(self.epoch_seconds, 1e-9)
        row: dict[str, Any] = {
            "epoch": epoch,
            "step": step.done,
            "loss": sum(losses) / len(losses),
            "lr": step.rates[step.done - 1],
            **({} if step.rising is None else {"strength_share": step.rising.share(step.done)}),
            f"{recipe.unit}_per_s": round(self.speed, 1),
            "seconds": round(spent, 3),
        }
        self.epoch_seconds = 0.0
        if self.ranks.first and self._is_due(epoch):
            self.scores = dict(self.evaluation.scores(final=epoch == recipe.total_epochs))
            row |= self.scores
            self._clock(training=False)
        if self.log is not None:
            self._write(self.log, row)
        self.rows.append(row)
        if self.board is not None:
            self.board.write(step.done, row)
        self._tell(row["loss"], force=True)

    def _is_due(self, epoch: int) -> bool:
        total = self.recipe.total_epochs
        every = max(1, total // 20) if self.watch.evaluate is None else self.watch.evaluate
        return epoch == total or (every > 0 and epoch % every == 0)

    def _clock(self, training: bool = True) -> float:
        """Adds the time since it was last asked to the run's, and to the epoch's if it was spent on steps."""
        now = time.monotonic()
        spent, self.since = now - self.since, now
        self.seconds += spent
        if training:
            self.epoch_seconds += spent
        return self.seconds

    def _tell(self, loss: float | None = None, force: bool = False) -> None:
        now = time.monotonic()
        if self.progress is None or (not force and now - self.told_at < 0.2):
            return
        self.told_at = now
        step, speed = self.step, self._units_a_second()
        left = (step.total - step.done) * step.feed.units_per_step / max(1e-9, speed)
        loss = self.rows[-1]["loss"] if loss is None and self.rows else loss
        epoch = max(1, math.ceil(step.done / step.steps))  # after its last step it is that one still
        recipe, scores = self.recipe, self.recipe.describe(self.scores) if self.scores else ""
        self.progress(
            Progress(step.done, step.total, epoch, recipe.total_epochs, speed, recipe.unit, left, loss, scores)
        )

    def save(self) -> None:
        """The checkpoint, by the first process."""
        self._check()
        self._clock()
        writes = self.folder is not None and self.ranks.first
        losses = self.ranks.mean(self.step.losses).cpu()  # of all processes: each goes on from what the first writes
        if writes or self.kept is not None:
            state, facts = {**self.step.state(), "losses": losses}, self._facts()
            if self.kept is not None:
                self.kept = (state, facts)
            if self.folder is not None and writes:
                self._write_checkpoint(self.folder, state, facts)
        self._clock(training=False)  # what saving took is no part of an epoch's speed
        self.saves += 1
        self.saved_at = time.monotonic()

    def _write_checkpoint(self, folder: Path, state: dict[str, Tensor], facts: checkpoint.Facts) -> None:
        if self.lock is not None:
            self.lock.check()
        for log in self.all_logs:
            log.sync()
        try:
            self._patiently(lambda: checkpoint.save(folder, self.recipe, state, facts))
        except InputError as error:
            before = checkpoint.newest(folder)
            then = f"go on with --resume: {before} is untouched"
            if before is None:
                then = "begin again: nothing was left there"
                checkpoint.tidy(folder)
                for left in (logs.EPOCHS, logs.SMOOTHING, logs.MACHINES):
                    (folder / left).unlink(missing_ok=True)
            raise InputError(f"{str(error).partition(';')[0]}; make room on the disk and {then}") from error

    def _write(self, log: logs.Log, row: dict[str, Any]) -> None:
        self._patiently(lambda: log.write(row))

    def _patiently(self, write: Callable[[], Any]) -> None:
        room.patiently(write, self.on_message, lambda: bool(self.heard))

    def _facts(self) -> checkpoint.Facts:
        """What a checkpoint holds beside arrays."""
        return {
            "seconds": self.seconds,
            "epoch_seconds": self.epoch_seconds,
            "scores": dict(self.scores),
            "logs": {log.path.name: log.length for log in self.all_logs},
            "retries": list(self.retries),
        }

    def _finish(self) -> None:
        """The model, and then no checkpoint: there is nothing to go on with."""
        if self.folder is not None and self.ranks.first:
            if self.lock is not None:
                self.lock.check()
            notes = {**self.scores, "seconds": round(self.seconds, 1)}
            path, dtype, more = self.folder / MODEL, stored_as(self.model), self.task.metadata()
            self._patiently(lambda: self.task.save_beside(self.model, path.parent))
            self._patiently(lambda: save_model(self.model, self.recipe, path, dtype=dtype, notes=notes, more=more))
            checkpoint.remove(self.folder)
        self.ranks.wait()


def _scores(facts: checkpoint.Facts) -> Scores:
    """Of the last evaluation; earlier versions knew accuracies alone."""
    accuracy = facts.get("accuracy")
    return facts.get("scores", {} if accuracy is None else {"accuracy": accuracy})
