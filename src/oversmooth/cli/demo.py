"""`oversmooth demo`: the main job on models that come as packages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oversmooth.cli.app import advance, app, out, progress_bar

if TYPE_CHECKING:
    from oversmooth.diagnosis.result import Diagnosis


@app.command()
def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The page to write, .html. The page of the language models is written beside it."
        ),
    ] = Path("demo.html"),
    seed: Annotated[int, typer.Option(help="The seed of the random twins.")] = 0,
) -> None:
    """Write two pages: three small ViTs, plain, smoothing and sharpening; two language models beside random twins.

    The language models are MiniLM and a chemistry ALBERT that reads reaction strings. They come as packages, which the
    command names if they are missing. Needs oversmooth[models].
    """
    from oversmooth.cli.diagnose import show
    from oversmooth.demo import language
    from oversmooth.report import page

    page.check(output)
    beside = output.with_stem(f"{output.stem}-language")
    page.check(beside)
    language.check()
    of_images, of_texts = _vits(seed), _language(seed)
    for title, diagnoses in (("Language models", of_texts), ("ViTs trained on Fashion-MNIST", of_images)):
        out.rule(title)
        show(diagnoses)
    page.save(of_images, output, [("pretrained language models and their random twins", beside.name)])
    page.save(of_texts, beside, [("three ViTs: plain, smoothing and sharpening", output.name)])
    out.print(f"\nwrote {output} and {beside.name}")


def _vits(seed: int) -> list[Diagnosis]:
    from oversmooth.demo import vits

    test = vits.images()
    return _with_progress([(name, partial(vits.run, variant, test, seed)) for variant, name in vits.NAMES.items()])


def _language(seed: int) -> list[Diagnosis]:
    from oversmooth.demo import language

    return _with_progress(
        [
            (f"{name}{' (random)' if random else ''}", partial(language.run, make, random, seed))
            for name, make in language.models()
            for random in (False, True)
        ]
    )


def _with_progress(work: list[tuple[str, Callable[[Any], Diagnosis]]]) -> list[Diagnosis]:
    diagnoses = []
    with progress_bar("inputs") as bars:
        for title, diagnosed in work:
            diagnoses.append(diagnosed(advance(bars, title)))
    return diagnoses
