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
    cosine: float  # mean cosine after the last block
    smoothing_share: float  # share of (input, layer, head) triples whose spectrum predicts smoothing
    constrained: bool = False
    """Whether it was trained under a spectral constraint: an extreme, not what models of its kind do."""


# Made by `make gallery` (`oversmooth gallery -o gallery/`), whose figures are kept in results/gallery.json: for each
# model hfc_lfc[1] / hfc_lfc[0], cos[1] and smoothing_share, to three digits (tests/diagnosis/test_references.py).
REFERENCES: list[Reference] = [
    Reference("DeiT-Tiny", "vision encoder", hfc_lfc_ratio=1.23, cosine=0.321, smoothing_share=0.592),
    Reference("small ViT (Fashion-MNIST)", "vision encoder", hfc_lfc_ratio=0.907, cosine=0.164, smoothing_share=0.714),
    Reference("ViT⁺ (smoothing)", "vision encoder", 0.100, 0.928, 1.0, constrained=True),
    Reference("ViT⁻ (sharpening)", "vision encoder", 1.75, 0.0478, 0.0, constrained=True),
    Reference("MiniLM-L6", "text encoder", hfc_lfc_ratio=0.623, cosine=0.289, smoothing_share=0.848),
    Reference("MPNet-base", "text encoder", hfc_lfc_ratio=0.159, cosine=0.595, smoothing_share=0.903),
    Reference("chemistry ALBERT", "text encoder", hfc_lfc_ratio=0.692, cosine=0.259, smoothing_share=0.546),
    Reference("stories15m", "decoder", hfc_lfc_ratio=0.486, cosine=0.271, smoothing_share=1.0),
]


def kind_of(diagnosis: DiagnosisData) -> Kind | None:
    """Of which kind a diagnosed model is; None where that is not known, so that nothing is comparable."""
    inputs = diagnosis.model.get("input_kind") or (diagnosis.one_input.kind if diagnosis.one_input else None)
    if inputs == "image":
        return "vision encoder"
    kinds: dict[Any, Kind] = {False: "text encoder", True: "decoder"}
    return kinds.get(diagnosis.model.get("causal")) if inputs == "text" else None


def references_for(diagnosis: DiagnosisData) -> list[Reference]:
    """The other reference models of the same kind, unconstrained ones first; empty where there is none."""
    kind, name = kind_of(diagnosis), diagnosis.name.casefold()
    begin, end = (diagnosis.layers[place].tokens.get("hfc_lfc") for place in (0, -1))

    def itself(one: Reference) -> bool:
        """By its name, with or without its size, or by the same three digits."""
        known = one.name.casefold()
        same = begin and end is not None and abs(end / begin / one.hfc_lfc_ratio - 1) <= 2e-3
        return name in (known, known.partition("-")[0]) or bool(same)

    return sorted((r for r in REFERENCES if r.kind == kind and not itself(r)), key=lambda r: r.constrained)
