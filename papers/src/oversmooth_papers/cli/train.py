"""`oversmooth train`: train a model for one of the tasks, unmodified or steered, with a paper's recipe or your own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from oversmooth.cli.app import SECONDS_BETWEEN_LINES, app, duration, err, out, status
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_folder, read_json
from oversmooth_papers.cli.options import option_of, parameters_of, take
from oversmooth_papers.engine.recipe import BaseRecipe, read_recipe
from oversmooth_papers.tasks.imagenet import recipe as imagenet
from oversmooth_papers.tasks.images import recipe as images
from oversmooth_papers.tasks.images.recipe import Shape as ImagesShape
from oversmooth_papers.tasks.language import recipe as language
from oversmooth_papers.tasks.language.recipe import Shape as LanguageShape
from oversmooth_papers.tasks.segmentation import recipe as segmentation

if TYPE_CHECKING:
    from rich.console import Console

    from oversmooth_papers.engine.result import Progress, Result
    from oversmooth_papers.engine.smoothing import MakesWatcher

_Function = TypeVar("_Function", bound=Callable[..., Any])
_RECIPE, _MODEL, _RUN = "The recipe (defaults: those of --task images)", "The model", "The run"
_of_recipe = functools.partial(typer.Option, rich_help_panel=_RECIPE)
_of_run = functools.partial(typer.Option, rich_help_panel=_RUN)
_LANGUAGE, _SEGMENTATION, _IMAGENET = "Of --task language", "Of --task segmentation", "Of --task imagenet"
TASKS: dict[str, tuple[BaseRecipe, BaseRecipe]] = {
    "images": (images.PAPER, images.QUICK),
    "language": (language.WIKITEXT2, language.QUICK),
    "segmentation": (segmentation.PAPER, segmentation.QUICK),
    "imagenet": (imagenet.PAPER, imagenet.QUICK),
}
"""Each task's default recipe, and its quick version."""
_IMAGES = "cifar100, cifar10, fashion-mnist or mnist, searched for by name; or the folder that holds one."
_DATA = f"Images: {_IMAGES} Language: wikitext-2, wikitext-103, prose, a text file, or a folder of them. "
_DATA += "Segmentation: camvid, ade20k, shapes, or the folder that holds one. Imagenet: its folder, or painted."
Data = Annotated[str, typer.Option(help=_IMAGES)]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default the GPU if there is one.")]
Force = Annotated[bool, typer.Option("--force", help="Write to the directory even if another process does.")]
Metrics = StrEnum("Metrics", ["tokens", "all"])
OnNan = StrEnum("OnNan", ["stop", "retry"])
_SETTINGS: list[tuple[str | None, type, tuple[str, ...]]] = [
    (None, images.Recipe, ("variant", "share", "seed")),
    (_RECIPE, images.Recipe, ("epochs", "warmup", "lr", "batch", "weight_decay", "ramp", "share_seed")),
    (_MODEL, ImagesShape, ("patch", "depth", "width", "heads")),
    (_MODEL, images.Recipe, ("wiring", "start", "initialisation", "output_bias", "layers", "freed", "precision")),
    (_LANGUAGE, language.Recipe, ("tokenizer", "vocabulary", "masked")),
    (_LANGUAGE, LanguageShape, ("length", "hidden", "activation", "norm", "positions", "causal", "dropout")),
    (_SEGMENTATION, segmentation.Recipe, ("encoder", "steer", "crop", "stride", "decoder_layers")),
    (_IMAGENET, imagenet.Recipe, ("drop_path", "ema", "repeats")),
]
"""The settings of recipes and of model shapes that are options, by panel of the help."""


def _with_settings(command: _Function) -> _Function:
    """Add the recipe's settings to a command's options, after --data."""
    parameters = parameters_of(command)
    after_data = [parameter.name for parameter in parameters].index("data") + 1
    parameters[after_data:after_data] = [
        option_of(of, name, changes=True, panel=panel) for panel, of, names in _SETTINGS for name in names
    ]
    take(command, parameters)
    return command


@app.command()
@_with_settings
def train(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The directory for the logs, the checkpoint and the model.")
    ],
    task: Annotated[
        str | None, typer.Option(help="images, language, segmentation or imagenet.", show_default="images")
    ] = None,
    data: Annotated[str | None, typer.Option(help=_DATA, show_default="the recipe's")] = None,
    augment: Annotated[
        bool | None,
        _of_recipe("--augment/--no-augment", help="Use RandAugment, Mixup and CutMix.", show_default="augment"),
    ] = None,
    recipe: Annotated[Path | None, _of_recipe(help="Start from this recipe (JSON); other options change it.")] = None,
    quick: Annotated[bool, _of_recipe("--quick", help="Start from a small recipe: minutes on a CPU.")] = False,
    resume: Annotated[bool, _of_run("--resume", help="Continue the run in the directory, if there is one.")] = False,
    minutes: Annotated[float | None, _of_run(help="Stop at a checkpoint after this many minutes.", min=0)] = None,
    evaluate: Annotated[
        int | None,
        _of_run(help="Epochs between tests; 0: test only at the end.", show_default="20 tests in all", min=0),
    ] = None,
    monitor: Annotated[int, _of_run(help="Steps between snapshots of smoothing; 0: none.", min=0)] = 50,
    metrics: Annotated[
        Metrics,
        _of_run(help="Record HFC/LFC and cosines (tokens), or all metrics of a Monitor, which is slower (all)."),
    ] = Metrics.tokens,
    look: Annotated[Metrics | None, typer.Option(hidden=True)] = None,
    tensorboard: Annotated[bool, _of_run("--tensorboard", help="Also write TensorBoard logs.")] = False,
    device: Annotated[str | None, _of_run(help="cpu or cuda.", show_default="the GPU if there is one")] = None,
    on_nan: Annotated[
        OnNan,
        _of_run(help="When a step is not finite: stop, or retry from the checkpoint with other draws, up to 3 times."),
    ] = OnNan.stop,
    force: Annotated[
        bool, _of_run("--force", help="Take over the directory from a process that is still writing to it.")
    ] = False,
    **settings: Any,
) -> None:
    """Train a model, by default a small ViT with the recipe of Dovonon et al., and save it with its logs.

    Ctrl-C or the end of --minutes stops the run at a checkpoint; --resume continues it. SIGTERM and SIGUSR2 do the same
    and exit with code 75, so that batch systems start the command again.

    The directory receives log.jsonl (one line per epoch), smoothing.jsonl (the --metrics, by depth), machines.jsonl
    (the hardware) and, at the end, model.safetensors (bf16, with its recipe). On several GPUs: torchrun
    --nproc-per-node 4 -m -- oversmooth train ...

    For example: oversmooth train --data cifar100 --variant sharpen --share 0.1 -o runs/sharpen
    """
    with leaves_when_asked():
        from oversmooth_papers.engine.stopping import end_with_parent

        end_with_parent()  # before torch, which takes a while to import
        from oversmooth.safety.processes import rank_and_world
        from oversmooth_papers.engine import loop
        from oversmooth_papers.engine.smoothing import MonitorWatcher, SmoothingProbe
        from oversmooth_papers.tasks.registry import task_of

        changed = _changed(starting_recipe(task, quick, recipe, data), settings, augment)
        watcher: MakesWatcher = SmoothingProbe if (look or metrics) is Metrics.tokens else MonitorWatcher
        if rank_and_world()[0]:  # under torchrun only the first process prints
            out.quiet = err.quiet = True
        check_folder(output)  # before the data is read, which takes a while
        began = time.monotonic()
        loaded = load(data or changed.data, changed)
        chosen = changed.fitted(loaded)
        minutes = None if minutes is None else max(0.0, minutes - (time.monotonic() - began) / 60)
        print_message(f"{chosen.title}, recipe {chosen.key}", out)
        with progress() as on_progress:
            how = loop.RunSettings(
                device=device,
                folder=output,
                resume=resume,
                minutes=minutes,
                watch=loop.WatchSettings(evaluate, monitor, watcher, tensorboard=tensorboard),
                on_nan="stop" if on_nan is OnNan.stop else "retry",
                force=force,
                on_progress=on_progress,
                on_message=print_message,
            )
            result = loop.train(task_of(chosen, loaded), how)
    _print_result(result, output / loop.MODEL, resumed=resume)


def _print_result(result: Result, model: Path, *, resumed: bool) -> None:
    """The scores of a finished run; of one that stopped, the command that continues it, and then its exit code."""
    for retry in result.retries:
        print_message(f"went back to step {retry['back_to_step']:,}, with other draws: {retry['said']}", out)
    if not result.finished:
        as_module = Path(sys.argv[0]).name == "__main__.py"
        program = ["python", "-m", "oversmooth_papers"] if as_module else ["oversmooth"]
        again = shlex.join([*program, *sys.argv[1:], *([] if resumed else ["--resume"])])
        print_message(f"{result.why} after {result.step:,} of {result.steps:,} steps; go on with: {again}", out)
        leave(result.why)
    recipe = result.recipe
    scores = recipe.describe(result.scores) if result.scores else "tested by the first process"
    print_message(f"{scores} after {recipe.total_epochs} epochs, {result.seconds:,.0f} s; wrote {model}", out)


def print_message(line: str, console: Console = err) -> None:
    """Print one line unwrapped, by default on stderr."""
    console.print(line, soft_wrap=True)


@contextlib.contextmanager
def leaves_when_asked() -> Iterator[None]:
    """When a batch system asks for the machine while no run is going, exit with the code that asks it to retry."""
    from oversmooth_papers.engine.stopping import Preempted, preemptible

    try:
        with preemptible():
            yield
    except Preempted:
        print_message("preempted, with what was saved before kept; the same command goes on")
        leave("preempted")


def leave(why: str, otherwise: int = 0) -> NoReturn:
    """Exit with the code for why a run stopped; with `otherwise` if there is none."""
    from oversmooth_papers.engine.stopping import EXIT_CODES

    raise typer.Exit(EXIT_CODES.get(why, otherwise))


def load(data: str, recipe: BaseRecipe = images.PAPER) -> Any:
    """Load the data of a recipe's task; shows a status line, as decoding takes a while the first time."""
    from oversmooth_papers.tasks.registry import load_data

    with status(f"reading {data}"):
        return load_data(recipe, data)


def starting_recipe(task: str | None, quick: bool, path: Path | None, data: str | None) -> BaseRecipe:
    """The recipe before options change it: from a file, or the task's default for these data."""
    if task is not None and task not in TASKS:
        raise InputError(f"--task is {task!r}; choose {' or '.join(TASKS)}")
    if path is not None and quick:
        raise InputError(f"--quick has a recipe of its own, and --recipe is {path}; leave one of them out")
    if path is None:
        if task == language.Recipe.task_name and data is not None and not quick:
            from oversmooth_papers.tasks.language.data import name_of

            if name_of(data) == language.PAPER.data:  # the task's default was tuned on a shorter text
                return language.PAPER
        return TASKS[task or images.Recipe.task_name][quick]
    recipe = read_recipe(read_json(path, "give a recipe in JSON, as Recipe.to_json writes it"), str(path))
    if task not in (None, recipe.task_name):
        raise InputError(f"{path} is a recipe for {recipe.task_name} and --task is {task}; leave one of them out")
    return recipe


def _changed(recipe: BaseRecipe, settings: dict[str, Any], augment: bool | None) -> BaseRecipe:
    given = {name: value for name, value in settings.items() if value is not None}
    own = {field.name for of in (type(recipe), type(recipe.shape)) for field in dataclasses.fields(of)}
    options = [f"--{name.replace('_', '-')}" for name in given if name not in own]
    if augment is not None and not isinstance(recipe, images.Recipe):
        options.append("--augment" if augment else "--no-augment")
    if options:
        raise InputError(f"{options[0]} is no setting of --task {recipe.task_name}; leave it out")
    return recipe.changed(given, augment) if isinstance(recipe, images.Recipe) else recipe.changed(given)


@contextlib.contextmanager
def progress() -> Iterator[Any]:
    """A progress bar on stderr, removed at the end; without a terminal, one line now and then."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    last_line_at = time.monotonic()

    def show(now: Progress) -> None:
        nonlocal last_line_at
        state = f"{now.speed:,.0f} {now.unit}/s, {duration(now.seconds_left)} left"
        state += "" if now.loss is None else f", loss {now.loss:.3f}"
        state += f", {now.scores}" if now.scores else ""
        title = f"epoch {now.epoch} of {now.epochs}"
        if err.is_terminal:
            bars.update(bar, description=title, completed=now.step, total=now.steps, state=state)
        elif time.monotonic() - last_line_at >= SECONDS_BETWEEN_LINES:
            last_line_at = time.monotonic()
            print_message(f"{title}: {state}")

    with Bars(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        bar = bars.add_task("preparing", total=None, state="")
        yield show
