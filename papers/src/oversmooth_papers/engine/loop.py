"""``train(task)``: a run on a device, in a folder.

One process on a CPU or a GPU, or many under torchrun. The result is that of the last epoch, never of the best one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from oversmooth.safety import precision
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_folder
from oversmooth_papers.engine import checkpoint, lock, logs
from oversmooth_papers.engine.parts import Reuse
from oversmooth_papers.engine.ranks import Ranks, joined, number
from oversmooth_papers.engine.result import ON_NAN, OnNan, Progress, Result, WatchSettings
from oversmooth_papers.engine.saved_model import load_model, notes_of, recipe_of
from oversmooth_papers.engine.task import Task
from oversmooth_papers.engine.training_run import MODEL, Run

__all__ = ["MODEL", "Progress", "Result", "Reuse", "Run", "WatchSettings", "train"]


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

    folder: for logs, checkpoints and the model; without one nothing is written.

    resume: go on where the checkpoint in the folder is, or begin if there is none. minutes: stop at a checkpoint after
    so long. Ctrl-C does the same; pressed again, it stops at once. So do SIGTERM and SIGUSR2, by which batch systems
    ask for the machine. compiled: by default on a GPU. on_message: gets sentences on the way, such as of a damaged
    checkpoint.

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
    begin = time.monotonic()
    device = device_named(device)
    if watch is not None and watch.tensorboard:
        logs.check_board()
    where = None if folder is None else Path(folder)
    if where is not None:
        check_folder(where)
        if (finished := finished_run(task, where, resume)) is not None:
            return finished
    end = None if minutes is None else begin + 60 * minutes
    with joined(device) as ranks, float32_products(device), _held(where, ranks, force, on_message) as mine:
        # Whoever wrote there until now may have finished.
        if where is not None and (finished := finished_run(task, where, resume)) is not None:
            return finished
        watch = watch or WatchSettings()
        run = Run(task, device, where, ranks, watch, progress, compiled, on_nan, on_message, mine, reuse)
        return run.go(end)


@contextmanager
def _held(
    folder: Path | None, ranks: Ranks, force: bool, on_message: Callable[[str], None] | None
) -> Iterator[lock.Lock | None]:
    """The folder, for the first process, which alone writes; where it is refused, all of them stop."""
    with ExitStack() as stack:
        mine, refused = None, None
        if folder is not None and ranks.first:
            try:
                mine = stack.enter_context(lock.held(folder, force=force, on_message=on_message))
            except InputError as error:
                refused = error
        if ranks.agree(refused is not None):
            raise refused or InputError(f"{folder} is not free, as the first process says; see there")
        yield mine


def finished_run(task: Task, folder: Path, resume: bool) -> Result | None:
    """The run in this folder if it is over; one that must not be overwritten is refused."""
    recipe = task.recipe
    if not resume and (recorded := checkpoint.recipe_of(folder)) is not None:
        raise InputError(
            f"{folder} holds a run of {recorded.title}, not finished; go on with --resume, or name another directory"
        )
    path = folder / MODEL
    if checkpoint.is_there(folder) or not path.is_file():
        return None
    recorded = recipe_of(path)
    if recorded is None:
        raise InputError(f"{path} is no model that oversmooth train wrote; name another directory")
    if not resume:
        raise InputError(f"{folder} holds a finished run of {recorded.title}; name another directory")
    if (differs := recorded.difference(recipe)) is not None:
        raise InputError(f"{folder} holds a finished run of another recipe: {differs}; name another directory")
    model, _ = load_model(path, lambda _recipe: task.plain_model())
    notes, lines = notes_of(path), logs.read(folder / logs.EPOCHS)
    rows = [line for line in lines if "epoch" in line]
    return Result(
        recipe=recipe,
        finished=True,
        why="finished",
        step=rows[-1]["step"] if rows else 0,
        steps=rows[-1]["step"] if rows else 0,
        scores={name: value for name, value in notes.items() if name != "seconds" and value is not None},
        epochs=rows,
        smoothing=logs.read(folder / logs.SMOOTHING),
        seconds=float(notes.get("seconds") or 0),
        folder=folder,
        model=model,
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
