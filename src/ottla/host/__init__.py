"""The doors to the world: clock, randomness, network, disk, workers.

Everything that is not a pure function of its inputs passes through one of these. Each has a real implementation here and a
simulated twin in `tests/simulation/`, so that whole clusters of the real code run from a seed. Nothing outside this package
may import `time`, `random`, `socket`, `os` (for files) or start threads and processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.host.clock import Clock, Randomness
from ottla.host.disk import Disk
from ottla.host.network import Network
from ottla.host.workers import Workers


@dataclass(frozen=True, slots=True)
class World:
    clock: Clock
    random: Randomness
    network: Network
    disk: Disk
    workers: Workers
