"""A disk that is full."""

import contextlib
import resource


@contextlib.contextmanager
def small_disk(size=20_000):
    """No file can have more bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
