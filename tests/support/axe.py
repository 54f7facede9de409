"""axe-core, which finds what keeps readers with disabilities out of a page; from npm, and never kept here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

VERSION = "4.11.0"
_RUN = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations.map(
    ({ id, nodes }) => `${id}: ${nodes.map((node) => node.target.join(" ")).slice(0, 4).join(", ")}`))"""


def script(folder: Path) -> str | None:
    """Its text: of the file that OVERSMOOTH_AXE names, or installed into a folder; None where neither can be had."""
    named = os.environ.get("OVERSMOOTH_AXE")
    if named:
        return Path(named).read_text(encoding="utf-8")
    npm = shutil.which("npm")
    if npm is None:
        return None
    wanted = [npm, "install", "--prefix", str(folder), "--no-save", "--no-audit", "--no-fund", f"axe-core@{VERSION}"]
    try:
        subprocess.run(wanted, check=True, capture_output=True, timeout=60)
        return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    except (OSError, subprocess.SubprocessError):
        return None


def violations(chromium, axe: str) -> list[str]:
    """What it finds in the page that is open, everything unfolded."""
    chromium.run("for (const one of document.querySelectorAll('details')) one.open = true")
    chromium.run(f"{axe}; 0")
    return chromium.run(_RUN)
