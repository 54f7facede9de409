"""Two real processes, joined by gloo, and one alone beside them: each runs the ``work(ranks, name)`` of a script."""

import socket
from dataclasses import dataclass
from pathlib import Path

from support.interpreters import python
from support.places import TEST_FOLDERS


@dataclass(frozen=True)
class Ranks:
    """This process's place among all."""

    rank: int = 0
    world: int = 1


_BEFORE = """
import os, signal, sys
sys.path[:0] = {tests!r}
from pathlib import Path
import torch
import torch._dynamo  # what the first step would import, in every child
from oversmooth.safety.processes import joined
from {ranks} import Ranks
folder, cpu = Path({folder!r}), torch.device("cpu")
"""
_AFTER = """
os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT={port!r}, GLOO_SOCKET_IFNAME="lo")
children = []
for rank in (0, 1):
    child = os.fork()
    if not child:
        os.environ["RANK"] = str(rank)
        try:
            with joined() as place:
                work(Ranks(*place), f"two{{rank}}")
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
failed = [os.waitpid(child, 0)[1] for child in children]
os.environ["WORLD_SIZE"] = "1"
if any(failed):
    sys.exit(1)
work(Ranks(), "one")
"""


def run(script: str, new_folder, ranks: str = __name__) -> Path:
    """The folder in which both have worked: ``folder`` in the script, as ``cpu`` is the device.

    ranks: the module whose `Ranks` the script needs.
    """
    for _ in range(5):  # somebody else may take the port before they do
        folder = new_folder()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        before = _BEFORE.format(tests=TEST_FOLDERS, folder=str(folder), ranks=ranks)
        done = python("-c", before + script + _AFTER.format(port=port), OMP_NUM_THREADS=1)
        if "EADDRINUSE" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return folder
