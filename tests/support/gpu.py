"""Checks that must hold on a GPU, as plain functions: a machine without pytest runs them by name."""

import sys
import time


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
