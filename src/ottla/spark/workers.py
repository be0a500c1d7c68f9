"""A worker process of Spark's is made ready for much data and many small tasks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

_DAEMON = "pyspark.daemon"
# Names and numbers of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 128 << 20  # of free memory that is not given back to the system
LARGE_BYTES = 32 << 20  # an allocation from this size on has pages of its own
_is_settled = False


def settle() -> None:
    """Once, when a worker has loaded what it needs.

    Spark's daemon has a worker collect garbage after every task and every question. Looking through the modules alone takes 15 ms, and a
    micro-batch has some ten of those; modules stay as long as the process, so there is nothing to find. And what fetches are received
    into is allocated and freed again some megabytes at a time: glibc would give the pages back, and the kernel clear new ones, each
    time, which is a fifth of a reader's processor time.
    """
    global _is_settled
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if _is_settled or spec is None or spec.name != _DAEMON:
        return
    _is_settled = True
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such function, and its own ways
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
