"""What jobs of tests do. They are pickled by their names, so that jobs find this module where the tests do."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import write_text


@dataclass(frozen=True)
class Write:
    """Writes its cell, and what each try did before."""

    path: Path
    first: str = ""  # what happens to the first try: killed, warned
    always: str = ""  # what happens to all: refused, broken, asleep
    size: int = 4  # bytes

    def __call__(self) -> str:
        tries = self.path.with_suffix(".tries")
        with tries.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if self.always == "refused":
            raise InputError("the data are 3; give 4")
        if self.always == "broken":
            raise RuntimeError("unlikely")
        if self.always == "asleep":
            time.sleep(600)
        if len(tries.read_text().splitlines()) == 1:
            if self.first == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.first == "warned":
                return "out of time"
        write_text(self.path, "d" * self.size)
        return "finished"
