"""A case of bad input, what came of it, and what is wrong with that.

A case makes its files in a folder of its own, where the command then runs; `judge` looks at nothing but what a user
would meet: the exit code, what was printed, the time and memory it took, and what lies in the folder afterwards.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import stat
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

LONGEST_SENTENCE = 300
MOST_MEMORY = 2 * 1024**3
"""Bytes above what the process held before the command."""
MOST_SECONDS, IMPORTS = 10.0, 20.0
"""Of a processor; the second on top where the package, or torch too, is imported anew."""
MARKER = "CODE-RAN"
"""The file that hostile code writes."""
_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_SMALL = 1024**2
_OUTPUTS = ("out", "results")
"""What commands write has names that begin so; nothing else may appear."""
_WRITES = ("-o", "--output", "--json", "--html", "--figures", "--results", "--save")
_WRITTEN_BY_PYTHON = ("__pycache__",)
Expected = Literal["refused", "fine", "either"]


@dataclass
class Place:
    """The folder of one case, and the good inputs it may copy from."""

    folder: Path
    kit: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def copy(self, *names: str) -> None:
        """Good inputs, under their own names."""
        for name in names:
            self.copy_as(name, name)

    def copy_as(self, name: str, new: str) -> Path:
        source, target = self.kit / name, self.folder / new
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copyfile(source, target)
        return target

    def write(self, name: str, content: bytes | str) -> Path:
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return target

    def edit_json(self, name: str, change: Callable[[Any], Any]) -> None:
        """Change a JSON file, in place or by what is returned."""
        file = self.folder / name
        found = json.loads(file.read_text()) if file.exists() else {}
        changed = change(found)
        file.write_text(json.dumps(found if changed is None else changed))

    def edit_arrays(self, name: str, change: Callable[[str, Any], Any], metadata: Any = lambda found: found) -> None:
        """Change each array of a safetensors file, and what it says of itself."""
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file

        file = self.folder / name
        with safe_open(file, "pt") as opened:
            said = metadata(opened.metadata() or {})
        save_file({name: change(name, array).contiguous() for name, array in load_file(file).items()}, file, said)

    @property
    def marker(self) -> Path:
        return self.folder / MARKER


Build = Callable[[Place], Any]


def prepared(needed: Sequence[str], line: Sequence[str], spoil: Callable[[Place], Any] | None = None) -> Build:
    """Good inputs, what is done to them, and the command."""

    def build(place: Place) -> list[str]:
        place.copy(*needed)
        if spoil is not None:
            spoil(place)
        return list(line)

    return build


@dataclass(frozen=True)
class Case:
    """build: makes the files and returns the command's arguments; or, with api, is the call itself."""

    name: str
    """``class/what``."""
    build: Build
    expected: Expected = "refused"
    says: tuple[str, ...] = ()
    """Of these the sentence must contain one, whatever its case."""
    api: bool = False
    files: Build | None = None
    """Makes files before a call."""
    codes: tuple[int, ...] = ()
    """Exit codes that will do, where other than 0 and 2."""
    stdin: bytes = b""
    environment: dict[str, str] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    """Modules that cannot be imported."""
    without: tuple[Literal["permission", "stdout", "reader", "disk"], ...] = ()
    """What the command has not: root's right to read everything, a standard output, someone who reads it, a disk."""
    process: Literal["forked", "real", "terminal"] = "forked"
    """forked: a copy of a process that has torch; real: a new interpreter; terminal: the same on a terminal."""
    slow: bool = False
    """Takes seconds when all is well."""
    holds: Callable[[Place, Outcome], str | None] | None = None
    """What else must be so: a complaint if it is not."""

    @property
    def imported(self) -> bool:
        """Whether the process that runs it has imported everything before."""
        return self.process == "forked" and not self.environment and not self.blocked

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]


@dataclass
class Outcome:
    """What came of a case. A negative code is a signal; None is a case that could not be built."""

    code: int | None
    out: bytes
    err: bytes
    seconds: float = 0.0
    memory: int = 0
    hung: bool = False
    survivors: bool = False
    arguments: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """What follows ``oversmooth:`` on stderr; or its last line, as of commands that name several files."""
        text = self.err.decode("utf-8", "replace").rstrip("\n")
        found = re.search(r"^oversmooth: (.*)", text, re.MULTILINE | re.DOTALL)
        return found[1] if found else text.rpartition("\n")[2]


def contents(folder: Path) -> dict[str, str]:
    """What lies in a folder: a line for each entry that changes when the entry does."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _WRITTEN_BY_PYTHON]
        for name in (*folders, *files):
            path = os.path.join(place, name)
            found[os.path.relpath(path, folder)] = _described(path)
    return found


def _described(path: str) -> str:
    status = os.lstat(path)
    kind = stat.filemode(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return f"{kind} {os.readlink(path)}"
    if not stat.S_ISREG(status.st_mode):
        return kind
    if status.st_size > _SMALL or not status.st_mode & 0o400:
        return f"{kind} {status.st_size} {status.st_mtime_ns}"
    with open(path, "rb") as file:
        return f"{kind} {blake2b(file.read(), digest_size=8).hexdigest()}"


def judge(case: Case, outcome: Outcome, place: Place) -> list[str]:
    """Everything that is wrong with what came of a case; nothing if it held."""
    if outcome.code is None:
        return [f"the case could not be built: {outcome.err.decode('utf-8', 'replace').strip().splitlines()[-1:]}"]
    return [
        *_of_process(case, outcome),
        *_of_text(case, outcome),
        *_of_sentence(case, outcome),
        *_of_files(outcome),
        *filter(None, [case.holds(place, outcome) if case.holds else None]),
    ]


def _of_process(case: Case, outcome: Outcome) -> Iterator[str]:
    text = outcome.err.decode("utf-8", "replace")
    allowed = case.codes or {"refused": (2,), "fine": (0,), "either": (0, 2)}[case.expected]
    if outcome.hung:
        yield "hang"
    elif outcome.seconds > MOST_SECONDS + (0.0 if case.imported else IMPORTS) and not case.slow:
        yield f"time: {outcome.seconds:.0f} s of a processor"
    elif outcome.memory > MOST_MEMORY:
        yield f"memory: {outcome.memory / 1e9:.1f} GB or more"
    elif outcome.code is not None and outcome.code < 0 and outcome.code not in case.codes:
        yield f"crash: signal {-outcome.code}"
    elif "Traceback (most recent call last)" in text or "Exception ignored" in text:
        yield f"traceback: {_last_line(text)}"
    elif outcome.code not in allowed:
        yield f"exit code {outcome.code} in place of {' or '.join(map(str, allowed))}"
    if outcome.survivors:
        yield "a process was left behind"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "oversmooth: "))]
    return lines[-1][:200] if lines else ""


def _of_text(case: Case, outcome: Outcome) -> Iterator[str]:
    for where, printed in (("stdout", outcome.out), ("stderr", outcome.err)):
        try:
            text = printed.decode("utf-8")
        except UnicodeDecodeError:
            yield f"{where} is not UTF-8"
            text = printed.decode("latin-1")
        if case.process == "terminal":  # bars move the cursor; what a title or a clipboard takes, they never send
            text = text if "\x1b]" in text else ""
        raw = sorted({c for c in text if c not in "\n\t" and (unicodedata.category(c) == "Cc" or ord(c) in _BIDI)})
        if raw:
            yield f"raw control characters on {where}: {', '.join(map(ascii, raw))}"
        if "zebra" in text and "[bold]zebra" not in text:
            yield f"markup was read as markup on {where}"


def _of_sentence(case: Case, outcome: Outcome) -> Iterator[str]:
    sentence = outcome.sentence
    if outcome.code != 2 or outcome.hung:
        return
    if not sentence:
        yield "no sentence"
        return
    if len(sentence) > LONGEST_SENTENCE:
        yield f"a sentence of {len(sentence)} letters"
    if "\n" in sentence:
        yield "more than one line"
    if re.search(r"(?<!\w)(?<!\bis )\(\s*\)|\(None\)|: ;", sentence):  # a value may be ()
        yield "a gap in the sentence"
    own = re.sub(r"\(.*\)", "", sentence)  # what a library says stands in brackets
    if re.search(r"<[\w.]+ object at 0x|\bNoneType\b|object has no attribute|KeyError|unexpected keyword", own):
        yield "Python's words, not a reader's"
    if case.says and not any(word.lower() in sentence.lower() for word in case.says):
        yield f"does not name {' or '.join(word[:40] for word in case.says)!r}"


def _of_files(outcome: Outcome) -> Iterator[str]:
    before, after, line = outcome.before, outcome.after, outcome.arguments
    if any(Path(name).name == MARKER for name in after):
        yield "CODE OF THE INPUT WAS RUN"
    named = {Path(b).parts[0] for a, b in itertools.pairwise(line) if a in _WRITES and Path(b).parts}
    both = {*before, *after} if outcome.code == 0 else set()
    outputs = {name for name in both if _is_output(name) or Path(name).parts[0] in named}
    changed = sorted(name for name in before if name in after and before[name] != after[name])
    if not set(changed) <= outputs:
        yield f"changed: {', '.join(changed[:3])}"
    if gone := sorted(set(before) - set(after) - outputs):
        yield f"removed: {', '.join(gone[:3])}"
    if left := [name for name in sorted(set(after) - set(before) - outputs) if Path(name).name != MARKER]:
        yield f"left behind: {', '.join(map(ascii, left[:3]))}"


def _is_output(name: str) -> bool:
    parts = Path(name).parts
    return parts[0].startswith(_OUTPUTS) and not any(part.startswith(".") for part in parts)
