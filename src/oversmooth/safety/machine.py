"""The machine: its name and free memory, checked before allocation.

A process that exhausts memory is killed without a message.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from oversmooth.safety.errors import InputError

if TYPE_CHECKING:
    import torch

_CGROUPS = Path("/sys/fs/cgroup")


def hardware_name(device: torch.device) -> str:
    """Name of the GPU, or of the processor with its number of cores."""
    if device.type == "cuda":
        import torch  # --help does without

        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def free_memory() -> int:
    """Bytes that this process may still allocate, by the machine, its control group and its own limit."""
    return max(0, min(_machine(), _control_group(), _own_limit()))


def check_fits(needed: int, what: str, remedy: str) -> None:
    """Refuse an allocation that exceeds the free memory."""
    free = free_memory()
    if needed > free:
        raise InputError(f"{what} needs {in_words(needed)} of memory, but {in_words(free)} are free; {remedy}")


def size_of(text: str | int, what: str) -> int:
    """Bytes, of a number or of a text.

    >>> size_of("12GB", "max_memory"), size_of("1.5 GiB", "max_memory"), size_of(7, "max_memory")
    (12000000000, 1610612736, 7)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(I?)B)?", str(text).strip().upper())
    size = 0 if found is None else int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2] or " "))
    if size < 1 or isinstance(text, bool):
        raise InputError(f"{what} is {str(text)[:40]!r}; give a size, such as 12GB or 12GiB")
    return size


def in_words(size: float) -> str:
    """
    >>> in_words(1500), in_words(6.4e9), in_words(10**20)
    ('1.5 kB', '6.4 GB', '100,000,000 TB')
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.0f} TB" if size >= 10 else f"{size:.3g} TB"


def _machine() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        return next(int(words[1]) for words in lines if words[0] == "MemAvailable:") * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def _control_group() -> int:
    """Free memory in a container or batch job; cached files count as free."""
    free = sys.maxsize
    with contextlib.suppress(OSError, ValueError):
        own = Path("/proc/self/cgroup").read_text().splitlines()
        inside = next((line[3:].lstrip("/") for line in own if line.startswith("0::")), "")
        for folder in {_CGROUPS / inside, _CGROUPS}:
            with contextlib.suppress(OSError, ValueError):
                allowed = int((folder / "memory.max").read_text())  # "max" is no number
                facts = dict(line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines())
                used = int((folder / "memory.current").read_text()) - int(facts.get("inactive_file", 0))
                free = min(free, allowed - used)
    return free


def _own_limit() -> int:
    with contextlib.suppress(ImportError, OSError, ValueError, IndexError):
        import resource  # not on every system

        allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
        if allowed != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            return allowed - pages * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize
