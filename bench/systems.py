"""The two systems, started fresh for a turn, with what each is by default; and what a process tree weighs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode

# What Kafka's own start script gives its Java: a heap of 1 GB, G1, short pauses.
KAFKA_JAVA = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
NAMES = ("kafka", "ottla")


class System:
    """One running node. `restart` stops it and starts it on the same data; times are from the start of the process."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self._peer: KafkaPeer | OttlaNode
        if name == "kafka":
            self._peer = KafkaPeer(folder, first_id=1, settings=settings, options=KAFKA_JAVA)
        else:
            self._peer = OttlaNode(folder, settings=settings)
        self.start_s = self._timed_start()

    def _timed_start(self) -> float:
        """Seconds from the process's start to its first answer to Metadata."""
        started = time.perf_counter()
        self._peer.start()
        return time.perf_counter() - started

    def restart(self) -> float:
        self._peer.stop()
        return self._timed_start()

    def stop(self) -> None:
        self._peer.stop()

    @property
    def bootstrap(self) -> str:
        return self._peer.bootstrap

    @property
    def address(self) -> tuple[str, int]:
        return self._peer.address

    @property
    def log_directory(self) -> Path:
        return self._peer.log_directory()

    @property
    def pid(self) -> int:
        process = self._peer.processes[1] if isinstance(self._peer, KafkaPeer) else self._peer.process
        assert process is not None
        return process.pid

    def resident_mb(self) -> float:
        """Of the process and its children: worker processes count."""
        parent = psutil.Process(self.pid)
        return sum(each.memory_info().rss for each in [parent, *parent.children(recursive=True)]) / 1e6


def touch_memory(folder: Path, megabytes: int) -> None:
    """Before a turn: nobody pays for what the one before left to be written, nor for memory that the host has yet to give.

    A virtual machine gets its memory page by page as it is first used, and gives it back when it is free: a file of 1.4 GB takes 5.6 s
    to write into new pages and 0.4 s into used ones (seen on the machine whose figures are in docs/BENCHMARKS.md). Whoever came
    first would pay for both.
    """
    os.sync()
    piece = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(megabytes):
            file.write(piece)
    os.sync()


@contextmanager
def running(name: str, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[System]:
    system = System(name, folder, settings or {})
    try:
        yield system
    finally:
        system.stop()
