"""A worker process that dies fails the call that it served, and no other."""

from __future__ import annotations

import os
import signal

import pytest

from ottla.host.workers import RealWorkers


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def test_a_worker_process_that_dies_is_replaced() -> None:
    workers = RealWorkers()
    try:
        with pytest.raises(OSError, match="the worker process died"):
            await workers.process(_die)
        assert await workers.process(abs, -3) == 3
    finally:
        workers.close()
