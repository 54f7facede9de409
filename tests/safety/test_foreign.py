"""Text of others: shown, never obeyed, and short."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oversmooth.safety.errors import InputError
from oversmooth.safety.foreign import MOST_LETTERS, json_text, sentence, visible

NASTY = "\x1b]0;title\x07\x1b[31m\x9b2J\x08\x7f\u202egpj\u2066\udcff"
TURNING = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def obeyed(text):
    """Characters that a terminal, or whoever lays out the text, would act upon."""
    return [c for c in text if c not in "\n\t" and (unicodedata.category(c) in ("Cc", "Cs") or c in TURNING)]


def test_control_characters_are_shown_as_escapes():
    shown = visible(f"a {NASTY} b")
    assert obeyed(shown) == []
    assert shown.startswith("a \\x1b]0;title\\x07\\x1b[31m\\x9b2J\\x08\\x7f\\u202egpj\\u2066\\udcff")
    assert visible("two\nlines\tand λ → ∞ [b]") == "two\nlines\tand λ → ∞ [b]"


@given(st.text())
def test_nothing_is_obeyed_and_what_is_shown_once_stays(text):
    shown = visible(text)
    assert obeyed(shown) == []
    assert visible(shown) == shown
    shown.encode()


@pytest.mark.parametrize(
    "text",
    [
        f"/tmp/{'a' * 5000}/model.safetensors does not exist; give a directory",
        f"it has the columns {', '.join(f'column{i}' for i in range(1000))}; it needs one named image",
        f"the library said {'no ' * 3000}; install it again",
        f"there is no layer 'x'; choose one of {', '.join(map(str, range(2000)))}",
        "word " * 2000,
        "x" * 5000,
    ],
)
def test_a_sentence_is_short_and_keeps_its_ends(text):
    short = str(InputError(text))
    assert len(short) <= MOST_LETTERS < 300
    assert short[:20] == text[:20]
    assert short[-15:] == text.strip()[-15:]
    if "; " in text and len(text.split("; ")[1]) < 100:
        assert short.endswith(text[text.index("; ") :])


@given(st.text(max_size=800))
def test_any_text_becomes_one_harmless_line(text):
    line = sentence(text)
    assert len(line) <= MOST_LETTERS
    assert obeyed(line) == []
    assert "\n" not in line
    assert sentence(line) == line


def test_refusals_are_one_line_wherever_they_are_raised():
    error = InputError(f"{NASTY}\n cannot be read;\r\n give another")
    assert obeyed(str(error)) == []
    assert str(error).endswith("cannot be read; give another")
    assert str(InputError(str(error))) == str(error)


@given(st.dictionaries(st.text(), st.text()))
def test_json_says_the_same_without_control_characters(value):
    for options in ({}, {"indent": 1}):
        text = json_text(value, **options)
        assert obeyed(text) == []
        assert json.loads(text) == value
        text.encode()
