"""Table 1 under every counting rule, and the depth study's three notions: trained models, measured.

    oversmooth reproduce rules --share 1                       table 2's models
    oversmooth reproduce rules --depths                        those of 12, 24 and 48 blocks, at 10 % of the data

What a case is was not published: `counting_rules` has five readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.options import option
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables.base import Rows, Table
from oversmooth_papers.tables.cells import Available, Cell
from oversmooth_papers.tables.depth import Depth
from oversmooth_papers.tables.table2 import column
from oversmooth_papers.tasks.images.recipe import VARIANTS, Recipe, percent

if TYPE_CHECKING:
    from oversmooth_papers.tables.filling import Running
    from oversmooth_papers.tasks.images.data import Splits

TITLES = {
    "heads": "per head",
    "joined": "heads joined",
    "real": "real parts",
    "folded": "norm folded in",
    "unnormalised": "un-normalised tokens",
}
_NOTE = (
    "Smoothing eigenvalue, in % of cases; open: ties, and what is undecided; the rest sharpens. The first {images} "
    "test images, {few} of them for heads joined, effective rank and what is predicted; models as their files have "
    "them, in bf16. HFC/LFC, cosine and effective rank of what enters the first block and of what leaves the last. As "
    "predicted: blocks in which one pass of attention moved HFC/LFC to the side that its spectrum, all heads together, "
    "favours in more images than the other; those where neither leads are left out. What a case is, and on what share "
    "the published ViT-Ti were trained, was not published."
)


@dataclass(frozen=True, kw_only=True)
class RulesOfTable1(Table):
    """Table 1 of trained models under five counting rules, the three notions, and prediction beside measurement."""

    name = "rules"
    trains = False
    progress_unit = "rules"
    published: ClassVar = {"plain": 98.92, "smooth": 100.0, "sharpen": 0.0}

    share: float = option(1.0, "Of which of table 2's models: 1, 0.5 or 0.1.")
    depths: bool = option(False, "Models of 12, 24 and 48 blocks at 10 % of the data instead.")
    images: int = option(64, "Test images, the first ones.")
    joined: int = option(8, "Of them, those whose heads are counted together, which takes long.")

    def recipes(self) -> list[Recipe]:
        if self.depths:
            return Depth(seeds=self.seeds, quick=self.quick).recipes()
        return column(self.share, seeds=self.seeds, quick=self.quick)

    def fill(self, recipes: Sequence[Recipe], splits: Splits, results: Path, running: Running) -> str:
        """Nothing is trained: models that are there and were not measured yet are."""
        from oversmooth_papers.engine.loop import device_named
        from oversmooth_papers.engine.saved_model import notes_of
        from oversmooth_papers.tables import counting_rules
        from oversmooth_papers.tables.filling import measure_models
        from oversmooth_papers.tables.provenance import data_hash
        from oversmooth_papers.tasks.images.build import load_vit

        images = splits.test.images[: self.images]

        def measure(recipe: Recipe, path: Path) -> Cell:
            accuracy = notes_of(path).get("accuracy")
            if accuracy is None:
                raise InputError(f"{path} does not say how accurate the model was; train it again")
            model, joined = load_vit(path)[0].to(device_named(running.device)), min(self.joined, len(images))
            progress = running.progress_of(recipe.title)
            counted = counting_rules.measure(model, recipe, images, joined=joined, progress=progress)
            return {"accuracy": accuracy, **counted, "data_sha256": data_hash((images,))}

        return measure_models(recipes, results, self.folder, running, measure, made_by="table2 or depth")

    def rows(self, available: Available) -> Rows:
        head = ["", *TITLES.values(), "HFC/LFC", "cosine", "effective rank", "as predicted", "whose"]
        rows = [[*_row(cell), self.whose()] for cell in available.values()]
        for variant in () if self.quick else VARIANTS:
            name = self.model_name(variant)
            rows.append([f"{name}, CIFAR-100", f"{self.published[variant]:.2f}", *["–"] * 8, "published"])
        return head, rows

    def chart(self, available: Available) -> Any:
        points = [
            table_charts.point(f"{recipe.label}, {title}", self.whose(), smoothing(cell, rule), None)
            for recipe, cell in available.items()
            for rule, title in TITLES.items()
        ]
        return table_charts.bars("smoothing eigenvalue dominates", points, "% of cases")

    def notes(self) -> list[str]:
        note = _NOTE.format(images=self.images, few=self.joined)
        return [f"quick: small models, trained for minutes. {note}" if self.quick else note]

    def whose(self) -> str:
        if self.quick:
            return "ours, quick"
        return "ours, 10 %" if self.depths else f"ours, {percent(self.share)}"


def smoothing(cell: Cell, rule: str, verdicts: Sequence[str] = ("smooth",)) -> float:
    """In % of cases; of other verdicts likewise."""
    counts = cell["rules"][rule]
    return 100 * sum(counts[verdict] for verdict in verdicts) / max(1, sum(counts.values()))


def share_text(cell: Cell, rule: str) -> str:
    """What smooths, and what is open, ties included."""
    left = f"{smoothing(cell, rule, ('tie', 'undecided')):.2f}"
    return f"{smoothing(cell, rule):.2f}" + ("" if left == "0.00" else f" ({left} open)")


def _row(cell: Cell) -> list[str]:
    title = ", ".join(filter(None, (cell["title"], cell.get("remark"))))  # such as that it is not the one of table 2
    notions = [
        " → ".join("–" if value is None else f"{value:.3g}" for value in (curve[0], curve[-1]))
        for curve in cell["notions"].values()
    ]
    agree, apart = cell["prediction"]["agree"], len(cell["prediction"]["apart"])
    return [title, *(share_text(cell, rule) for rule in TITLES), *notions, f"{agree} of {agree + apart}"]
