"""The tokens of one input: against plain loops over what the model's own blocks gave, heard by hooks of our own."""

import base64

import numpy
import pytest
import torch
from support import family_checks as checks
from support.families import usable
from support.nightly import nightly

from oversmooth import Diagnosis, InputError, diagnose
from oversmooth.diagnosis import one_input as looking
from oversmooth.diagnosis.one_input import MOST_TOKENS, ExampleInput
from oversmooth.inputs.batches import Batch
from oversmooth.trace.plans import SampleBlock

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
NAMES = [name for name in ("ViT", "BERT", "Llama") if name in usable()]
STEP = 1 / 127


def numbers(code):
    return numpy.frombuffer(base64.b64decode(code), dtype=numpy.uint8).astype(float)


def pairs(code, groups):
    """The cosines as a table, by the description of the format."""
    table, values = numpy.eye(groups), iter(numbers(code) / 127 - 1)
    for i in range(groups):
        for j in range(i + 1, groups):
            table[i, j] = table[j, i] = next(values)
    return table


def cosines(x):
    """One pair at a time."""
    out = numpy.eye(len(x))
    for i, one in enumerate(x):
        for j, other in enumerate(x):
            if i != j:
                out[i, j] = (one * other).sum() / numpy.sqrt((one**2).sum() * (other**2).sum())
    return out


@pytest.mark.parametrize("name", NAMES)
def test_cosines_and_attention_received(name):
    shown = checks.diagnosis(name).one_input
    heard = checks.passages(name)
    streams = [heard[0].x, *(passage.y for passage in heard)]
    assert len(shown.similarity) == len(streams)
    assert shown.groups == shown.tokens == streams[0].shape[1]  # the first input has no padding
    for code, stream in zip(shown.similarity, streams, strict=True):
        expected = cosines(stream[0].numpy())
        assert numpy.abs(pairs(code, shown.groups) - expected).max() < 0.6 * STEP
    for code, most, passage in zip(shown.received, shown.received_most, heard, strict=True):
        attention = passage.A[0].numpy()
        for head, received in enumerate(numbers(code).reshape(len(attention), shown.groups) / 255 * most):
            expected = [
                sum(attention[head, i, j] for i in range(shown.tokens)) / shown.tokens for j in range(shown.tokens)
            ]
            assert numpy.abs(received - expected).max() < 0.6 * most / 255 + 1e-5


def one_input(blocks, first, one, mask, tokenizer):
    example = ExampleInput(first, one, mask, tokenizer)
    for block in blocks:
        example.add(block)
    return example.result()


def seen(x, count=1):
    """Blocks that leave tokens as they are, ``(1, n, d)``, and whose attention was not observed."""
    return [
        SampleBlock(None, None, x, x, (), {})  # type: ignore[arg-type]
        for _ in range(count)
    ]


def test_long_texts_are_taken_in_groups_and_say_so():
    torch.manual_seed(0)
    x = torch.randn(1, 600, 3, dtype=torch.float64)
    shown = one_input(seen(x), torch.zeros(1), torch.zeros(1), None, None)
    assert (shown.tokens, shown.groups, shown.kind) == (600, 200, "tokens")
    assert shown.aggregated == "600 tokens, shown in groups of 3 that follow each other: means over pairs"
    table, every = pairs(shown.similarity[0], 200), cosines(x[0, :12].numpy())
    for i in range(4):
        for j in range(4):
            if i != j:  # the mean over the nine pairs
                assert table[i, j] == pytest.approx(every[3 * i : 3 * i + 3, 3 * j : 3 * j + 3].mean(), abs=0.6 * STEP)


@nightly
def test_large_images_are_taken_in_squares():
    torch.manual_seed(0)
    x, image = torch.randn(1, 1 + 24 * 24, 3), torch.rand(1, 3, 96, 96)
    shown = one_input(seen(x), image, image, None, None)
    assert (shown.grid, shown.leading, shown.groups) == ([12, 12], 1, 145)
    assert shown.groups <= MOST_TOKENS
    assert shown.aggregated == "24 × 24 patches, shown in groups of 2 × 2: means over pairs"
    every, table = cosines(x[0].numpy().astype(float)), pairs(shown.similarity[0], 145)
    first, second = [1, 2, 25, 26], [3, 4, 27, 28]  # patches of the first two squares, behind the class token
    assert table[1, 2] == pytest.approx(every[numpy.ix_(first, second)].mean(), abs=0.6 * STEP)
    assert table[0, 1] == pytest.approx(every[0, first].mean(), abs=0.6 * STEP)
    assert (shown.picture.width, shown.picture.height) == (64, 64)
    assert len(base64.b64decode(shown.picture.pixels)) == 3 * 64 * 64


@pytest.mark.parametrize(
    ("n", "height", "width", "grid"),
    [
        (197, 224, 224, (1, 14, 14)),
        (196, 224, 224, (0, 14, 14)),
        (198, 224, 224, (2, 14, 14)),
        (50, 28, 28, (1, 7, 7)),
        (1 + 6 * 12, 96, 192, (1, 6, 12)),
        (31, 224, 224, None),
        (2, 8, 8, None),
    ],
)
def test_which_grid_the_patches_make(n, height, width, grid):
    assert looking._grid(n, height, width) == grid


def test_a_picture_keeps_its_colours():
    image = torch.zeros(1, 3, 4, 4)
    image[0, 0, 0, 0], image[0, 2, 3, 3] = 2.0, -2.0
    pixels = numbers(looking._picture(image[0]).pixels).reshape(4, 4, 3)
    assert pixels[0, 0].tolist() == [255, 128, 128]
    assert pixels[3, 3].tolist() == [128, 128, 0]


def test_words_and_padding():
    class Tokenizer:
        def convert_ids_to_tokens(self, ids):
            return [f"Ġw{i}" if i else "[PAD]" for i in ids]

    one = Batch({"input_ids": torch.tensor([[3, 4, 5, 0]])})
    mask = torch.tensor([[True, True, True, False]])
    shown = one_input(seen(torch.randn(1, 4, 2)), one, one, mask, Tokenizer())
    assert (shown.kind, shown.labels, shown.tokens) == ("text", [" w3", " w4", " w5"], 3)
    single = torch.tensor([[True, False, False, False]])
    assert one_input(seen(torch.randn(1, 4, 2)), one, one, single, None) is None


def test_streams_of_different_tokens_are_not_shown():
    blocks = [*seen(torch.randn(1, 4, 2)), *seen(torch.randn(1, 2, 2))]
    assert one_input(blocks, torch.zeros(1), torch.zeros(1), None, None) is None


def test_it_can_be_left_out():
    model, given = checks.FAMILIES["ViT"].make(torch.float32), checks.FAMILIES["ViT"].given()
    assert diagnose(model, given, example=False, spectra=False).one_input is None
    with pytest.raises(InputError, match="example is 'yes'"):
        diagnose(model, given, example="yes")


def test_version_2_had_none():
    data = checks.diagnosis("ViT").to_dict() | {"version": 2}
    del data["one_input"]
    assert Diagnosis.from_dict(data).one_input is None
