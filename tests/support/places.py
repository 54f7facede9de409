"""Where things lie, seen from the tests."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DATA = Path(os.environ.get("OVERSMOOTH_DATA") or ROOT.parent / "shared")
"""Data sets and weights, for tests marked realdata."""
TEST_FOLDERS = [str(TESTS), str(ROOT / "papers" / "tests")]
"""What processes that import `support` need on their path."""
