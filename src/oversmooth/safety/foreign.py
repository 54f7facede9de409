"""Text that others wrote, such as names of files and tensors, metadata and messages of libraries, made fit to be shown.

A terminal obeys control characters and a reader stops reading after a few lines: `visible` makes the former harmless,
`sentence` keeps a refusal short. Nothing here knows who shows it.
"""

from __future__ import annotations

import codecs
import json
import re
import unicodedata
from typing import Any

MOST_LETTERS = 280
"""Of a sentence, so that with the program's name before it it stays below 300."""
_MOST_OF_A_WORD = 90
_MOST_OF_A_REMEDY = 140

# C0 and C1 controls, marks that turn the direction of what follows, line separators, halves of characters.
_UNSEEN = "\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL_WITHIN_LINES = re.compile(f"(?![\\n\\t])[{_UNSEEN}]")


def visible(text: str, encoding: str = "utf-8") -> str:
    """The same text with control characters as escapes that can be read; lines and tabs stay.

    encoding: of what shows it; what it lacks is replaced by something that looks or reads alike.

    >>> visible("a\\x1b[31mb\\u202ec")
    'a\\\\x1b[31mb\\\\u202ec'
    """
    text = _CONTROL_WITHIN_LINES.sub(_escape, text)
    return text if encoding.lower().startswith("utf") else text.encode(encoding, READABLE).decode(encoding)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def sentence(text: str, most: int = MOST_LETTERS) -> str:
    """One line, with control characters as escapes and at most so many letters: long names and lists lose their middle,
    and what comes after the last semicolon, the remedy, stays.
    """
    text = visible(re.sub(r"\s*[\r\n\t]\s*", " ", text).strip())
    if len(text) <= most:
        return text
    text = re.sub(rf"\S{{{_MOST_OF_A_WORD + 1},}}", lambda word: shortened(word[0], _MOST_OF_A_WORD), text)
    problem, semicolon, remedy = text.rpartition("; ")
    if not semicolon:
        return shortened(text, most)
    remedy = shortened(remedy, max(_MOST_OF_A_REMEDY, most - len(problem + semicolon)))
    return shortened(problem, most - len(semicolon + remedy)) + semicolon + remedy


def shortened(text: str, most: int) -> str:
    """A long text without its middle; of its end, where names differ, more than of its beginning.

    >>> shortened("encoder.layer.11.attention.output", 16)
    'encod…ion.output'
    """
    head = (most - 1) // 3
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def json_text(value: Any, **options: Any) -> str:
    """JSON as `json.dumps` writes it, letters of every language as they are and control characters as escapes."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _CONTROL_WITHIN_LINES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


READABLE = "oversmooth.readable"
"""How `str.encode` is told to replace what an encoding lacks."""
_LETTERS = {
    "-": "–—‒−‐‑─━═", "|": "│┃║╎", "+": "┌┐└┘├┤┬┴┼╭╮╰╯╞╡╪┏┓┗┛┡┩", "#": "█▉▊▋▌", " ": "▍▎▏", "'": "‘’‚′", '"': "“”„″",
    "*": "•·∙", "->": "→", "<-": "←", "...": "…", "x": "×", "<=": "≤", ">=": "≥", "+-": "±", "~": "≈", "inf": "∞",
    "||": "‖", "in": "∈", "lambda": "λ", "rho": "ρ", "sigma": "σ", "mu": "μ", "gamma": "γ", "beta": "β", "epsilon": "ε",
    "d": "Δ", "sum": "Σ", "Lambda": "Λ", "Theta": "Θ",
}  # fmt: skip
_ALIKE = {letter: alike for alike, letters in _LETTERS.items() for letter in letters}


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_alike, error.object[error.start : error.end])), error.end


def _alike(letter: str) -> str:
    """Something that every encoding has: what looks alike, the letter without its marks, or its number."""
    plain = _ALIKE.get(letter) or "".join(_ALIKE.get(part, part) for part in unicodedata.normalize("NFKD", letter))
    kept = "".join(part for part in plain if not unicodedata.combining(part))
    return kept if kept.isascii() and kept else letter.encode("ascii", "backslashreplace").decode("ascii")


codecs.register_error(READABLE, _replaced)
