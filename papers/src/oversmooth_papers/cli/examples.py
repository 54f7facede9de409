"""An example of every command here, as `oversmooth.cli.examples` has them; other tables have the usual one."""

from __future__ import annotations

EXAMPLES = {
    "train": "oversmooth train --data cifar100 --variant sharpen --share 0.1 -o runs/sharpen",
    "sweep": "oversmooth sweep sweep.toml --launcher slurm --slurm partition=gpu -o sweep.md",
    "tune": "oversmooth tune facebook/deit-tiny-patch16-224 --data labelled.parquet -m neutreno --save tuned/",
    "reproduce table1": "oversmooth reproduce table1 --trained --data cifar-100/test.parquet --inputs 64 -o table1.md",
    "reproduce table2": "oversmooth reproduce table2 --cells 10% --seeds 3 -o table2.md",
    "reproduce fig2": "oversmooth reproduce fig2 bert-base-uncased --inputs 32 -o fig2.pdf",
    "reproduce fig3": "oversmooth reproduce fig3 facebook/deit-tiny-patch16-224 --data images/ -o fig3.pdf",
    "reproduce fig5": "oversmooth reproduce fig5 bert-base-uncased gpt2 -o fig5.pdf",
    "reproduce steering": "oversmooth reproduce steering facebook/deit-tiny-patch16-224 --data images/ -o steering.md",
    "reproduce status": "oversmooth reproduce status",
    "reproduce first-paper": "oversmooth reproduce first-paper -o first-paper.md",
    "reproduce claims": "oversmooth reproduce claims -o claims.md",
    "reproduce paper": "oversmooth reproduce paper --budget 30m --at-once 4",
    "reproduce verify": "oversmooth reproduce verify 44136fa355b3 --data cifar100 --images 1000",
    "reproduce models": "oversmooth reproduce models --pack models.zip",
    "reproduce sharpening": "oversmooth reproduce sharpening --seeds 7 --at-once 6 -o sharpening.md",
    "reproduce text figures": "oversmooth reproduce text figures --quick -o figures/",
    "reproduce neutreno kernel": "oversmooth reproduce neutreno kernel bert-base-uncased --inputs 16 -o kernel.md",
    "reproduce neutreno energy": "oversmooth reproduce neutreno energy bert-base-uncased --strength 0.6 -o energy.md",
    "reproduce neutreno cosine": "oversmooth reproduce neutreno cosine bert-base-uncased gpt2 -o cosine.pdf",
    "reproduce neutreno prediction": (
        "oversmooth reproduce neutreno prediction --trained runs/plain/model.safetensors --data cifar100"
    ),
    "reproduce neutreno robustness": (
        "oversmooth reproduce neutreno robustness --trained runs/plain/model.safetensors --data cifar100 -o robust.md"
    ),
    "reproduce neutreno adaptation": (
        "oversmooth reproduce neutreno adaptation --data imagenet-validation.parquet -o adaptation.md"
    ),
}
