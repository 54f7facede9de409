"""`oversmooth reproduce text`: Dovonon et al.'s experiments with language models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import Commands, out
from oversmooth.cli.diagnose import Batch, Count, Data, Device, Length, diagnose_all
from oversmooth_papers.cli.reproduce import reproduce, tell

text = Commands(help="Dovonon et al.'s text experiments: language models that are forced.", no_args_is_help=True)
reproduce.add_typer(text, name="text")


@text.command()
def figures(
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory for fig2, fig3, fig5 and asymmetry.")],
    table: Annotated[str, typer.Option(help="causal, wikitext or masked: whose models.")] = "causal",
    quick: Annotated[bool, typer.Option("--quick", help="Those of the table's --quick.")] = False,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = 16,
    results: Annotated[Path, typer.Option(help="Directory that keeps cells and models.")] = Path("results"),
    ending: Annotated[str, typer.Option(help="svg, png or pdf.")] = "svg",
    seed: Annotated[int, typer.Option(help="Of the models.", min=0)] = 0,
    device: Device = None,
) -> None:
    """Figures 2, 3 and 5 of Dovonon et al. for trained language models, and the asymmetry of H over training."""
    from oversmooth.report import terminal
    from oversmooth.safety import files
    from oversmooth_papers.figures import fig5
    from oversmooth_papers.tables.text import figures as recipe

    files.check_folder(output)
    models = recipe.trained(table, results, seed, quick=quick)
    paths, settings = [str(model.path) for model in models], dict(depth=0, joined=0, seed=seed)
    measured = diagnose_all(paths, data, inputs, length, batch, device=device, settings=settings)
    drawn = recipe.named(measured, models)
    out.print(terminal.overview(drawn))
    for diagnosis in drawn:
        tell(f"{diagnosis.name}: {terminal.share(diagnosis.negative_share)} of Re λ below zero")
    tell(fig5.PUBLISHED)
    for path in recipe.write(drawn, recipe.asymmetries(models), output, ending):
        tell(f"wrote {path}")
