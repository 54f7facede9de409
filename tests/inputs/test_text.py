"""Text from every source: pieces that fill their length, special tokens marked, padding masked, failures named."""

import numpy as np
import pytest
import torch

from oversmooth.inputs.arrays import token_ids
from oversmooth.inputs.text import PROSE, text_inputs
from oversmooth.safety.errors import InputError


def gathered(inputs, key="input_ids"):
    return torch.cat([batch.inputs[key] for batch in inputs])


def test_the_prose_is_a_few_pages_of_plain_text():
    text = PROSE.read_text(encoding="ascii")
    assert 2500 <= len(text.split()) <= 3000


def test_the_prose_is_read_where_no_data_is_given(tokenizer):
    inputs = text_inputs(tokenizer, None, count=16, length=128, batch=4)
    batches = list(inputs)
    assert inputs.what == "16 pieces of up to 128 tokens of the prose that comes with oversmooth"
    assert (inputs.kind, inputs.count, inputs.skipped) == ("text", 16, [])
    assert len(batches) == 4
    for batch in batches:
        assert set(batch.inputs) == {"input_ids", "attention_mask", "token_type_ids"}
        assert batch.inputs["input_ids"].shape == batch.special.shape == (4, 128)
        assert batch.inputs["attention_mask"].all()
        assert batch.special.nonzero()[:, 1].tolist() == [0, 127] * 4
        assert batch.names[0].startswith("prose.txt, piece ")
    assert torch.equal(gathered(inputs), gathered(inputs))


def test_all_pieces_together_are_the_text(tokenizer, tmp_path):
    file = tmp_path / "some.txt"
    file.write_text(PROSE.read_text(encoding="utf-8")[:4000], encoding="utf-8")
    inputs = text_inputs(tokenizer, file, count=1000, length=50, batch=7)
    tokens = [
        t for batch in inputs for t in batch.inputs["input_ids"][batch.inputs["attention_mask"].bool() & ~batch.special]
    ]
    whole = tokenizer(file.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    assert torch.stack(tokens).tolist() == whole[: len(tokens)]
    assert len(whole) - len(tokens) < 25  # a rest of less than half a piece is left out
    assert inputs.what == f"{inputs.count} pieces of up to 50 tokens of {file}"


def test_a_long_text_is_read_in_parts_spread_over_it(tokenizer, tmp_path):
    file = tmp_path / "long.txt"
    paragraphs = [
        f"Paragraph {i} is “quoted” and says é, ü and 漢字. " + "It goes on for a while. " * 10 for i in range(400)
    ]
    file.write_text("\n\n".join(paragraphs), encoding="utf-8")
    inputs = text_inputs(tokenizer, file, count=4, length=32, batch=4)
    (batch,) = inputs
    starts = [int(tokenizer.decode(row[1:4]).split()[1]) for row in batch.inputs["input_ids"]]
    assert starts == sorted(starts)
    assert np.abs(np.array(starts) - [50, 150, 250, 350]).max() <= 2
    assert batch.inputs["attention_mask"].all()
    assert batch.names[0].startswith("long.txt from byte ")


def test_a_long_text_that_is_not_utf8_is_named(tokenizer, tmp_path):
    file = tmp_path / "latin.txt"
    file.write_bytes("Größe und Maß. ".encode("latin-1") * 5000)
    with pytest.raises(InputError, match=r"latin\.txt is not UTF-8 text near byte .*; convert it to UTF-8"):
        text_inputs(tokenizer, file, count=2, length=16, batch=2)


def test_a_folder_of_text_files_is_one_text(tokenizer, tmp_path):
    (tmp_path / "b.txt").write_text("the second file")
    (tmp_path / "a.txt").write_text("the first file")
    (batch,) = text_inputs(tokenizer, tmp_path, count=4, length=64, batch=8)
    assert tokenizer.decode(batch.inputs["input_ids"][0], skip_special_tokens=True) == "the first file the second file"
    (batch,) = text_inputs(tokenizer, tmp_path / "a.txt", count=8, length=64, batch=8)
    assert (batch.inputs["input_ids"].shape, batch.names) == ((1, 5), ("a.txt",))


def test_a_large_folder_is_read_in_parts(tokenizer, tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(f"{name} {name} {name} word. " * 400)
    inputs = text_inputs(tokenizer, tmp_path, count=4, length=16, batch=4)
    (batch,) = inputs
    assert [name[0] for name in batch.names] == list("abcd")


def test_each_line_can_be_a_piece(tokenizer, tmp_path):
    (tmp_path / "some.txt").write_text("one\n\ntwo words\nthree more words\n")
    (batch,) = text_inputs(tokenizer, tmp_path / "some.txt", count=9, length=64, batch=9, lines=True)
    assert batch.names == ("line 1 of some.txt", "line 3 of some.txt", "line 4 of some.txt")
    assert batch.inputs["attention_mask"].sum(dim=1).tolist() == [3, 4, 5]
    assert (batch.inputs["input_ids"][0, 3:] == tokenizer.pad_token_id).all()
    assert batch.special.sum(dim=1).tolist() == [2, 2, 2]  # padding is not special


def test_parquet_rows_are_joined(tokenizer, table):
    file = table("some.parquet", text=["first row", None, "", "second row", "third row"], label=[1] * 5)
    (batch,) = text_inputs(tokenizer, file, count=4, length=64, batch=8)
    text = tokenizer.decode(batch.inputs["input_ids"][0], skip_special_tokens=True)
    assert text == "first row second row third row"
    (batch,) = text_inputs(tokenizer, file, count=4, length=64, batch=8, lines=True)
    assert batch.names == ("row 0 of some.parquet", "row 3 of some.parquet", "row 4 of some.parquet")


def test_long_parquet_is_spread(tokenizer, table):
    file = table("some.parquet", text=[f"row {i} " + "and more of it " * 30 for i in range(40)])
    (batch,) = text_inputs(tokenizer, file, count=4, length=16, batch=8)
    assert batch.names == tuple(
        f"some.parquet from row {i} of some.parquet, piece 1 of {batch.names[0].split()[-1]}" for i in (0, 10, 20, 30)
    )


def test_ids_in_npz_are_taken_as_they_are(tokenizer, tmp_path):
    ids = np.array([tokenizer(text)["input_ids"] for text in ("one two three", "four five six", "seven eight nine")])
    mask = np.ones_like(ids)
    mask[1, 3:] = 0
    np.savez(tmp_path / "ids.npz", input_ids=ids, attention_mask=mask)
    inputs = text_inputs(tokenizer, tmp_path / "ids.npz", count=9, length=4, batch=9)
    (batch,) = inputs
    assert inputs.what == f"3 rows of {tmp_path / 'ids.npz'}, the first 4 of 5 tokens"
    assert torch.equal(batch.inputs["input_ids"], torch.from_numpy(ids[:, :4]))
    assert torch.equal(batch.inputs["attention_mask"], torch.from_numpy(mask[:, :4]))
    assert batch.special.tolist() == [[True, False, False, False]] * 3


def test_rows_of_padding_alone_are_left_out(tokenizer, tmp_path):
    np.savez(tmp_path / "ids.npz", input_ids=np.ones((2, 3), int), attention_mask=[[1, 1, 1], [0, 0, 0]])
    inputs = text_inputs(tokenizer, tmp_path / "ids.npz", count=2, length=8, batch=2)
    assert inputs.count == 1
    assert inputs.skipped == ["row 1 of ids.npz is all padding and was skipped"]


class NoPadding:
    """A tokenizer that has neither padding nor an end."""

    pad_token_id = eos_token_id = None

    def __init__(self, inner):
        self._inner = inner

    def __call__(self, *args, **settings):
        return self._inner(*args, **settings)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_a_tokenizer_without_padding_is_padded_with_anything_and_masked(tokenizer, tmp_path):
    (tmp_path / "some.txt").write_text("one\ntwo words\n")
    (batch,) = text_inputs(NoPadding(tokenizer), tmp_path / "some.txt", count=2, length=9, batch=2, lines=True)
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_a_tokenizer_written_in_python_will_do():
    import transformers

    bytes_alone = transformers.ByT5Tokenizer()
    assert not bytes_alone.is_fast
    inputs = text_inputs(bytes_alone, None, count=5, length=40, batch=5)
    (batch,) = inputs
    assert batch.inputs["input_ids"].shape == (5, 40)
    assert batch.special.sum(dim=1).tolist() == [1] * 5
    assert (batch.inputs["input_ids"][:, -1] == bytes_alone.eos_token_id).all()


def refused(tokenizer, source, words, **settings):
    with pytest.raises(InputError) as caught:
        list(text_inputs(tokenizer, source, **{"count": 4, "length": 16, "batch": 2} | settings))
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    return message


def test_paths_that_will_not_do_are_named(tokenizer, folder):
    gone = folder / "gone.txt"
    assert "give a .txt file, a folder of them" in refused(tokenizer, gone, f"there is no data at {gone}")
    refused(tokenizer, folder / "a.png", "a.png contains images, which a language model does not take")
    refused(tokenizer, folder / "notes.md", "notes.md ends in '.md'")
    refused(tokenizer, folder, f"the folder {folder} contains nothing for a language model, only images; add")


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "some.txt contains no text; give another file"),
        (b" \n\n ", "some.txt contains no text"),
        (b"caf\xe9 au lait", "some.txt is not UTF-8 text (byte 3); convert it to UTF-8"),
        (b"a\0b", "some.txt is not text: it contains zero bytes"),
        ("\u200b\u200b".encode(), "some.txt; give a longer text"),
    ],
)
def test_text_that_will_not_do_is_named(tokenizer, content, words, lines, tmp_path):
    (tmp_path / "some.txt").write_bytes(content)
    assert str(tmp_path) in refused(tokenizer, tmp_path / "some.txt", words, lines=lines)


def test_parquet_without_text_is_named(tokenizer, table):
    refused(tokenizer, table("a.parquet", words=["a"]), "a.parquet has the columns words; name one of them text")
    refused(tokenizer, table("b.parquet", text=["", " "]), "b.parquet contains no text")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (dict(images=np.zeros(3)), "has no array `input_ids`; it has images"),
        (dict(input_ids=np.zeros(3, int)), "input_ids has shape (3,) and type int64; give whole numbers (n, length)"),
        (dict(input_ids=np.zeros((2, 3))), "type float64"),
        (dict(input_ids=np.zeros((2, 3), int), attention_mask=np.zeros((2, 2))), "attention_mask has shape (2, 2)"),
        (
            dict(input_ids=np.zeros((2, 3), int), attention_mask=np.zeros((2, 3))),
            "attention_mask is zero for all tokens",
        ),
        (
            dict(input_ids=np.full((2, 3), 10**6)),
            "input_ids ranges from 1000000 to 1000000, but the tokenizer has 30,522",
        ),
        (dict(input_ids=np.full((2, 3), -1)), "input_ids ranges from -1 to -1"),
    ],
)
def test_npz_that_will_not_do_is_named(tokenizer, arrays, words, tmp_path):
    np.savez(tmp_path / "bad.npz", **arrays)
    assert str(tmp_path / "bad.npz") in refused(tokenizer, tmp_path / "bad.npz", words)


def test_numbers_that_leave_no_text_are_refused(tokenizer):
    for name in ("count", "batch", "length"):
        refused(tokenizer, None, f"{name} is 0; give a whole number, 1 or more", **{name: 0})
    words = "length is 2, which leaves no text beside the tokenizer's 2 special tokens; give 3"
    refused(tokenizer, None, words, length=2)


def test_a_mask_of_text_is_refused(tmp_path):
    np.savez(tmp_path / "ids.npz", input_ids=np.ones((2, 3), int), attention_mask=np.full((2, 3), "0"))
    with pytest.raises(InputError, match="attention_mask has type <U1; give 1 for each token and 0 for padding"):
        token_ids(tmp_path / "ids.npz", 2, 99)
