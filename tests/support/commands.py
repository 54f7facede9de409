"""The command line called from tests, and small models and data of our own for it."""

import json
import sys

import numpy as np
import pytest
import torch

from oversmooth import cli


def run(monkeypatch, *arguments):
    """The exit code of the console script with these arguments."""
    monkeypatch.setattr(sys, "argv", ["oversmooth", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code or 0


def refusal(monkeypatch, capsys, *arguments):
    """What the console script says to these arguments, which it refuses: one short sentence and exit code 2."""
    assert run(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    sentence = captured.err.strip()
    assert sentence.startswith("oversmooth: ")
    assert sentence.isprintable()  # one line, and no traceback
    assert len(sentence) < 300
    return sentence.removeprefix("oversmooth: ")


def make_vit(folder):
    """A small vision checkpoint with its preprocessing."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", "size": 16})
    )
    return folder


def make_gpt(folder):
    """A small language checkpoint with its tokenizer."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {c: i for i, c in enumerate("?abcdefghijklmnopqrstuvwxyz .,")}
    words = Tokenizer(models.WordLevel(letters, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", pad_token="?").save_pretrained(folder)
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=len(letters), n_positions=64, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def make_cifar(folder, train=200, test=100):
    """CIFAR-100's binary layout, but few pictures: noise, whose class is its level."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        labels = np.arange(count, dtype=np.uint8) % 100
        pixels = draw.integers(0, 40, (count, 3072)) + 2 * labels[:, None]
        rows = np.concatenate([labels[:, None] // 5, labels[:, None], pixels.astype(np.uint8)], axis=1)
        (folder / f"{split}.bin").write_bytes(rows.astype(np.uint8).tobytes())
    names = "\n".join(f"class{i}" for i in range(100)) + "\n"
    (folder / "fine_label_names.txt").write_text(names)
    (folder / "coarse_label_names.txt").write_text("\n".join(f"coarse{i}" for i in range(20)) + "\n")
    return folder
