"""Faults of the package that tests expect until they are mended: each entry fails, strictly, where it should not."""

import pytest

_GQA = ("Llama", "Mistral", "Qwen3", "Gemma 2", "Gemma 3", "SmolLM3", "Phi-3")
_SEQUENCE_FIRST = ("torch encoder (Post-LN)", "torch encoder (Pre-LN)")
_NEEDS_DIAGNOSIS = (
    "check_tokens", "check_stages", "check_spectra", "check_negative_share", "check_dominance", "check_extrapolation",
    "check_stack",
)  # fmt: skip

FAULTS: dict[tuple[str, str], str] = {
    **{("check_negative_share", name): "grouped queries: rounding decides the sign of H's exact zeros" for name in _GQA},
    **{
        (check, name): "diagnose narrows a padding mask (batch, n) by the wrong axis where batches come second"
        for check in _NEEDS_DIAGNOSIS
        for name in _SEQUENCE_FIRST
    },
    ("check_stages", "OPT"): "OPT's second norm sees all texts in one row; they are taken for one text",
    ("check_stages", "ModernBERT"): "the first block has no norm before attention and is taken for Post-LN",
    ("check_extrapolation", "GPT-2"): "blocks run again still see the keys of the cache they got by position",
    ("check_stack", "GPT-2"): "blocks run again still see the keys of the cache they got by position",
    ("check_stack", "torch encoder (Post-LN, batch first)"): "Arnoldi in float32 stops at 1e-4",
}


def with_faults(check: str, names: list[str]) -> list[object]:
    """The names as parameters, those that are known to fail marked so."""
    marks = {name: pytest.mark.xfail(strict=True, reason=FAULTS[check, name]) for name in names if (check, name) in FAULTS}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]
