"""Text to train on: WikiText in its published layouts, folders with a split per file, one file, or the package's prose.

What is read: ``wiki.train.tokens`` and its like (WikiText as published), ``train.txt``, ``valid.txt`` and ``test.txt``,
or several texts, each as ``NAME.train.txt`` and ``NAME.valid.txt``; all of them plain or compressed by bzip2. A file
alone gives its last twentieth to the test and the one before that to validation. Tokens are kept in the user's cache
directory.
"""

from __future__ import annotations

import bz2
import os
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from oversmooth.inputs.text import PROSE
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import data_folder, data_place
from oversmooth.safety.machine import check_fits
from oversmooth_papers.tasks.common import Kept, remembered
from oversmooth_papers.tasks.language.tokens import Kind, Tokenizer, tokenizer_of

SPLITS = ("train", "valid", "test")
NAMED = {
    "wikitext-2": ("wikitext-2", "wikitext-2-v1"),
    "wikitext-103": ("wikitext-103", "wikitext-103-v1"),
    "text": ("text",),
}
"""What is looked for in OVERSMOOTH_DATA by name, and the folders it comes in."""
_VERSION = 2  # of what the cache holds


@dataclass(frozen=True, eq=False)
class Text:
    """Tokens ``(n,) int32`` of each split, and what made them."""

    train: Tensor
    valid: Tensor
    test: Tensor | None  # None: it has none, and nothing stands for it
    tokenizer: Tokenizer
    name: str


def load_text(what: str | Path, kind: Kind = "word", size: int = 0, *, masked: bool = False) -> Text:
    """By name, from a folder or from a file.

    kind: of tokens. size: how many of bpe. masked: whether one of them stands for a hidden one.
    """
    name, files = _files(what)
    all_files = [file for own in files.values() for file in own]
    question = [_VERSION, kind, size if kind == "bpe" else 0, masked, {split: len(own) for split, own in files.items()}]

    def make() -> Text:
        needed = 20 * sum(file.stat().st_size for file in all_files)  # the text, its words and its tokens
        check_fits(needed, f"the text of {what}", "give less of it")
        texts = _texts(files)
        tokenizer = tokenizer_of(texts["train"], kind, size, masked=masked)
        splits = {split: tokenizer.encode(text) for split, text in texts.items()}
        return Text(splits["train"], splits["valid"], splits.get("test"), tokenizer, name)

    def to_file(text: Text) -> Kept:
        splits = {"train": text.train, "valid": text.valid, **({} if text.test is None else {"test": text.test})}
        return splits, {"tokenizer": text.tokenizer.to_text()}

    def from_file(splits: dict[str, Tensor], words: dict[str, str]) -> Text:
        tokenizer = Tokenizer.from_text(words["tokenizer"])
        return Text(splits["train"], splits["valid"], splits.get("test"), tokenizer, name)

    return remembered("text", question, all_files, make, to_file, from_file)


def name_of(what: str | Path) -> str:
    """What a text is called that a folder holds, or that is known by this name; nothing is read."""
    folder = Path(os.path.realpath(what)).name
    return next((name for name, folders in NAMED.items() if folder in folders), folder)


def _files(what: str | Path) -> tuple[str, dict[str, list[Path]]]:
    """The name of a text, and the files of each split; one for a file that is yet to be split."""
    if str(what) == "prose":
        return "prose", {"whole": [PROSE]}
    home = data_folder(*NAMED.get(str(what), ())) or Path(what)
    if home.is_file():
        return home.name, {"whole": [home]}
    if not home.is_dir():
        where = f"not in {data_place()}" if str(what) in NAMED else "no file, no folder and no known text"
        raise InputError(f"{what} is {where}; give a file or a folder, or one of prose, {', '.join(NAMED)}")
    splits = {split: _of_split(home, split) for split in SPLITS}
    for split in ("train", "valid"):
        if not splits[split]:
            looked = f"wiki.{split}.tokens, {split}.txt and *.{split}.txt, plain or .bz2"
            raise InputError(f"{home} has no text for {split}; looked for {looked}")
    return name_of(home), splits


def _of_split(home: Path, split: str) -> list[Path]:
    for pattern in (f"wiki.{split}.tokens", f"{split}.txt", f"*.{split}.txt"):
        if files := sorted([*home.glob(pattern), *home.glob(f"{pattern}.bz2")]):
            return files
    return []


def _texts(files: dict[str, list[Path]]) -> dict[str, str]:
    texts = {split: "\n".join(map(text_of, own)) for split, own in files.items() if own}
    if "whole" in texts:
        lines = texts.pop("whole").splitlines(keepends=True)
        part = max(1, len(lines) // 20)
        parts = (lines[: -2 * part], lines[-2 * part : -part], lines[-part:])
        texts = {split: "".join(own) for split, own in zip(SPLITS, parts, strict=True)}
    for split, text in texts.items():
        if not text.strip():
            where = ", ".join(map(str, files.get(split) or files["whole"]))
            raise InputError(f"{where}: there is no text for {split}; give a longer one")
    return texts


def text_of(file: Path) -> str:
    try:
        return (bz2.decompress(file.read_bytes()) if file.suffix == ".bz2" else file.read_bytes()).decode()
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} cannot be read as text ({reason(error)}); give UTF-8, plain or .bz2") from error
