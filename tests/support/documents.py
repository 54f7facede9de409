"""The pages of the documentation, as tests read them."""

from __future__ import annotations

import re
from pathlib import Path

from support.places import ROOT

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.S | re.M)


def pages() -> list[Path]:
    """README and every page of docs/ that is written by hand."""
    return [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "generated" not in p.parts)]


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """(language, text, line) of every fenced block, in order."""
    text = page.read_text(encoding="utf-8")
    return [(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]


def has_python(page: Path) -> bool:
    return any(language == "python" for language, _, _ in blocks(page))


def run_python(page: Path) -> list[tuple[str, str]]:
    """Run the Python blocks of a page in order in one session.

    Returns:
        (what was printed, the ``text`` block that follows or nothing) for each.
    """
    import contextlib
    import io

    session: dict[str, object] = {"__name__": "__page__"}
    printed = []
    every = blocks(page)
    for place, (language, code, line) in enumerate(every):
        if language != "python":
            continue
        out = io.StringIO()
        padded = "\n" * (line - 1) + code  # so that a traceback names the page's own line
        with contextlib.redirect_stdout(out):
            exec(compile(padded, str(page), "exec"), session)
        follows = every[place + 1] if place + 1 < len(every) else ("", "", 0)
        printed.append((out.getvalue(), follows[1] if follows[0] == "text" else ""))
    return printed
