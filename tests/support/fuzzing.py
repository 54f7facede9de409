"""Any bytes in place of a file that is read: a result, or an InputError.

OVERSMOOTH_FUZZ=2000 runs as many examples of each, others every time; by default few and always the same.
"""

import copy
import io
import json
import os
import warnings

import numpy as np
import pyarrow
import pyarrow.parquet
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from support.nightly import NIGHTLY

from oversmooth import InputError

EXAMPLES = int(os.environ.get("OVERSMOOTH_FUZZ", "0"))
NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**60, 2**64, -(2**63), 10**9, 10**18, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["../x", "/etc/passwd", "\x1b[31m"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
ODD = st.sampled_from(
    [b"", b"\0" * 100, b"\xff\xfe", b"[" * 50_000, b'{"a":' * 5000, b"9" * 6000, b"null", b"[]", b"{}"]
)
PIXELS = np.arange(4 * 4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 4, 3)


class Letters:
    """A tokenizer of letters, as far as it is asked."""

    is_fast, pad_token_id, eos_token_id, all_special_ids = True, 0, 0, ()

    def num_special_tokens_to_add(self):
        return 0

    def __len__(self):
        return 128

    def __call__(self, text, *, max_length, **_):
        pieces = [text[i : i + max_length] for i in range(0, len(text), max_length)]
        ids = [[ord(letter) % 128 for letter in piece] for piece in pieces]
        zeros = [[0] * len(piece) for piece in pieces]
        return {"input_ids": ids, "special_tokens_mask": zeros, "attention_mask": [[1] * len(p) for p in pieces]}


def fuzz(few=25):
    return settings(
        max_examples=EXAMPLES or (few if NIGHTLY else few // 2),
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items)[:40]:
        yield from places(inner, (*path, key))


def one_changed(whole):
    """JSON with something else in one place, or with one place gone."""

    def make(change):
        path, value, gone = change
        changed = [copy.deepcopy(whole)]
        at = changed
        way = [0, *path]
        for key in way[:-1]:
            at = at[key]
        if gone and path:
            del at[way[-1]]
        else:
            at[way[-1]] = value
        return json.dumps(changed[0] if changed else None).encode()

    return st.tuples(st.sampled_from(list(places(whole))), VALUES, st.booleans()).map(make)


def damaged(whole):
    """Bytes with some cut out, put in or changed, or nothing but what one likes."""

    def make(changes):
        content = bytearray(whole)
        for share, gone, new in changes:
            at = int(share * len(content))
            content[at : at + gone] = new
        return bytes(content)

    change = st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 4, 8, 10**9]), st.binary(max_size=8))
    return st.one_of(st.lists(change, min_size=1, max_size=4).map(make), st.binary(max_size=60), ODD)


def any_json(whole):
    return st.one_of(one_changed(whole), one_changed(whole), damaged(json.dumps(whole).encode()))


def held(call, *arguments, **settings):
    """The result, or None where it was refused in a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries warn of damage as they like
            return call(*arguments, **settings)
    except InputError as error:
        said = str(error)
    assert " ()" not in said.replace("is ()", "")  # a reason that is empty, and no value that is
    assert len(said) < 300
    return None


def one_entry_changed(data, entries):
    """JSON texts by name, one of them damaged."""
    key = data.draw(st.sampled_from(list(entries)))
    content = data.draw(any_json(entries[key])).decode("utf-8", "replace")
    return {name: json.dumps(value) for name, value in entries.items()} | {key: content}


def as_parquet(**columns):
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), content)
    return content.getvalue()
