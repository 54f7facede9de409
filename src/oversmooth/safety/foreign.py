"""Foreign names and messages for display: control characters escaped, sentences shortened."""

import json
import re
from typing import Any

MOST_LETTERS = 280  # length of a sentence: below 300 with the program's name
# Control characters except \t and \n, marks that change the direction of writing, line separators, lone surrogates.
_OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with control characters escaped; line ends and tabs stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def sentence(text: str) -> str:
    """One printable line, shortened inside long names, then in the middle: the remedy at the end stays."""
    text = visible(re.sub(r"\s*[\r\n\t]\s*", " ", text).strip())
    if len(text) > MOST_LETTERS:
        text = re.sub(r"\S{91,}", lambda word: shortened(word[0], 90), text)
    return shortened(text, MOST_LETTERS)


def shortened(text: str, most: int) -> str:
    """A long text without its middle; keeps more of the end, where names differ.

    >>> shortened("encoder.layer.11.attention.output", 16)
    'encod…ion.output'
    """
    head = (most - 1) // 3
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def json_text(value: Any, **options: Any) -> str:
    """JSON as `json.dumps` writes it, letters of every language as they are and control characters as escapes."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False, **options))
