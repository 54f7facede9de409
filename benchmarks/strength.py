"""Three ways to begin NeuTRENO's λ̃ on a trained model: all of it at once, learned from 0, or along a ramp.

python benchmarks/strength.py [--steps 24] [--json FILE]

MiniLM is trained to give again what it gave before it was steered, on a few lines of prose; what is shown is how far
its outputs on other lines are from the original's, ‖Y' − Y‖/‖Y‖ over the tokens, before, on the way and after. The ramp
takes two thirds of the steps.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
import transformers
from measuring import arguments, save

import oversmooth
from oversmooth.demo.language import MINILM, folder
from oversmooth.inputs.text import PROSE
from oversmooth.steering import NeuTRENO, ramp, steer

STRENGTH = 0.6


class Training:
    """A model whose λ̃ begins in one of the ways, its optimiser and its monitor."""

    def __init__(self, model: torch.nn.Module, start: str, ramped: int, rate: float, **watched: Any) -> None:
        """ramped: steps of the ramp."""
        if start != "plain":
            steer(model, NeuTRENO(STRENGTH if start == "now" else 0.0, learned=start == "learned"))
        self.rising = ramp(model, to=STRENGTH, steps=ramped) if start == "ramp" else None
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        self.monitor = oversmooth.Monitor(model, name=start, **watched)

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.rising is not None:
            self.rising.step()
        self.monitor.step()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    source = str(folder(MINILM))
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    original = transformers.AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    lines = [line for line in PROSE.read_text(encoding="utf-8").splitlines() if len(line.split()) > 8]

    def batch(some: list[str]) -> Any:
        return tokenizer(some, padding=True, truncation=True, max_length=24, return_tensors="pt")

    texts, held_out = batch(lines[:8]), batch(lines[8:14])
    with torch.no_grad():
        wanted, expected = original(**texts).last_hidden_state, original(**held_out).last_hidden_state
    mask, counted = texts["attention_mask"].bool(), held_out["attention_mask"].bool()

    found = []
    for start in ("now", "learned", "ramp"):
        torch.manual_seed(0)
        model = copy.deepcopy(original)
        every = max(1, options.steps // 4)
        training = Training(model, start, 2 * options.steps // 3, 1e-4, probe=dict(held_out), every=every)

        def error(model: torch.nn.Module = model) -> float:
            with torch.no_grad():
                y = model(**held_out).last_hidden_state
            return round(float((y - expected)[counted].norm() / expected[counted].norm()), 4)

        errors = [error()]
        for step in range(options.steps):
            training.step((model(**texts).last_hidden_state - wanted)[mask].square().mean())
            if (step + 1) % every == 0:
                errors.append(error())
        last = training.monitor.history.rows[-1]
        found.append(
            {
                "start": start,
                "held_out_error": errors,
                "strength": round(max(value for value in last["strength"] if value is not None), 4),
                "hfc_lfc_last_block": round(last["hfc_lfc"][-1], 4),
                "cos_last_block": round(last["cos"][-1], 4),
            }
        )
        print(json.dumps(found[-1]), flush=True)
    facts = {"model": "MiniLM", "steps": options.steps, "torch": torch.__version__, "rows": found}
    save(options.json, facts)


if __name__ == "__main__":
    main()
