"""Good inputs, small enough to copy for every case: what the cases damage. Everything is made here."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import sys
from pathlib import Path

from support import commands
from support.pictures import encoded
from support.places import ROOT

CIFAR = "cifar-100-binary"
SMALL_RUN = (
    "--no-augment", "--patch", "8", "--depth", "2", "--width", "16", "--heads", "2", "--batch", "10", "--epochs", "1",
    "--warmup", "0", "--device", "cpu",
)  # fmt: skip
PAYLOADS = {
    "colour": "\x1b[31mred\x1b[0m", "title": "\x1b]0;owned\x07red", "c1": "\x9b31mred", "bidi": "\u202ered",
    "return": "red\rgreen", "newline": "red\ngreen", "bell": "\x07red", "bold": "[bold]zebra[/bold]red",
    "closing": "red[/b]", "link": "[link=x]red", "emoji": "red:pile_of_poo:", "unicode": "redⅧ\u0301\U0001f600",
    "zero width": "red\u200b\u2060",
}  # fmt: skip
"""Names and texts that say more to a terminal than to a reader. All contain red, by which they are found again."""


def make(folder: Path) -> None:
    """All of it. Leaves threads behind: call it in a process that may be thrown away."""
    import numpy as np

    _vit(folder / "vit")
    _gpt(folder / "gpt", folder / "sharded")
    commands.make_cifar(folder / CIFAR, train=2500, test=40)  # 2 % of them are a batch of --quick
    _idx(folder / "fashion-mnist", np.random.default_rng(0))
    _images(folder, np.random.default_rng(1))
    prose = "The quick brown fox jumps over the lazy dog. " * 60
    (folder / "text.txt").write_text(prose)
    (folder / "list.toml").write_text(f'spectrum = ["{folder}/vit"]\n')
    small = "epochs = 1\nwarmup = 0\npatch = 8\ndepth = 2\nwidth = 16\nheads = 2\nbatch = 10\n"
    about = f'quick = true\nmethods = ["plain"]\ndata = "{folder}/{CIFAR}"\n'
    (folder / "sweep.toml").write_text(f"{about}[recipe]\n{small}")
    _cells(folder / "results")
    _by_commands()


def _vit(folder: Path) -> None:
    commands.make_vit(folder)
    file = folder / "preprocessor_config.json"
    stated = json.loads(file.read_text()) | {
        "do_resize": True, "size": {"height": 16, "width": 16}, "resample": 2, "do_rescale": True,
        "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    }  # fmt: skip
    file.write_text(json.dumps(stated))


def _gpt(folder: Path, sharded: Path) -> None:
    import transformers

    commands.make_gpt(folder)
    transformers.GPT2LMHeadModel.from_pretrained(folder).save_pretrained(sharded, max_shard_size="10KB")
    for file in folder.glob("tokenizer*"):
        shutil.copyfile(file, sharded / file.name)


def _idx(folder: Path, draw) -> None:  # type: ignore[no-untyped-def]
    """MNIST's files."""
    import numpy as np

    folder.mkdir()
    for split, count in (("train", 100), ("t10k", 40)):
        images = draw.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, header, array in (
            ("images-idx3", struct.pack(">IIII", 0x803, count, 28, 28), images),
            ("labels-idx1", struct.pack(">II", 0x801, count), labels),
        ):
            (folder / f"{split}-{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes(), mtime=0))


def _images(folder: Path, draw) -> None:  # type: ignore[no-untyped-def]
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    pixels = draw.integers(0, 255, (4, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", images=pixels, labels=np.zeros(4, dtype=np.int64))
    np.savez(
        folder / "tokens.npz", input_ids=np.ones((4, 16), dtype=np.int64), attention_mask=np.ones((4, 16), "int64")
    )
    (folder / "images").mkdir()
    rows = []
    for i, image in enumerate(pixels):
        for ending in ("png", "jpeg"):
            (folder / "images" / f"{i}.{ending}").write_bytes(encoded(image, ending))
        rows.append({"bytes": encoded(image, "jpeg"), "path": f"{i}.jpeg"})
    pq.write_table(pa.table({"image": rows, "label": [0, 1, 2, 3]}), folder / "images.parquet")
    pq.write_table(pa.table({"text": ["The quick brown fox jumps. " * 20] * 8}), folder / "text.parquet")


def _cells(folder: Path) -> None:
    """Cells as they are kept, with little of their logs."""
    for table in ("table2", "table3"):
        (folder / table).mkdir(parents=True)
        for file in sorted((ROOT / "results" / table).glob("*.json"))[:2]:
            cell = json.loads(file.read_text())
            for log in ("epochs", "smoothing"):
                if log in cell:
                    cell[log] = cell[log][-1:]
            (folder / table / file.name).write_text(json.dumps(cell))


def _by_commands() -> None:
    """What the commands themselves write, into the folder they run in."""
    data = ("--data", CIFAR, *SMALL_RUN)
    commands = [
        ("diagnose", "vit", "--inputs", "2", "--depth", "2", "--json", "d.json"),
        ("spectrum", "vit", "--json", "s.json"),
        ("steer", "vit", "-m", "spectral:mode=sharpen", "-o", "steered"),
        ("steer", "vit", "-m", "neutreno:strength=0.5", "-o", "neutreno"),
        ("train", *data, "--variant", "sharpen", "-o", "run"),
        ("train", *data, "--minutes", "0", "-o", "stopped"),
        ("diagnose", "gpt", "--inputs", "2", "--no-spectra", "--data", "text.parquet"),
        ("diagnose", "vit", "--inputs", "2", "--no-spectra", "--data", "images.parquet"),
        ("simulate", "--layers", "5", "--width", "4", "--heads", "1"),
        ("reproduce", "status", "--results", "results"),
        ("reproduce", "table2", "--show", "--results", "results"),
        ("reproduce", "fig3", "--colour", "nowhere"),
        ("train", "--help"),
    ]
    import jinja2  # noqa: F401
    import vl_convert  # noqa: F401

    import oversmooth.report.figures
    import oversmooth.report.page  # noqa: F401
    from oversmooth.cli import main

    for command in commands:
        sys.argv = ["oversmooth", *command]
        try:
            main()
        except SystemExit as left:
            if left.code and "nowhere" not in command:
                raise RuntimeError(f"good input was refused: {' '.join(command)}") from left
