"""Twenty small random checkpoints of ten families, to try `oversmooth survey` on.

    python examples/toy_checkpoints.py toys
    oversmooth survey toys/survey.toml -o survey

Each family is saved with two and with four blocks. survey.toml names all of them, and the ViTs to diagnose.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel

SIZES = dict(hidden_size=32, num_attention_heads=4, intermediate_size=64, vocab_size=100)
GROUPED = dict(num_key_value_heads=2)
FAMILIES = {
    "bert": {},
    "roberta": {},
    "electra": {},
    "mpnet": {},
    "gpt_neox": {},
    "gpt2": dict(n_embd=32, n_head=4, n_inner=64),
    "llama": GROUPED,
    "mistral": GROUPED,
    "qwen2": GROUPED,
    "vit": dict(image_size=32, patch_size=8),
}


def main(folder: Path) -> None:
    for family, own in FAMILIES.items():
        for depth in (2, 4):
            torch.manual_seed(depth)
            blocks = {"n_layer" if family == "gpt2" else "num_hidden_layers": depth}
            model = AutoModel.from_config(AutoConfig.for_model(family, **SIZES, **own, **blocks))
            model.save_pretrained(folder / f"{family}-{depth}")
    wanted = f'spectrum = ["{folder}/*-*"]\ndiagnose = ["{folder}/vit-*"]\ninputs = 4\n'
    (folder / "survey.toml").write_text(wanted)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
