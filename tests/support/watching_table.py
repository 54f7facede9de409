"""Writes the table of docs/watching.md: trainers by features, each cell from the tests that hold it. Some minutes.

PYTHONPATH=tests python -m support.watching_table [JUNIT_XML]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from support.places import ROOT

PAGE = ROOT / "docs" / "watching.md"
BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"
COLUMNS = (
    "probe", "passing batch", "accumulation", "checkpointing", "autocast", "compiled", "logged", "resumed", "stopped",
)  # fmt: skip
_PLAIN, _TRAINER = r"test_guarantee.*test_bit_for_bit\[{}-{}\]", r"test_trainer.*reported_loss_is_the_same\[{}-{}\]"
_LIGHTNING = r"test_lightning.*logged_at_its_step\[{}-{}\]"
_COMPILED = r"test_guarantee.*one_graph_no_break_and_no_recompilation\[{}-aot_eager\]"
ROWS: dict[str, dict[str, list[str]]] = {
    "a plain loop": {
        "probe": [_PLAIN.format("dropout and augmentation", "probe")],
        "passing batch": [_PLAIN.format("dropout and augmentation", "passing")],
        "accumulation": [_PLAIN.format("accumulation", way) for way in ("probe", "passing")],
        "checkpointing": [
            _PLAIN.format(kind, way)
            for kind in ("checkpointing", "reentrant checkpointing")
            for way in ("probe", "passing")
        ],
        "autocast": [_PLAIN.format(kind, "probe") for kind in ("autocast", "a look inside autocast", "GradScaler")],
        "compiled": [_COMPILED.format(way) for way in ("probe", "passing")],
        "logged": ["test_history.*test_sinks_get_every_look"],
        "resumed": ["test_history.*restarts_from_a_checkpoint_has_no_step_twice"],
        "stopped": ["test_history.*test_alarms_warn_call_and_stop"],
    },
    "transformers.Trainer": {
        "probe": [_TRAINER.format("False", "plain")],
        "passing batch": [_TRAINER.format("True", "plain")],
        **{
            column: [_TRAINER.format(way, name) for way in ("False", "True")]
            for column, name in (
                ("accumulation", "accumulation"),
                ("checkpointing", "checkpointing"),
                ("autocast", "bf16"),
                ("compiled", "compiled"),
            )
        },
        "logged": ["test_trainer.*reach_tensorboard_and_weights_and_biases"],
        "resumed": ["test_trainer.*resumed_goes_on_without_double_steps"],
        "stopped": ["test_trainer.*alarm_stops"],
    },
    "Lightning": {
        "probe": [_LIGHTNING.format("settings0", "False")],
        "passing batch": [_LIGHTNING.format("settings0", "True")],
        "accumulation": [_LIGHTNING.format("settings1", way) for way in ("False", "True")],
        "checkpointing": ["test_lightning.*fit_with_checkpointing"],
        "autocast": [_LIGHTNING.format("settings2", way) for way in ("False", "True")],
        "compiled": ["test_lightning.*a_compiled_fit"],
        "logged": [_LIGHTNING.format("settings0", "False")],
        "resumed": ["test_lightning.*resumed_goes_on_without_double_steps"],
        "stopped": ["test_lightning.*alarm_stops"],
    },
    "accelerate": {
        "probe": [r"test_accelerate.*trackers\[False\]"],
        "passing batch": [r"test_accelerate.*trackers\[True\]"],
        "accumulation": [r"test_accelerate.*trackers"],
        "autocast": [r"test_accelerate.*trackers"],
        "logged": [r"test_accelerate.*trackers"],
    },
    "DDP, two processes": {
        "probe": [r"test_processes.*two_processes\[ddp-(probe|together|first alone)\]"],
        "passing batch": [r"test_processes.*two_processes\[ddp-passing\]"],
    },
    "FSDP2, two processes": {
        "probe": [r"test_processes.*two_processes\[fsdp-(probe|together)\]"],
        "passing batch": [r"test_processes.*two_processes\[fsdp-passing\]"],
    },
    "LoRA (peft)": {
        "probe": [r"test_guarantee.*test_lora"],
        "passing batch": [r"test_guarantee.*test_lora"],
    },
}


def outcomes(report: Path) -> dict[str, bool | None]:
    """By test: whether it passed; None where it was skipped."""
    found: dict[str, bool | None] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        states = {child.tag for child in case}
        passed = None if "skipped" in states else not states & {"failure", "error"}
        found[f"{case.get('classname')}::{case.get('name')}"] = passed
    return found


def cell(patterns: list[str], found: dict[str, bool | None]) -> str:
    """yes where every test that is meant passed; – where none is there."""
    if not patterns:
        return "–"
    hits = [[passed for name, passed in found.items() if re.search(pattern, name)] for pattern in patterns]
    if not all(hits) or any(passed is None for row in hits for passed in row):
        return "not run"
    return "yes" if all(passed for row in hits for passed in row) else "**no**"


def table(found: dict[str, bool | None]) -> str:
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---{'|---' * len(COLUMNS)}|"]
    for name, cells in ROWS.items():
        lines.append(f"| {name} | {' | '.join(cell(cells.get(column, []), found) for column in COLUMNS)} |")
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "report.xml"
        if len(sys.argv) == 1:
            command = [sys.executable, "-m", "pytest", "-q", "tests/monitor", "tests/integrations"]
            command += ["-k", "not inductor and not test_examples", f"--junitxml={report}"]
            subprocess.run(command, cwd=ROOT, env={**os.environ, "OVERSMOOTH_NIGHTLY": "1"}, check=False)
        made = table(outcomes(report))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
