"""How to begin λ̃ when a trained model is fine-tuned: MiniLM on SST-2, with NeuTRENO 0.6 from the start, along a long
ramp, learned from 0, and without.

python benchmarks/ramp.py --data GLUE [--steps 400] [--ramp 300] [--seeds 0] [--json FILE]

GLUE is the directory that holds SST-2/train.tsv and dev.tsv; by default glue where OVERSMOOTH_DATA points. Every run
starts from the same weights, sees the same batches of 8 in the same order and draws the same dropout; AdamW with a
constant rate of 5e-5. Accuracy is that on the 872 sentences of the validation set, which nothing is chosen by, when the
ramp has ended and at the end.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from measuring import arguments, save
from strength import Training

from oversmooth.demo.language import MINILM, folder
from oversmooth_papers.tasks.glue.data import load_examples

BATCH, LENGTH, RATE = 8, 48, 5e-5
STARTS = ("now", "ramp", "learned", "plain")


def encoded(tokenizer: Any, examples: Any) -> list[dict[str, Any]]:
    texts = [example.texts[0][0] for example in examples]
    ids = tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]
    return [{"input_ids": one, "labels": int(example.label)} for one, example in zip(ids, examples, strict=True)]


def accuracy(model: torch.nn.Module, batches: list[Any]) -> float:
    model.eval()
    right = count = 0
    with torch.no_grad():
        for batch in batches:
            right += int((model(**batch).logits.argmax(-1) == batch["labels"]).sum())
            count += len(batch["labels"])
    model.train()
    return round(right / count, 4)


def run(start: str, seed: int, source: str, batches: list[Any], test: list[Any], length: int) -> dict[str, Any]:
    """Fine-tune once; what came of it."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, num_labels=2, dtype=torch.float32)
    training = Training(model, start, length, RATE, probe=dict(test[0]), every=50)
    monitor = training.monitor
    torch.manual_seed(seed)
    model.train()
    losses, accuracies = [], {}
    for step, batch in enumerate(batches, 1):
        loss = model(**batch).loss
        training.step(loss)
        losses.append(loss.item())
        if step in (length, len(batches)):
            accuracies[step] = accuracy(model, test)
    monitor.snapshot()
    assert not monitor.failures, monitor.failures
    last = monitor.history.rows[-1]
    strengths = [value for value in last.get("strength", []) if value is not None]
    return {
        "start": start,
        "seed": seed,
        "accuracy": accuracies,
        "training_loss_of_the_last_50": round(sum(losses[-50:]) / len(losses[-50:]), 4),
        "strength": round(max(strengths, key=abs), 4) if strengths else 0.0,
        "hfc_lfc_last_block": round(last["hfc_lfc"][-1], 3),
        "cos_last_block": round(last["cos"][-1], 3),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--ramp", type=int, default=300, help="steps of the ramp")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    source = str(folder(MINILM))
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    collate = transformers.DataCollatorWithPadding(tokenizer)
    train, held_out = load_examples("SST-2", None if options.data is None else options.data / "SST-2")
    test = [collate(part) for part in chunks(sorted(encoded(tokenizer, held_out), key=size), 64)]
    rows = []
    for seed in options.seeds:
        chosen = random.Random(seed).sample(range(len(train)), options.steps * BATCH)
        batches = [collate(part) for part in alike(encoded(tokenizer, [train[i] for i in chosen]), seed)]
        for start in options.starts:
            began = time.process_time()
            rows.append(run(start, seed, source, batches, test, options.ramp))
            print(json.dumps(rows[-1]), f"{time.process_time() - began:.0f} s of CPU", flush=True)
            facts = {"model": "MiniLM", "task": "SST-2", "steps": options.steps, "ramp": options.ramp}
            versions = {"torch": torch.__version__, "transformers": transformers.__version__}
            save(options.json, {**facts, **versions, "rows": rows})


def size(example: dict[str, Any]) -> int:
    return len(example["input_ids"])


def alike(examples: list[dict[str, Any]], seed: int) -> list[list[Any]]:
    """Batches of sentences of like length, in a random order: there is less padding to compute."""
    batches = [batch for pool in chunks(examples, 20 * BATCH) for batch in chunks(sorted(pool, key=size), BATCH)]
    return random.Random(seed).sample(batches, len(batches))


def chunks(items: list[Any], length: int) -> list[list[Any]]:
    return [items[first : first + length] for first in range(0, len(items), length)]


if __name__ == "__main__":
    main()
