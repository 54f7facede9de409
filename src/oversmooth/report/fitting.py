"""A page of many large models stays below 5 MB: data are packed, and what does not fit is taken out, and said."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from oversmooth.diagnosis.one_input import as_bytes
from oversmooth.report.charts.spectra import outermost
from oversmooth.report.packing import json_in_html
from oversmooth.safety.foreign import shortened

MOST_BYTES = 5_000_000
"""Of a whole page."""
MOST_PLAIN_BYTES = 2_400_000
"""Of the data in a page: as text below it, where anyone can read it, and packed above."""
_RESERVE = 40_000
"""For the sentences that say what was taken out."""
_FEWEST_TOKENS = 32
_FEW_EIGENVALUES = (64, 16)
_MOST_LETTERS = 24
Data = list[dict[str, Any]]


def deflated(text: str) -> str:
    """Text as a page holds it where it is large; charts.js unpacks it."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(text.encode("utf-8", "surrogatepass")) + packer.flush()).decode()


def fit(data: Data, room: int) -> tuple[list[str], list[str]]:
    """Take out what has no room, first what is least missed, until the rest does.

    Args:
        data: diagnoses as dictionaries, which are changed.
        room: bytes for all of them, packed.

    Returns:
        Sentences on tokens, and on everything else, that say what was taken out.
    """
    room -= _RESERVE
    of_tokens, of_others = [], []
    while _size(data) > room and (larger := [one for one in _looked_at(data) if one["groups"] > _FEWEST_TOKENS]):
        most = max(one["groups"] for one in larger)
        for one in larger:
            if one["groups"] > most / 2:
                _halve(one)
    grouped = [entry for entry in data if (entry.get("one_input") or {}).pop("grouped", False)]
    steps: list[tuple[Callable[[Data], None], str]] = [
        (_without_single_inputs, "ρ rough and verdicts of single inputs from the JSON it offers"),
        (_without_heads, "eigenvalues of single heads"),
        *((_with_few(count), f"all but {count} eigenvalues of each layer") for count in _FEW_EIGENVALUES),
        (_without_any_heads, "from that JSON also shares, means and radii of single heads"),
    ]
    left_out = []
    for step, what in steps:
        if _size(data) <= room:
            break
        step(data)
        left_out.append(what)
    if left_out:
        of_others.append(
            f"To stay below 5 MB, this page leaves out {'; '.join(left_out)}. Shares, means and radii listed are "
            "of all; the JSON that a diagnosis itself saves, and a page of fewer models, have more."
        )
    without = []
    while _size(data) > room and (last := next((e for e in reversed(data) if e.get("one_input")), None)):
        last["one_input"] = None
        without.append(last)
    if grouped := [entry for entry in grouped if entry["one_input"]]:
        of_tokens.append(f"To stay below 5 MB, this page shows the tokens of {_whose(grouped, data)} in groups.")
    if without:
        of_tokens.append(
            f"To stay below 5 MB, this page leaves out the tokens of {_whose(without, data)}; a page of fewer models "
            "has them."
        )
    return of_tokens, of_others


def _size(data: Data) -> int:
    return len(deflated(json_in_html(data)))


def _looked_at(data: Data) -> list[dict[str, Any]]:
    return [entry["one_input"] for entry in data if entry.get("one_input")]


def _whose(entries: Data, data: Data) -> str:
    names = [entry["model"]["name"] for entry in entries]
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} of {len(data)} models"


def _halve(one: dict[str, Any]) -> None:
    """Tokens in groups of two that follow each other, or patches in groups of two by two: means over pairs."""
    before, leading = one["groups"], one["leading"]
    if one["grid"]:
        rows, columns = one["grid"]
        one["grid"] = [-(-rows // 2), -(-columns // 2)]
        down, across = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        patches = (down // 2) * one["grid"][1] + across // 2 + leading
        group = torch.cat([torch.arange(leading), patches.flatten()])
    else:
        group = torch.arange(before) // 2
    count = int(group.max()) + 1
    means = torch.zeros(count, before)
    means[group, torch.arange(before)] = 1.0
    means /= means.sum(-1, keepdim=True)
    one["similarity"] = [_paired(code, means, before, count) for code in one["similarity"]]
    for block, code in enumerate(one["received"]):
        if code:
            received = _numbers(code).reshape(-1, before) @ means.mT
            most = max(float(received.max()), 1e-9)
            one["received"][block] = as_bytes(255 * received / most)
            if one["received_most"][block] is not None:
                one["received_most"][block] = float(f"{one['received_most'][block] * most / 255:.5g}")
    texts = [""] * count
    for text, place in zip(one["labels"], group.tolist(), strict=False):
        texts[place] += text
    one["labels"] = [shortened(text, _MOST_LETTERS) for text in texts] if one["labels"] else []
    shape = f"{one['grid'][0]} × {one['grid'][1]} groups" if one["grid"] else f"{count} groups that follow each other"
    what = "patches" if one["grid"] else "tokens"
    one["aggregated"] = f"{one['tokens'] - leading:,} {what}, shown in {shape}: means over pairs"
    one["groups"], one["grouped"] = count, True


def _paired(code: str, means: Tensor, before: int, after: int) -> str:
    """Cosines of all pairs of groups, from those of what they are made of."""
    cosines = torch.zeros(before, before)
    rows, columns = torch.triu_indices(before, before, offset=1)
    cosines[rows, columns] = _numbers(code)
    rows, columns = torch.triu_indices(after, after, offset=1)
    return as_bytes((means @ (cosines + cosines.mT) @ means.mT)[rows, columns])


def _numbers(code: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(code)), dtype=torch.uint8).float()


def _without_single_inputs(data: Data) -> None:
    for entry in data:
        for layer in entry["layers"]:
            if layer["dominance"]:
                layer["dominance"] |= {"rho_rough_heads": [], "verdict_heads": []}


def _without_heads(data: Data) -> None:
    for spectrum in _spectra(data):
        for heads in spectrum["heads"].values():
            for one in heads:
                one |= {"real": [], "imag": []}


def _without_any_heads(data: Data) -> None:
    for spectrum in _spectra(data):
        spectrum["heads"] = {variant: [] for variant in spectrum["heads"]}


def _with_few(count: int) -> Callable[[Data], None]:
    def thin(data: Data) -> None:
        for spectrum in _spectra(data):
            for one in spectrum["joined"].values():
                kept = outermost(one["real"], one["imag"], count)
                one |= {part: [one[part][i] for i in kept] for part in ("real", "imag")}

    return thin


def _spectra(data: Data) -> Iterator[dict[str, Any]]:
    return (layer["spectrum"] for entry in data for layer in entry["layers"] if layer["spectrum"])
