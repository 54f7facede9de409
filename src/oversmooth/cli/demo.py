"""`oversmooth demo`: the main job on models that come as packages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import advance, app, out, progress_bar


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
    from oversmooth.demo import language, vits
    from oversmooth.report import page

    page.check(output)
    beside = output.with_stem(f"{output.stem}-language")
    page.check(beside)
    language.check()
    test, random = vits.images(), {"": False, " (random)": True}
    with progress_bar("inputs") as bars:
        of_images = [vits.run(variant, test, seed, advance(bars, name)) for variant, name in vits.NAMES.items()]
        of_texts = [
            language.run(name, twin, seed, advance(bars, f"{name}{word}"))
            for name in language.MODELS
            for word, twin in random.items()
        ]
    for title, diagnoses in (("Language models", of_texts), ("ViTs trained on Fashion-MNIST", of_images)):
        out.rule(title)
        show(diagnoses)
    page.save(of_images, output, [("pretrained language models and their random twins", beside.name)])
    page.save(of_texts, beside, [("three ViTs: plain, smoothing and sharpening", output.name)])
    out.print(f"\nwrote {output} and {beside.name}")
