"""What this process is to Spark, and what follows from it."""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"
_is_settled = False


def settle() -> None:
    """Take what is loaded out of the garbage collector's sight, once, in a worker process of Spark's.

    Its daemon has a worker collect garbage after every task and every question. Looking through the modules alone takes 15 ms, and a
    micro-batch has some ten of those; modules stay as long as the process, so there is nothing to find.
    """
    global _is_settled
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if not _is_settled and spec is not None and spec.name == _DAEMON:
        _is_settled = True
        gc.freeze()
