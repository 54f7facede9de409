"""Stretches of text from files: all of a short text, or evenly spread parts of a long one without reading the rest.

Not for tokens: text.py cuts passages into pieces.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from oversmooth.errors import InputError
from oversmooth.inputs.batches import spread
from oversmooth.inputs.parquet import Table
from oversmooth.inputs.sources import Source

# Enough letters to fill one token whatever the tokenizer; about 4 in English, up to 3 bytes a letter in other scripts.
LETTERS_A_TOKEN = 16


@dataclass(frozen=True)
class Passage:
    """Some consecutive text and where it stood."""

    name: str
    text: str


def passages_of(source: Source, count: int, length: int) -> list[Passage]:
    """One passage with all the text, or ``count`` passages long enough for ``length`` tokens each."""
    letters = LETTERS_A_TOKEN * length
    if source.format == "parquet":
        return _rows(Table(source, ("text",)), source, count, letters)
    sizes = [file.stat().st_size for file in source.files]
    if sum(sizes) <= count * letters:
        texts = [_decoded(file, file.read_bytes()) for file in source.files]
        return [_some(source, "\n\n".join(text for text in texts if text.strip()))]
    passages = []
    ends = list(itertools.accumulate(sizes))
    for position in spread(sum(sizes), count):
        index = next(i for i, end in enumerate(ends) if position < end)
        # The middle of a long file, or the start of one that a single passage would use up.
        offset = max(0, min(position - (ends[index] - sizes[index]), sizes[index] - letters))
        file = source.files[index]
        text = _slice(file, offset, letters)
        passages.append(Passage(f"{source.name(file)} from byte {offset:,}", text))
    return [passage for passage in dict.fromkeys(passages) if passage.text.strip()] or [_some(source, "")]


def lines_of(source: Source, count: int) -> list[Passage]:
    """Up to ``count`` lines (or parquet rows) that are not blank, evenly spread."""
    if source.format == "parquet":
        rows = [Passage(row.where, row.values["text"] or "") for row in Table(source, ("text",)).rows()]
        lines = [row for row in rows if row.text.strip()]
    else:
        lines = [
            Passage(f"line {number} of {source.name(file)}", line.strip())
            for file in source.files
            for number, line in enumerate(_decoded(file, file.read_bytes()).splitlines(), start=1)
            if line.strip()
        ]
    if not lines:
        _some(source, "")
    return [lines[index] for index in spread(len(lines), count)]


def _rows(table: Table, source: Source, count: int, letters: int) -> list[Passage]:
    """Rows joined: all of them where that is little, else the beginning of each of ``count`` equal stretches."""
    parts: list[Passage] = []
    stretches = min(count, table.total)
    complete = True
    for _, rows in itertools.groupby(enumerate(table.rows()), lambda row: row[0] * stretches // table.total):
        texts: list[str] = []
        where = ""
        for _, row in rows:
            text = row.values["text"]
            if not isinstance(text, str) or not text.strip():
                continue
            if sum(map(len, texts)) >= letters * max(1, count // stretches):
                complete = False
                continue
            where = where or row.where
            texts.append(text)
        if texts:
            parts.append(Passage(f"{source.path.name} from {where}", "\n".join(texts)))
    if complete or not parts:
        return [_some(source, "\n".join(part.text for part in parts))]
    return parts


def _some(source: Source, text: str) -> Passage:
    if not text.strip():
        raise InputError(f"{source.path} has no text in it; give a file with some")
    return Passage(source.path.name, text)


def _slice(file: Path, offset: int, size: int) -> str:
    """About ``size`` bytes of text from ``offset``, from the next beginning of a paragraph, sentence or word."""
    with file.open("rb") as opened:
        opened.seek(offset)
        # Four bytes more for a letter cut at the end; those at the start go with the broken word.
        data = opened.read(size + 4)
    start = 0
    if offset:
        for mark, within in (
            (b"\n\n", len(data) // 4),
            (b"\n", len(data) // 4),
            (b". ", len(data) // 4),
            (b" ", len(data)),
        ):
            found = data.find(mark, 0, within)
            if found >= 0:
                start = found + len(mark)
                break
        while start < len(data) and data[start] & 0xC0 == 0x80:  # inside a letter of several bytes
            start += 1
    data = data[start:]
    for cut in range(4):
        try:
            return data[: len(data) - cut].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start < len(data) - 4:
                break
    raise InputError(f"{file} is not UTF-8 text near byte {offset:,}; convert it to UTF-8")


def _decoded(file: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start:,}); convert it to UTF-8") from error
    if "\0" in text:
        raise InputError(f"{file} is not text: it holds zero bytes; give a plain text file")
    return text
