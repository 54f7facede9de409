"""Reference values: what the gallery's models of each kind do, for a diagnosis to be compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from oversmooth.results.data import DiagnosisData

Kind = Literal["vision encoder", "text encoder", "decoder"]


@dataclass(frozen=True)
class Reference:
    """One model of the gallery."""

    name: str
    kind: Kind
    hfc_lfc_ratio: float  # HFC/LFC after the last block over that before the first


# Made by `make gallery` (`oversmooth gallery -o gallery/`), whose figures are kept in results/gallery.json: for each
# model hfc_lfc[1] / hfc_lfc[0], to three digits (tests/diagnosis/test_references.py). Not those that were trained under
# a spectral constraint: they are extremes, and not what models of their kind do.
REFERENCES: list[Reference] = [
    Reference("DeiT-Tiny", "vision encoder", 1.23),
    Reference("small ViT (Fashion-MNIST)", "vision encoder", 0.907),
    Reference("MiniLM-L6", "text encoder", 0.623),
    Reference("MPNet-base", "text encoder", 0.159),
    Reference("chemistry ALBERT", "text encoder", 0.692),
    Reference("stories15m", "decoder", 0.486),
]


def kind_of(diagnosis: DiagnosisData) -> Kind | None:
    """Of which kind a diagnosed model is; None where that is not known, so that nothing is comparable."""
    inputs = diagnosis.model.get("input_kind") or (diagnosis.one_input.kind if diagnosis.one_input else None)
    if inputs == "image":
        return "vision encoder"
    kinds: dict[Any, Kind] = {False: "text encoder", True: "decoder"}
    return kinds.get(diagnosis.model.get("causal")) if inputs == "text" else None


def references_for(diagnosis: DiagnosisData) -> list[Reference]:
    """The other reference models of the same kind; empty where there is none."""
    kind, name = kind_of(diagnosis), diagnosis.name.casefold()
    begin, end = (diagnosis.layers[place].tokens.get("hfc_lfc") for place in (0, -1))

    def itself(one: Reference) -> bool:
        """By its name, with or without its size, or by the same three digits."""
        known = one.name.casefold()
        same = begin and end is not None and abs(end / begin / one.hfc_lfc_ratio - 1) <= 2e-3
        return name in (known, known.partition("-")[0]) or bool(same)

    return [one for one in REFERENCES if one.kind == kind and not itself(one)]
