"""``train(recipe, data)``: the epochs, what is logged and saved on the way, and how a run stops and goes on.

One process on a CPU or a GPU, or many under torchrun. The result is that of the last epoch, never of the best one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.live import steering_of
from oversmooth.errors import InputError
from oversmooth.files import check_folder
from oversmooth.train import checkpoint, data, failure, logs
from oversmooth.train.build import model_of
from oversmooth.train.evaluate import Evaluator
from oversmooth.train.monitor import Monitor
from oversmooth.train.ranks import Ranks, joined
from oversmooth.train.recipe import Recipe
from oversmooth.train.runs import Progress, Result, Splits, Watch, load_splits
from oversmooth.train.saved import load_model, notes_of, save_model
from oversmooth.train.step import Step, beginning
from oversmooth.train.stopping import interruptible, reason

__all__ = ["MODEL", "Progress", "Result", "Splits", "Watch", "load_splits", "train"]

MODEL = "model.safetensors"


def train(
    recipe: Recipe,
    splits: Splits,
    *,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    minutes: float | None = None,
    watch: Watch | None = None,
    progress: Callable[[Progress], None] | None = None,
    compiled: bool | None = None,
) -> Result:
    """Train as the recipe says. folder: for logs, checkpoints and the model; without one nothing is written.

    resume: go on where the checkpoint in the folder is, or begin if there is none. minutes: stop at a checkpoint after
    so long. Ctrl-C does the same; pressed again, it stops at once. compiled: by default on a GPU.
    """
    begin = time.monotonic()
    place = device_named(device)
    if watch is not None and watch.tensorboard:
        logs.check_board()
    where = None if folder is None else Path(folder)
    if where is not None:
        check_folder(where)
        where.mkdir(exist_ok=True)
        if (finished := finished_run(recipe, where, resume)) is not None:
            return finished
    for images in (splits.train, splits.test):
        recipe.check_fits(images)
    end = None if minutes is None else begin + 60 * minutes
    with joined(place) as ranks, float32_products(place):
        run = Run(recipe, splits, place, where, ranks, watch or Watch(), progress, compiled)
        return run.go(end)


def finished_run(recipe: Recipe, folder: Path, resume: bool) -> Result | None:
    """The run in this folder if it is over; one that must not be overwritten is refused."""
    if not resume and (found := checkpoint.recipe_of(folder)) is not None:
        raise InputError(
            f"{folder} holds a run of {found.title}, not finished; go on with --resume, or name another directory"
        )
    path = folder / MODEL
    if (folder / checkpoint.NAME).is_file() or not path.is_file():
        return None
    model, found = load_model(path)
    if not resume:
        raise InputError(f"{folder} holds a finished run of {found.title}; name another directory")
    if (differs := found.difference(recipe)) is not None:
        raise InputError(f"{folder} holds a finished run of another recipe: {differs}; name another directory")
    notes, rows = notes_of(path), logs.read(folder / logs.EPOCHS)
    return Result(
        recipe=recipe,
        finished=True,
        why="finished",
        step=rows[-1]["step"] if rows else 0,
        steps=rows[-1]["step"] if rows else 0,
        accuracy=notes.get("accuracy"),
        epochs=rows,
        smoothing=logs.read(folder / logs.SMOOTHING),
        seconds=float(notes.get("seconds", 0)),
        folder=folder,
        model=model,
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
        own = int(os.environ.get("LOCAL_RANK", torch.cuda.current_device()))  # torchrun: a GPU for each process
        device = torch.device("cuda", own if device.index is None else device.index)
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise InputError(f"device is {name}; training runs on cpu and cuda")
    return device


class Run:
    """One run in this process."""

    def __init__(
        self,
        recipe: Recipe,
        splits: Splits,
        device: torch.device,
        folder: Path | None,
        ranks: Ranks,
        watch: Watch,
        progress: Callable[[Progress], None] | None,
        compiled: bool | None,
        spare: Run | None = None,
    ) -> None:
        """spare: a run of the same recipe with another seed, which is over: its compiled parts are used again."""
        self.recipe, self.device, self.folder, self.ranks, self.watch = recipe, device, folder, ranks, watch
        self.progress = progress if ranks.first else None
        if folder is not None and ranks.first:
            checkpoint.tidy(folder)
        found = None if folder is None else checkpoint.load(folder, recipe)
        if spare is None:
            self._build(splits, compiled)
        else:
            self._take(spare)
        facts = self._resume(found)
        self.seconds, self.accuracy = float(facts.get("seconds", 0)), facts.get("accuracy")
        self.epoch_seconds = float(facts.get("epoch_seconds", 0))
        lengths = facts.get("logs", {})
        self.log, self.smoothing = (
            None if folder is None or not ranks.first else logs.Log(folder / name, lengths.get(name, 0))
            for name in (logs.EPOCHS, logs.SMOOTHING)
        )
        self.rows: list[dict[str, Any]] = [] if self.log is None else self.log.rows
        self.looks: list[dict[str, Any]] = [] if self.smoothing is None else self.smoothing.rows
        wanted = watch.tensorboard and folder is not None and ranks.first
        self.board = logs.Board(folder, self.step.done) if wanted and folder is not None else None
        self.speed = 0.0
        self.since = time.monotonic()
        self.saved_at = self.since
        self.told_at = 0.0
        self.mark: tuple[int, Tensor] = (self.step.done, self.step.generator.get_state())

    def _build(self, splits: Splits, compiled: bool | None) -> None:
        recipe, device = self.recipe, self.device
        part = data.share(splits.train, recipe.share, recipe.share_seed).to(device)
        self.test = splits.test.to(device)
        self.model: torch.nn.Module = model_of(recipe).to(device)
        full = False
        try:
            self.step = Step(recipe, self.model, part, device, self.ranks, compiled=compiled)
            self.evaluator = Evaluator(recipe, self.model, device, compiled=compiled)
            self.monitor = Monitor(recipe, self.model, self.test.images, device) if self.watch.monitor else None
        except torch.OutOfMemoryError:
            full = True
        if full:  # not inside the handler, where the error still holds all that was allocated
            self.model = self.step = self.evaluator = None  # type: ignore[assignment]
            raise failure.too_large(recipe, device)

    def _take(self, spare: Run) -> None:
        self.test, self.model = spare.test, spare.model
        self.step, self.evaluator, self.monitor = spare.step, spare.evaluator, spare.monitor
        self.step.recipe = self.recipe
        self.step.load(beginning(self.step, self.recipe))
        steering = steering_of(self.model)
        if steering is not None:
            steering.methods = self.recipe.methods()  # the same, but for the seed they began with

    def _resume(self, found: tuple[dict[str, Tensor], dict[str, Any]] | None) -> dict[str, Any]:
        if found is None:
            return {}
        arrays, facts = found
        if len(arrays["losses"]) != self.step.steps:
            raise InputError(
                f"{self.folder} was trained with {len(arrays['losses'])} steps an epoch and these images give "
                f"{self.step.steps}; give the images it began with"
            )
        torch.set_rng_state(arrays["generator.torch"])
        self.step.load(arrays)
        return facts

    def go(self, end: float | None, interrupted: list[int] | None = None) -> Result:
        """To the end, or until the time is up. interrupted: a list that is filled elsewhere when Ctrl-C is pressed."""
        step, why = self.step, "finished"
        self.since = self.saved_at = time.monotonic()
        with interruptible() if interrupted is None else nullcontext(interrupted) as stopped:
            while step.done < step.total:
                inside = step.done % step.steps
                if inside == 0:
                    step.begin_epoch()
                self.mark = (step.done, step.generator.get_state())
                for _ in range(inside, step.steps):
                    self._one()
                    stop = reason(stopped, end)
                    if stop and self.ranks.world == 1 and step.done % step.steps:
                        break
                if step.done % step.steps == 0:
                    self._end_epoch()
                stop = reason(stopped, end)
                if self.ranks.agree(bool(stop)) and step.done < step.total:
                    why = stop or "another process stopped"
                    self.save()
                    break
                if time.monotonic() - self.saved_at >= self.watch.save and step.done < step.total:
                    self._check()
                    self.save()
        if why == "finished":
            self._finish()
        if self.board is not None:
            self.board.close()
        return Result(
            recipe=self.recipe,
            finished=why == "finished",
            why=why,
            step=step.done,
            steps=step.total,
            accuracy=self.accuracy if why == "finished" else None,
            epochs=self.rows,
            smoothing=self.looks,
            seconds=self.seconds,
            folder=self.folder,
            model=self.model,
        )

    def _one(self) -> None:
        full = False
        try:
            self.step.run()
        except torch.OutOfMemoryError:
            full = True
        if full:
            self.model = self.step = self.evaluator = self.monitor = None  # type: ignore[assignment]
            raise failure.too_large(self.recipe, self.device)
        done = self.step.done
        if self.device.type == "cpu":
            self._check()  # on a GPU once an epoch: asking makes it wait
            self._tell()
        if self.monitor is not None and self.ranks.first and (done % self.watch.monitor == 0 or done == 1):
            row = {"step": done, **self.monitor.measure()}
            if self.smoothing is not None:
                self.smoothing.write(row)
            else:
                self.looks.append(row)
            if self.board is not None:
                self.board.write(done, row)

    def _check(self) -> None:
        if int(self.step.failed) >= 0:
            path = None if self.folder is None else self.folder / checkpoint.NAME
            saved = f"{path} with --resume" if path is not None and path.is_file() else "the beginning"
            raise failure.not_finite(self.step, self.mark, saved)

    def _end_epoch(self) -> None:
        step, recipe = self.step, self.recipe
        self._check()
        losses = self.ranks.mean(step.losses).tolist()  # waits for the epoch's end
        epoch = step.done // step.steps
        spent = self._clock()
        self.speed = step.steps * recipe.batch / max(self.epoch_seconds, 1e-9)
        row: dict[str, Any] = {
            "epoch": epoch,
            "step": step.done,
            "loss": sum(losses) / len(losses),
            "lr": step.rates[step.done - 1],
            "images_per_s": round(self.speed, 1),
            "seconds": round(spent, 3),
        }
        self.epoch_seconds = 0.0
        if self.ranks.first and self._is_due(epoch):
            self.accuracy = self.evaluator.accuracy(self.test.images, self.test.labels)
            row["accuracy"] = self.accuracy
            self._clock(training=False)
        if self.log is not None:
            self.log.write(row)
        else:
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
        step = self.step
        speed = self.speed
        if not speed:
            inside = (step.done - 1) % step.steps + 1
            speed = inside * self.recipe.batch / max(1e-9, self.epoch_seconds + now - self.since)
        left = (step.total - step.done) * self.recipe.batch / max(1e-9, speed)
        loss = self.rows[-1]["loss"] if loss is None and self.rows else loss
        epoch = min(self.recipe.total_epochs, step.done // step.steps + 1)
        self.progress(
            Progress(step.done, step.total, epoch, self.recipe.total_epochs, speed, left, loss, self.accuracy)
        )

    def save(self) -> None:
        """The checkpoint, by the first process."""
        self._check()
        self._clock()
        self.saved_at = time.monotonic()
        if self.folder is None or not self.ranks.first:
            return
        facts = {
            "seconds": self.seconds,
            "epoch_seconds": self.epoch_seconds,
            "accuracy": self.accuracy,
            "logs": {log.path.name: log.length for log in (self.log, self.smoothing) if log is not None},
        }
        checkpoint.save(self.folder, self.recipe, self.step.state(), facts)
        self.saved_at = time.monotonic()

    def _finish(self) -> None:
        """The model, and then no checkpoint: there is nothing to go on with."""
        if self.folder is not None and self.ranks.first:
            notes = {"accuracy": self.accuracy, "seconds": round(self.seconds, 1)}
            save_model(self.model, self.recipe, self.folder / MODEL, notes=notes)
            (self.folder / checkpoint.NAME).unlink(missing_ok=True)
        self.ranks.wait()


@contextmanager
def _tensor_cores() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def float32_products(device: torch.device) -> Any:
    """What autocast leaves in float32 may use tensor cores on a GPU."""
    return _tensor_cores() if device.type == "cuda" else nullcontext()
