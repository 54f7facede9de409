"""`oversmooth demo`: a diagnosis of every model that comes with the package or as a package."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from oversmooth.cli.app import app, err, option, out, progress_bar

if TYPE_CHECKING:
    from oversmooth.diagnosis.result import Diagnosis

_PAGE = "Page to write, .html; language models go to a page beside it."


@app.command()
def demo(
    output: Annotated[Path, option("FILE", _PAGE, "--output", "-o")] = Path("demo.html"),
    seed: Annotated[int, option("N", "Seed of the random weights.")] = 0,
) -> None:
    """Diagnose three small ViTs and two language models, and write two pages.

    The ViTs come with oversmooth: one unmodified, one constrained to smooth, one to sharpen. MiniLM and a chemistry
    ALBERT, each beside a randomly initialised copy, need oversmooth[models] and two packages; without these, the demo
    names them and shows the ViTs alone.
    """
    from oversmooth.cli.diagnose import show
    from oversmooth.demo import language, vits
    from oversmooth.report import page

    page.check(output)
    beside = output.with_stem(f"{output.stem}-language")
    page.check(beside)
    missing, test = language.missing(), vits.images()
    if missing:
        err.print(f"language models are left out: {missing}", soft_wrap=True)
    texts = [] if missing else [(name, random) for name in language.MODELS for random in (False, True)]
    jobs: list[_Job] = [(language.run, (name, random, seed)) for name, random in texts]  # these take longest
    jobs += [(vits.run, (variant, test, seed)) for variant in vits.NAMES]
    diagnoses = _side_by_side(jobs)
    of_texts, of_images = diagnoses[: len(texts)], diagnoses[len(texts) :]
    for title, some in (("Language models", of_texts), ("ViTs trained on Fashion-MNIST", of_images)):
        if some:
            out.rule(title)
            show(some)
    link = [("pretrained language models and their randomly initialised copies", beside.name)] if texts else []
    page.save(of_images, output, link)
    if texts:
        page.save(of_texts, beside, [("three ViTs: unmodified, smoothing and sharpening", output.name)])
    out.print(f"\nwrote {output}" + (f" and {beside.name}" if texts else ""))


_Job = tuple[Callable[..., "Diagnosis"], tuple[Any, ...]]


def _side_by_side(jobs: list[_Job]) -> list[Diagnosis]:
    """Every diagnosis, in this order, on all cores: one alone leaves most of them idle."""
    import multiprocessing

    workers = min(os.cpu_count() or 1, len(jobs), 4)
    with progress_bar("models") as bars, multiprocessing.get_context("spawn").Pool(workers, _begin, [workers]) as pool:
        task = bars.add_task("diagnosing", total=len(jobs))
        begun = [pool.apply_async(*job, callback=lambda _: bars.advance(task)) for job in jobs]
        return [one.get() for one in begun]


def _begin(workers: int) -> None:
    """In each process: a share of the cores, and Ctrl-C left to the process that started it."""
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
