"""Checks that must hold on a GPU, as plain functions: a machine without pytest runs them by name."""

import importlib.util
import sys
import time
from pathlib import Path


def run_named(checks):
    """Run those that the command line names, or all, and end the process: 1 where one failed."""
    failed = 0
    for check in [check for check in checks if not sys.argv[1:] or check.__name__ in sys.argv[1:]]:
        begin = time.time()
        try:
            check()
            said = "ok"
        except Exception as error:
            failed += 1
            said = f"FAILED: {type(error).__name__}: {error}"
        print(f"{check.__name__}: {said} ({time.time() - begin:.1f} s)", flush=True)
    sys.exit(bool(failed))


def checks_beside(test_file):
    """Those of gpu_checks.py in the folder of a test file."""
    path = Path(test_file).with_name("gpu_checks.py")
    spec = importlib.util.spec_from_file_location(f"gpu_checks_of_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CHECKS
