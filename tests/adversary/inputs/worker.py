"""Runs cases one at a time, each in a fork of a process that has torch and transformers: start-up is paid once.

The fork makes the case's files, takes stock of them, gives up what the case says it has not, and becomes the command. A
case that is about the interpreter itself (encodings, closed streams, a terminal) gets a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import multiprocessing
import os
import pickle
import pty
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NoReturn

from adversary.inputs.case import MOST_MEMORY, Case, Outcome, Place, contents

SECONDS = 120.0
"""After which a command hangs, on a machine that others use too; what it computes itself is judged by MOST_SECONDS."""
_BLOCKS_OF_A_FULL_DISK = 2048
QUIET = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip

_IMPORTED = (
    "torch._dynamo", "transformers.models.vit.modeling_vit", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.auto.modeling_auto", "transformers.trainer_utils", "pyarrow.parquet", "PIL.Image",
    "oversmooth.report.page", "oversmooth_papers.tasks.registry", "oversmooth_papers.tables.table_registry",
)  # fmt: skip


def prepare(folder: Path) -> Path:
    """Make the good inputs in a fork, and import here what that needed: threads that exist do not survive a fork, so
    this process computes nothing itself. Returns where the inputs are.
    """
    os.environ.update(QUIET)
    for name in ("COLUMNS", "OVERSMOOTH_DATA", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    sys.dont_write_bytecode = True
    for name in ("oversmooth.cli", *_IMPORTED):  # here, so that the fork need not import them once more
        importlib.import_module(name)
    kit = folder / "kit"
    kit.mkdir()
    for name in _made(kit):
        if name not in sys.modules and not name.startswith("torch._"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return kit


def _made(folder: Path) -> list[str]:
    """Fill the kit; the modules that were needed."""
    said, needed = folder.with_name("kit.log"), folder.with_name("kit.modules")
    process = multiprocessing.get_context("fork").Process(target=_fill, args=(folder, said, needed))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the good inputs could not be made:\n{said.read_text()}")
    return needed.read_text().splitlines()


def _fill(folder: Path, said: Path, needed: Path) -> None:
    from adversary.inputs import kit

    with open(said, "wb", 0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(OVERSMOOTH_CACHE=str(folder.with_name("kit-cache")), HOME=str(folder.parent))
    os.chdir(folder)
    kit.make(folder)
    needed.write_text("\n".join(sys.modules))


def run(case: Case, place: Place) -> Outcome:
    """What comes of a case, in an empty folder."""
    log = Path(tempfile.mkdtemp(prefix="case-"))
    try:
        return _run(case, place, log)
    finally:
        shutil.rmtree(log, ignore_errors=True)


def _run(case: Case, place: Place, log: Path) -> Outcome:
    terminal = pty.openpty() if case.process == "terminal" else None
    held, began = _held(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        _become(case, place, log, terminal)
    if terminal:
        os.close(terminal[1])
    else:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
    shown, hung, most = bytearray(), False, 0
    while True:
        if terminal:
            _read(terminal[0], shown)
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            break
        hung = hung or time.monotonic() - began > SECONDS
        most = max(most, _held(pid) - held)
        if hung or most > MOST_MEMORY:
            _end(pid)
        time.sleep(0.003)
    survivors = _end(pid)
    if terminal:
        _read(terminal[0], shown)
        os.close(terminal[0])
    after = contents(place.folder)
    _readable_again(place.folder)
    code: int | None = os.waitstatus_to_exitcode(status)
    try:
        arguments, before, spent = pickle.loads((log / "built").read_bytes())
    except FileNotFoundError:
        arguments, before, spent, code = [], {}, 0.0, None
    return Outcome(
        code=code,
        out=bytes(shown) if terminal else _bytes(log / "stdout"),
        err=_without_colours(bytes(shown)) if terminal else _bytes(log / "stderr"),
        seconds=used.ru_utime + used.ru_stime - spent,
        memory=max(0, most, used.ru_maxrss * 1024 - held),
        hung=hung,
        survivors=survivors and not hung,
        arguments=arguments,
        before=before,
        after=after,
    )


def _without_colours(shown: bytes) -> bytes:
    return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).replace(b"\r", b"")


def _bytes(path: Path) -> bytes:
    """What was printed."""
    return path.read_bytes() if path.exists() else b""


def _held(pid: int | str = "self") -> int:
    """Bytes of memory a process has; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _read(terminal: int, shown: bytearray) -> None:
    while select.select([terminal], [], [], 0)[0]:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            return
        if not piece:
            return
        shown += piece


def _end(group: int) -> bool:
    """End what is left of a case's process group; whether there was anything."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _readable_again(folder: Path) -> None:
    for place, folders, _ in os.walk(folder):
        for name in folders:
            with contextlib.suppress(OSError):
                path = os.path.join(place, name)
                if not os.path.islink(path):
                    os.chmod(path, os.stat(path).st_mode | 0o700)


def _become(case: Case, place: Place, log: Path, terminal: tuple[int, int] | None) -> NoReturn:
    """The child: never returns."""
    code = 1
    try:
        os.setsid() if terminal else os.setpgid(0, 0)
        with open(log / "stderr", "ab", 0) as file:
            os.dup2(file.fileno(), 2)
        home = _own_world(case, place)
        os.chdir(place.folder)
        if case.files is not None:
            case.files(place)
        made = () if case.api else case.build(place)
        arguments = [os.fsdecode(a) if isinstance(a, bytes) else str(a) for a in made]
        before, spent = contents(place.folder), time.process_time()  # making the files is not the command's time
        (log / "built").write_bytes(pickle.dumps((arguments, before, spent)))
        _streams(case, log, terminal)
        _give_up(case)
        if case.process != "forked":
            os.execve(sys.executable, [sys.executable, *_interpreter(case), *arguments], {**os.environ, **home})
        code = _call(case, place) if case.api else _command(arguments)
    except BaseException:
        traceback.print_exc(file=io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True))
    finally:
        os._exit(code & 0xFF)


def _own_world(case: Case, place: Place) -> dict[str, str]:
    """A home, a cache and a place for temporary files that are the case's own."""
    home = {
        "HOME": place / "home",
        "TMPDIR": place / "tmp",
        "OVERSMOOTH_CACHE": place.folder.with_name(f"{place.folder.name}-cache"),
        "XDG_CACHE_HOME": place.folder.with_name(f"{place.folder.name}-cache"),
    }
    for path in home.values():
        path.mkdir(exist_ok=True)
    made = {name: str(path) for name, path in home.items()} | case.environment
    os.environ.update({name: value.replace("{case}", str(place.folder)) for name, value in made.items()})
    tempfile.tempdir = None
    return {name: os.environ[name] for name in made}


def _streams(case: Case, log: Path, terminal: tuple[int, int] | None) -> None:
    given, taken = os.pipe()
    os.write(taken, case.stdin)
    os.close(taken)
    os.dup2(given, 0)
    if terminal:
        import fcntl
        import termios

        fcntl.ioctl(terminal[1], termios.TIOCSCTTY, 0)
        for stream in (1, 2):
            os.dup2(terminal[1], stream)
    elif "reader" in case.without:
        nobody, pipe = os.pipe()
        os.close(nobody)
        os.dup2(pipe, 1)
    elif "stdout" in case.without:
        os.close(1)
    else:
        with open(log / "stdout", "ab", 0) as file:
            os.dup2(file.fileno(), 1)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if "stdout" not in case.without:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


def _give_up(case: Case) -> None:
    if "permission" in case.without:
        _no_right_of_root()
    if "disk" in case.without:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_BLOCKS_OF_A_FULL_DISK, _BLOCKS_OF_A_FULL_DISK))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in case.blocked:
        for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[module]
        sys.modules[name] = None  # type: ignore[assignment]
    if not case.imported:  # what was read when modules were imported is read again
        for module in [m for m in sys.modules if m.partition(".")[0] in ("oversmooth", "oversmooth_papers")]:
            del sys.modules[module]


def _no_right_of_root() -> None:
    """Root reads and writes what it likes: without two capabilities it meets permissions as everyone does."""
    if os.geteuid():
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None)
    libc.capget(header, data)
    for kind in range(3):  # effective, permitted, inheritable
        data[kind] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(header, data)


def _interpreter(case: Case) -> list[str]:
    if not case.blocked:
        return ["-m", "oversmooth"]
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in case.blocked)
    return ["-c", f"import sys; {blocked}from oversmooth.cli import main; main()"]


def _command(arguments: list[str]) -> int:
    """The console script with these arguments, to its exit code."""
    sys.argv = ["oversmooth", *arguments]
    try:
        from oversmooth.cli import main

        main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    return _leave(code)


def _call(case: Case, place: Place) -> int:
    """A call in Python: 0 if it returns, 2 if it raises what this package raises."""
    from oversmooth.safety.errors import InputError

    try:
        case.build(place)
        code = 0
    except InputError as error:
        print(f"oversmooth: {error}", file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
        code = 1
    return _leave(code)


def _leave(code: int) -> int:
    """As an interpreter leaves."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        print(f"Exception ignored while the interpreter leaves: {error!r}", file=sys.stderr)
        code = 120
    sys.stderr.flush()
    return code


def swept(place: Path) -> None:
    """Remove what a case left."""
    for path in (place, place.with_name(f"{place.name}-cache")):
        shutil.rmtree(path, ignore_errors=True)
