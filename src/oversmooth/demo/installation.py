"""What `oversmooth doctor` reports: libraries, devices, data, and what they enable."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass
from typing import Literal

import oversmooth
from oversmooth.demo import gallery, language
from oversmooth.safety.errors import reason
from oversmooth.safety.files import cache_folder, data_folder
from oversmooth.safety.machine import free_memory, in_words

State = Literal["yes", "no", "broken"]
# Modules that only some commands need: the package of each, and what to install for it.
LIBRARIES = {
    "transformers": ("transformers", "oversmooth[models]"),
    "PIL": ("pillow", "oversmooth[models]"),
    "pyarrow": ("pyarrow", "oversmooth[models]"),
    "timm": ("timm", "oversmooth[timm]"),
    "torchvision": ("torchvision", "oversmooth[timm]"),
    "pandas": ("pandas", "pandas"),
    "oversmooth_papers": ("oversmooth-papers", "oversmooth-papers"),
}
# Tasks, and the modules that each needs.
WORK = {
    "diagnose and steer models in Python": (),
    "oversmooth simulate, watch; spectrum of files": (),
    "oversmooth demo and gallery: the ViTs": (),
    "oversmooth diagnose, spectrum, steer, fold by hub id or directory": ("transformers",),
    "oversmooth diagnose, spectrum, steer, fold by timm name": ("timm", "torchvision"),
    "your own text files": ("transformers",),
    "your own images": ("PIL",),
    "your own parquet files": ("pyarrow",),
    "oversmooth train, reproduce": ("oversmooth_papers",),
    "oversmooth tune; train and reproduce on parquet files": ("oversmooth_papers", "transformers", "PIL", "pyarrow"),
    "oversmooth train --task imagenet": ("oversmooth_papers", "timm", "torchvision", "PIL", "pyarrow"),
    "Diagnosis.to_pandas": ("pandas",),
}
# Data sets and models that commands look for: folders in OVERSMOOTH_DATA.
DATA = ("cifar-100", "imagenet-val-1k", "wikitext-2", "camvid", "imagenet-c-frost", "mpnet", "deit-tiny", "stories15m")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    what: str
    state: State
    detail: str


def versions() -> list[Finding]:
    """The package, Python and torch."""
    import torch

    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU"
    return [
        Finding("oversmooth", "yes", oversmooth.__version__),
        Finding("Python", "yes", f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        Finding("torch", "yes", f"{torch.__version__}, {built}"),
    ]


def devices() -> list[Finding]:
    """Devices that models can run on."""
    import torch

    found = [Finding("CPU", "yes", f"{os.cpu_count()} cores, {in_words(free_memory())} of memory free")]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        facts = torch.cuda.get_device_properties(index)
        found.append(Finding(f"cuda:{index}", "yes", f"{facts.name}, {in_words(facts.total_memory)}"))
    if torch.backends.mps.is_available():
        found.append(Finding("mps", "yes", "Apple's GPU"))
    if len(found) == 1:
        found.append(Finding("GPU", "no", "none that torch supports here; everything runs on the CPU"))
    return found


def libraries() -> list[Finding]:
    """Optional libraries; each is imported to check that it loads."""
    return [_library(module, package, wanted) for module, (package, wanted) in LIBRARIES.items()]


def _library(module: str, package: str, wanted: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(package, "no", f"pip install '{wanted}'" if "[" in wanted else f"pip install {wanted}")
    try:
        importlib.import_module(module)
    except Exception as error:  # a library that does not fit another fails as it likes
        return Finding(package, "broken", f"installed, but does not load: {reason(error)}")
    try:
        return Finding(package, "yes", importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return Finding(package, "yes", "")


def data() -> list[Finding]:
    """Data in OVERSMOOTH_DATA, and the models of the gallery."""
    given = os.environ.get("OVERSMOOTH_DATA")
    found = [
        Finding("OVERSMOOTH_DATA", "yes" if given else "no", given or "not set; give data by path"),
        Finding("cache", "yes", str(cache_folder())),
    ]
    for name in DATA if given else ():
        folder = data_folder(name)
        detail = str(folder or "no folder of this name in OVERSMOOTH_DATA")
        found.append(Finding(name, "yes" if folder else "no", detail))
    for entry in gallery.entries().values():
        if entry.key not in DATA:
            missing = entry.missing()
            found.append(Finding(entry.title, "no" if missing else "yes", missing or entry.source))
    return found


def work(known: list[Finding]) -> list[Finding]:
    """Tasks that these libraries enable, and the demo's language models, which need packages of their own."""
    states = {finding.what: finding for finding in known}
    done = []
    for what, modules in WORK.items():
        lacking = [name for module in modules if states[name := LIBRARIES[module][0]].state != "yes"]
        done.append(Finding(what, "no" if lacking else "yes", f"needs {' and '.join(lacking)}" if lacking else ""))
    missing = language.missing()
    return [*done, Finding("oversmooth demo: the language models", "no" if missing else "yes", missing)]
