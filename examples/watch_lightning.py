"""A ViT of one's own on Fashion-MNIST in Lightning, watched, with an alarm.

    python examples/watch_lightning.py [--steps 60] [-o DIRECTORY]

Trains on the 512 images that come with the package.
"""

import argparse
from pathlib import Path

import lightning as L
import torch
from torch import nn
from watch_loop import MyViT  # beside this file

import oversmooth
from oversmooth.demo.vits import images
from oversmooth.integrations import LightningSmoothing


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = MyViT(depth=6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("-o", "--output", type=Path, default=Path("watched"))
    options = parser.parse_args()
    L.seed_everything(0, verbose=False)
    data = images()
    pictures = data.images[:, :1].float() / 127.5 - 1
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pictures, data.labels), 64, shuffle=True)
    smoothing = LightningSmoothing(
        every=max(1, options.steps // 10), parts=2, alarms=oversmooth.Alarm("effective_rank", below=1.5)
    )
    trainer = L.Trainer(
        max_steps=options.steps,
        accelerator="auto",
        devices=1,
        logger=L.pytorch.loggers.CSVLogger(options.output),
        callbacks=[smoothing],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), loader)
    assert smoothing.monitor is not None
    assert not smoothing.monitor.failures, smoothing.monitor.failures
    print(smoothing.history.to_pandas().tail(7).to_string(index=False))
    smoothing.to_html(options.output / "film.html")
    print(f"wrote {options.output / 'film.html'}, and {trainer.log_dir}")


if __name__ == "__main__":
    main()
