"""How much of the package one diagnosis runs through: files, functions, and calls from one of its folders into another.

    python benchmarks/structure.py [--json FILE]

The model is torch's encoder of three blocks, diagnosed with default settings. Code that runs at import is not counted,
as the diagnosis has run once before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import oversmooth

ROOT = Path(oversmooth.__file__).parent


def folder(file: str) -> str:
    """The folder below the package, or the file where it lies in none."""
    return Path(file).relative_to(ROOT).parts[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 3).eval()
    x = torch.randn(2, 12, 32)
    oversmooth.diagnose(model, x)
    here = str(ROOT)
    functions: set[CodeType] = set()
    crossings: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(here):
            return
        if not frame.f_code.co_name.startswith("<"):  # comprehensions and lambdas are part of their function
            functions.add(frame.f_code)
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(here):
            pair = folder(caller.f_code.co_filename), folder(frame.f_code.co_filename)
            if pair[0] != pair[1]:
                crossings[pair] += 1

    sys.setprofile(profile)
    try:
        oversmooth.diagnose(model, x)
    finally:
        sys.setprofile(None)
    found = {
        "files": len({code.co_filename for code in functions}),
        "functions": len(functions),
        "calls between folders": sum(crossings.values()),
    }
    print(", ".join(f"{name}: {count:,}" for name, count in found.items()))
    for (caller, callee), count in crossings.most_common(12):
        print(f"  {caller} -> {callee}: {count:,}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
