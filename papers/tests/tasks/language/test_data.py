"""Text in its layouts, tokens against plain Python, and what cannot be read."""

import bz2
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.places import shared

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.language import data, tokens
from oversmooth_papers.tasks.language.data import load_text
from oversmooth_papers.tasks.language.tokens import Tokenizer, tokenizer_of

TRAIN = "the cat sat on the mat\nthe dog <unk> sat\n\nthe end\n"
VALID = "a cat sat\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "text"
    home.mkdir()
    return home


def written(home, pattern, packed=False):
    for split, text in (("train", TRAIN), ("valid", VALID), ("test", "the dog\n")):
        name, contents = pattern.format(split), text.encode()
        (home / (f"{name}.bz2" if packed else name)).write_bytes(bz2.compress(contents) if packed else contents)
    return home


@pytest.mark.parametrize("pattern", ["wiki.{}.tokens", "{}.txt", "novels.{}.txt"])
@pytest.mark.parametrize("packed", [False, True])
def test_words_in_each_layout(folder, pattern, packed):
    text = load_text(written(folder, pattern, packed))
    words = [word for line in TRAIN.splitlines() for word in [*line.split(), "<eos>"]]
    assert (text.name, text.tokenizer.size) == ("text", len(set(words)))
    names = list(text.tokenizer.vocabulary)
    assert [names[i] for i in text.train] == words
    assert [names[i] for i in text.valid] == ["<unk>", "cat", "sat", "<eos>"]


def test_what_is_kept_is_what_was_read(folder, tmp_path, monkeypatch):
    home = written(folder, "{}.txt")
    for kind in ("word", "bytes", "bpe"):
        fresh = load_text(home, kind, 300, masked=True)
        with monkeypatch.context() as patch:
            patch.setattr(data, "text_of", lambda _files: pytest.fail("it was read again"))
            kept = load_text(home, kind, 300, masked=True)
        assert kept.tokenizer == fresh.tokenizer
        assert kept.tokenizer.mask == fresh.tokenizer.mask
        for split in data.SPLITS:
            assert torch.equal(getattr(kept, split), getattr(fresh, split))
    for path in (tmp_path / "cache").iterdir():  # a damaged file is made again
        path.write_bytes(path.read_bytes()[:50])
    assert torch.equal(load_text(home).train, load_text(home).train)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1))
def test_bytes_go_and_come_back(text):
    tokenizer = Tokenizer("bytes")
    ids = tokenizer.encode(text)
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_bpe_is_that_of_tokenizers(monkeypatch):
    pytest.importorskip("tokenizers")
    text = TRAIN * 30
    tokenizer = tokenizer_of(text, "bpe", 300, masked=True)
    ids = tokenizer.encode(TRAIN)
    assert tokenizer.decode(ids) == TRAIN.replace("\n\n", "\n")  # a line without a word is left out
    assert len(ids) < len(TRAIN.encode())
    assert tokenizer.size <= 300
    assert tokenizer.mask == json.loads(tokenizer.json)["model"]["vocab"]["<mask>"]
    monkeypatch.setattr(tokens, "_LINES", 2)  # however many lines are encoded at once
    assert torch.equal(tokenizer.encode(TRAIN), ids)
    assert tokenizer.encode("\n \n").shape == (0,)


def test_words_are_what_transformers_makes_of_the_same_file():
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    tokenizer = tokenizer_of(TRAIN, "word", 0, masked=False)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer.json), unk_token="<unk>", eos_token="<eos>"
    )
    assert theirs(TRAIN + "an unknown word\n")["input_ids"] == tokenizer.encode(TRAIN + "an unknown word\n").tolist()


def test_one_file_is_split(folder):
    lines = [f"line {number}\n" for number in range(60)]
    (folder / "book.txt").write_text("".join(lines))
    text = load_text(folder / "book.txt", "bytes")
    decoded = [text.tokenizer.decode(getattr(text, split)) for split in data.SPLITS]
    assert "".join(decoded) == "".join(lines)
    assert decoded[1] == "".join(lines[54:57])
    assert load_text("prose", "bytes").name == "prose"


def test_texts_of_several_files_follow_each_other(folder):
    for name in ("b", "a"):
        (folder / f"{name}.train.txt").write_text(f"{name} train\n")
        (folder / f"{name}.valid.txt").write_text(f"{name} valid\n")
    text = load_text(folder, "bytes")
    assert text.tokenizer.decode(text.train) == "a train\n\nb train\n"
    for again in (text, load_text(folder, "bytes")):  # as it is read, and as it is kept
        assert again.test is None
    (folder / "test.txt").write_text("\n")
    with pytest.raises(InputError, match="there is no text for test"):
        load_text(folder, "bytes")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no text for train; looked for wiki"),
        ({"train.txt": b"a"}, "has no text for valid; looked for wiki"),
        ({"train.txt": b"a", "valid.txt": b" \n"}, "there is no text for valid"),
        ({"train.txt": b"a", "valid.txt": b"\xff\xfe\x00"}, "cannot be read as text"),
        ({"train.txt": b"a", "valid.txt.bz2": b"no such thing"}, "cannot be read as text"),
    ],
)
def test_bad_text_is_refused(folder, files, words):
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    with pytest.raises(InputError, match=words):
        load_text(folder)


def test_a_named_text_is_found_where_data_lies(folder, monkeypatch):
    (folder / "data" / "wikitext-2").mkdir(parents=True)
    written(folder / "data" / "wikitext-2", "wiki.{}.tokens")
    monkeypatch.setenv("OVERSMOOTH_DATA", str(folder))
    assert load_text("wikitext-2").name == "wikitext-2"
    monkeypatch.delenv("OVERSMOOTH_DATA")
    with pytest.raises(InputError, match="wikitext-2 is not in OVERSMOOTH_DATA, which is not set"):
        load_text("wikitext-2")
    with pytest.raises(InputError, match="no file, no folder and no known text"):
        load_text(folder / "nowhere")


@pytest.mark.realdata
def test_wikitext_has_its_published_counts():
    text = load_text(shared("data", "wikitext-2"))
    assert (len(text.train), len(text.valid), len(text.test)) == (2_088_628, 217_646, 245_569)
    assert text.tokenizer.size == 33_278
