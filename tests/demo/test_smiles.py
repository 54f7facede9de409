"""The tokenizer for reactions, and the reactions that come with the package."""

import re
from collections import Counter

import pytest
import torch

from oversmooth.demo.smiles import SPLIT, smiles_tokenizer
from oversmooth.inputs.text import REACTIONS, text_inputs
from oversmooth.safety.errors import InputError

LINES = REACTIONS.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def reader(installed):
    return smiles_tokenizer(installed("rxnmapper", "albert_heads_8_uspto_all_1310k/vocab.txt"))


def atoms(smiles):
    """How many of each element, hydrogen left out."""
    found = Counter()
    for token in re.findall(SPLIT, smiles):
        bracket = re.match(r"\[\d*([A-Z][a-z]?|[a-z])", token)
        if bracket or token[0].isalpha():
            found[(bracket[1] if bracket else token).capitalize()] += 1
    found.pop("H", None)
    return found


def test_there_are_24_reactions_of_20_to_120_letters():
    assert len(LINES) == len(set(LINES)) == 24
    assert all(20 <= len(line) <= 120 for line in LINES)


@pytest.mark.parametrize("line", LINES)
def test_every_atom_of_a_product_comes_from_a_reactant(line):
    before, after = line.split(">>")
    assert atoms(after) <= atoms(before)
    for molecule in [*before.split("."), *after.split(".")]:
        plain = re.sub(r"\[[^\]]*\]", "", molecule)
        assert plain.count("(") == plain.count(")")
        assert all(count % 2 == 0 for count in Counter(re.findall(r"\d", plain)).values())


def test_a_reaction_round_trips_and_has_no_unknown(reader):
    for line in LINES:
        ids = reader(line)["input_ids"]
        assert reader.convert_ids_to_tokens(ids) == ["[CLS]", *re.findall(SPLIT, line), "[SEP]"]
        assert reader.unk_token_id not in ids
        assert reader.decode(ids, skip_special_tokens=True) == line


def test_what_is_no_smiles_is_unknown_and_not_dropped(reader):
    tokens = reader.convert_ids_to_tokens(reader("CqC O")["input_ids"])
    assert tokens == ["[CLS]", "C", "[UNK]", "C", "[UNK]", "O", "[SEP]"]


def test_reactions_are_batched_a_line_each(reader):
    inputs = text_inputs(reader, REACTIONS, count=24, length=512, batch=8, lines=True)
    batches = list(inputs)
    assert inputs.count == 24
    assert [len(batch) for batch in batches] == [8, 8, 8]
    assert batches[0].names[0] == "line 1 of reactions.txt"
    first = batches[0]
    mask = first.inputs["attention_mask"].bool()
    assert torch.equal(first.special.sum(dim=1), torch.full((8,), 2))
    assert not first.special[~mask].any()
    assert (first.inputs["input_ids"][~mask] == reader.pad_token_id).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [("[PAD]\n[UNK]\n[CLS]\nC", r"has no \[SEP\], \[MASK\]; give the model's own"), (None, "cannot be read")],
)
def test_a_vocabulary_that_will_not_do_is_named(text, words, tmp_path):
    file = tmp_path / "vocab.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        smiles_tokenizer(file)
    assert str(file) in str(caught.value)
