"""Passages of text from files: all of a short text, or evenly spread parts of a long one without reading the rest.

text.py cuts passages into pieces of tokens.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from oversmooth.inputs.batches import spread
from oversmooth.inputs.parquet import Row, Table
from oversmooth.inputs.sources import Source, read_as
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_plain, read_bytes
from oversmooth.safety.machine import check_fits

# Enough letters to fill one token whatever the tokenizer; about 4 in English, up to 3 bytes a letter in other scripts.
LETTERS_A_TOKEN = 16


@dataclass(frozen=True)
class Passage:
    """Some consecutive text and its position."""

    name: str
    text: str


def passages_of(source: Source, count: int, length: int) -> list[Passage]:
    """One passage with all the text, or ``count`` passages long enough for ``length`` tokens each."""
    letters = LETTERS_A_TOKEN * length
    if source.format == "parquet":
        return _rows(Table(source, ("text",)), source, count, letters)
    sizes = [file.stat().st_size for file in source.files]
    # Passages start within `letters` of their position, so at twice that distance all differ.
    if sum(sizes) <= 2 * count * letters:
        texts = [_whole(file) for file in source.files]
        return [_some(source, "\n\n".join(text for text in texts if text.strip()))]
    passages = {}
    ends = list(itertools.accumulate(sizes))
    for position in spread(sum(sizes), count):
        index = next(i for i, end in enumerate(ends) if position < end)
        # Not so near the end of the file that the text would run out.
        offset = max(0, min(position - (ends[index] - sizes[index]), sizes[index] - 2 * letters))
        start, text = _slice(source.files[index], offset, letters)
        name = f"{source.name(source.files[index])} from byte {start:,}"
        if text.strip():
            passages[name] = Passage(name, text)
    return list(passages.values()) or [_some(source, "")]


def lines_of(source: Source, count: int) -> list[Passage]:
    """Up to ``count`` lines (or parquet rows) that are not blank, evenly spread."""
    if source.format == "parquet":
        rows = (Passage(row.where, _text(row)) for row in Table(source, ("text",)).rows())
        lines = [row for row in rows if row.text.strip()]
    else:
        numbered = ((file, *one) for file in source.files for one in enumerate(_whole(file).splitlines(), start=1))
        found = (Passage(f"line {number} of {source.name(file)}", line.strip()) for file, number, line in numbered)
        lines = [one for one in found if one.text]
    if not lines:
        _some(source, "")
    return [lines[index] for index in spread(len(lines), count)]


def _rows(table: Table, source: Source, count: int, letters: int) -> list[Passage]:
    """Rows joined: all of them if they are few, else the beginning of each of ``count`` equal intervals."""
    parts: list[Passage] = []
    stretches = min(count, table.total)
    complete = True
    for _, rows in itertools.groupby(enumerate(table.rows()), lambda row: row[0] * stretches // table.total):
        kept: list[Passage] = []
        for _, row in rows:
            here = Passage(row.where, _text(row))
            if here.text.strip():
                full = sum(len(one.text) for one in kept) >= letters * max(1, count // stretches)
                complete &= not full
                kept += [] if full else [here]
        if kept:
            parts.append(Passage(f"{source.path.name} from {kept[0].name}", "\n".join(one.text for one in kept)))
    if complete or not parts:
        return [_some(source, "\n".join(part.text for part in parts))]
    return parts


def _some(source: Source, text: str) -> Passage:
    if not text.strip():
        raise InputError(f"{source.path} contains no text; give another file")
    return Passage(source.path.name, text)


def _slice(file: Path, offset: int, size: int) -> tuple[int, str]:
    """Start of the next paragraph, line, sentence or word after ``offset``, and about ``size`` bytes from there."""
    with read_as(f"{file} cannot be read", "give another text"), file.open("rb") as opened:
        opened.seek(offset)
        data = opened.read(2 * size)
    start = 0
    if offset:
        breaks = ((data.find(mark, 0, size), len(mark)) for mark in (b"\n\n", b"\n", b". ", b" "))
        start = next((at + length for at, length in breaks if at >= 0), 0)
        while start < len(data) and data[start] & 0xC0 == 0x80:  # inside a letter of several bytes
            start += 1
    part = data[start : start + size]
    for cut in range(4):  # a letter may be cut at the end
        try:
            text = part[: len(part) - cut].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start < len(part) - 4:
                break
        else:
            return offset + start, _checked(file, text)
    raise InputError(f"{file} is not UTF-8 text near byte {offset:,}; convert it to UTF-8")


def _whole(file: Path) -> str:
    size = check_plain(file, "give another text")
    check_fits(8 * size, f"reading all of {file}", "give a smaller part of it")  # as bytes, text and lines at once
    try:
        return _checked(file, read_bytes(file, "give another text", size).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start:,}); convert it to UTF-8") from error


def _text(row: Row) -> str:
    """The text of a parquet row; empty if it is not text."""
    text = row.values["text"]
    return _checked(row.where, text) if isinstance(text, str) else ""


def _checked(what: Path | str, text: str) -> str:
    if "\0" in text:
        raise InputError(f"{what} is not text: it contains zero bytes, as UTF-16 does; give plain text in UTF-8")
    return text.removeprefix("\ufeff")
