"""What every workload stands on: machines for its clients, what they write down, and the shape that `run.py` knows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ClassVar

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.host import World
from ottla.model.errors import OttlaError
from tests.histories import Recorder
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.history import History
from tests.simulation.node import SimulatedNode
from tests.simulation.simulation import Simulation

RETRY_SECONDS = 0.2
# Clients that find out soon that they talk to nobody.
QUICK: dict[str, Any] = {"retry_backoff_ms": 50, "request_timeout_ms": 3_000, "socket_connection_setup_timeout_ms": 2_000}
TROUBLE = (OttlaError, OSError, TimeoutError)


class Stage:
    """One run's cluster, and what its clients did."""

    def __init__(self, simulation: Simulation, cluster: SimulatedCluster, history: History) -> None:
        self.simulation = simulation
        self.cluster = cluster
        self.history = history  # of plain clients
        self.recorders: list[Recorder] = []  # of the real ones
        self.servers = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)
        self.replication_factor = min(3, len(cluster.brokers))

    def recorder(self, process: str, *, read_committed: bool = True) -> Recorder:
        loop = self.simulation.loop
        made = Recorder(process, read_committed=read_committed, clock=lambda: int(loop.time() * 1e9))
        self.recorders.append(made)
        return made

    def tell(self, kind: str, text: str) -> None:
        self.simulation.journal.tell(kind, text)

    def machine(self, name: str) -> SimulatedNode:
        return self.simulation.node(name)


class Workload:
    """`prepare` before the storm, `start` with it, `finish` when it is over, then `read`, then `judge`."""

    name: ClassVar[str]

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.chance = random.Random(f"{self.name} {stage.simulation.seed}")
        self.stopping = False

    async def prepare(self, admin: Admin) -> None:
        """Create what is needed; no faults yet."""

    def start(self) -> None:
        """Start the machines of the clients."""

    async def finish(self) -> None:
        """Faults have ended: stop, and return when everybody is done."""

    async def read(self, world: World) -> None:
        """On a machine of its own: read everything to its end."""

    def judge(self) -> None:
        """Raise `Violation` if a promise was broken that the history checker does not know of."""

    # -- what most of them need

    def consumer(self, world: World, **settings: Any) -> Consumer:
        given = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **QUICK, **settings}
        return Consumer(bootstrap_servers=self.stage.servers, world=world, **given)

    def producer(self, world: World, **settings: Any) -> Producer:
        return Producer(bootstrap_servers=self.stage.servers, world=world, **{**QUICK, **settings})

    def admin(self, world: World) -> Admin:
        return Admin(bootstrap_servers=self.stage.servers, world=world, default_api_timeout_ms=8_000, **QUICK)

    async def lives(self, live: Callable[[int], Awaitable[None]]) -> None:
        """One life after the other, each ended by its own trouble or content, until told to stop."""
        number = 0
        while not self.stopping:
            number += 1
            try:
                await live(number)
            except TROUBLE:
                await asyncio.sleep(self.chance.uniform(0.1, 1.0))

    async def read_to_the_end(self, world: World, recorder: Recorder, topics: Iterable[str], **settings: Any) -> list[Any]:
        """Every record of these topics up to where they end now; transactions that are still open are waited for."""
        found: list[Any] = []
        async with self.admin(world) as admin, self.consumer(world, **settings) as consumer:
            described = await admin.describe_topics(list(topics))
            partitions = [(name, row.partition) for name, topic in described.items() for row in topic.partitions]
            consumer.assign(partitions)
            while True:
                records = await consumer.poll(500)
                note(recorder, records)
                found += records
                ends = await admin.latest_offsets(partitions)
                positions = {partition: await consumer.position(partition) for partition in partitions}
                if all(positions[partition] >= ends[partition] for partition in partitions):
                    return found


def note(recorder: Recorder, records: list[Any]) -> None:
    if records:
        recorder.polled([(record.topic, record.partition, record.offset, (record.value or b"").decode()) for record in records])


async def patiently(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """For ever: the run's own bound on virtual time is the judge of liveness."""
    while True:
        try:
            return await attempt()
        except TROUBLE as error:
            if not getattr(error, "retriable", True):
                raise
            await asyncio.sleep(RETRY_SECONDS)


async def all_of(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        await task
