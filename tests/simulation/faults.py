"""What goes wrong in a run, drawn from its seed.

Faults are drawn so that what is promised must still hold. What may **not** be injected, and why:

- A power cut on a machine while a record it acknowledged may be in no other machine's memory: Kafka's promise rests on replication, not on
  the disk, which is synced now and then. So power is cut only on one machine, while all run, all replicas of all partitions are in
  sync and nobody is cut off; and until it has caught up, no other one is killed, stopped, paused or cut off: for a while
  the controller takes the dead machine for alive and in sync, and if the others leave, it is the last one standing (KIP-966
  is about this). A cluster of one loses power at any time, but then with `log.flush.interval.messages=1`.
- A flipped bit in the only copy of a record: nothing could bring it back. What rots is what is read for others while a node serves:
  a read returns a record with one bit turned over, and whoever gets it must notice by the checksum and ask again. While a node
  starts, its own copy may be the only one.
- A clock that jumps in a run with time-based retention: deleting old records is then the promise.

- A sync that fails and then, tried again, claims to have worked although the data is gone (Linux, 2018): a node that goes on after a
  failed sync would be believed. Here what a failed sync left behind stays in memory and the next one may save it.

Everything else may happen at any time and to any number of nodes at once: kills, pauses, cut connections, walls one way and both
ways, slow links, slow disks, failing syncs, full disks, skewed clocks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import permutations

from tests.simulation.cluster import SimulatedBroker, SimulatedCluster
from tests.simulation.network import Link

MEAN_SECONDS_BETWEEN = 0.8
LONGEST_SECONDS = 8.0
SMALLEST_ROOM = 4_096
OUT_OF_SYNC_SECONDS = 4.0  # more than replica.lag.time.max.ms


class Faults:
    """`run` until cancelled, then `heal`."""

    def __init__(self, cluster: SimulatedCluster, seed: str, *, power: bool, full_disks: bool = True, focus: str = "") -> None:
        self._cluster = cluster
        self._simulation = cluster.simulation
        self._random = random.Random(seed)
        self._mean_seconds = MEAN_SECONDS_BETWEEN / {"raft": 3, "replication": 2}.get(focus, 1)
        self._under_way: set[asyncio.Task[None]] = set()
        self.count = 0
        kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (4, self._kill),
            (3, self._pause),
            (4, self._cut_connections),
            (3, self._wall),
            (2, self._slow_link),
            (2, self._slow_disk),
            (1, self._full_disk),
            (2, self._jump_clock),
            (3, self._restart),
            (2, self._flip_reads),
            (1, self._fail_syncs),
            (2, self._cut_off_a_leader),
        ]
        if power:
            kinds.append((12 if focus == "storage" else 3, self._cut_power))
        if not full_disks:
            kinds = [(weight, kind) for weight, kind in kinds if kind != self._full_disk]
        if focus == "raft":
            kinds += [(12, self._shake_the_controller)]
        if focus == "replication":
            kinds += [(12, self._cut_off_a_leader)]
        # Each run has a favourite or two, so that rare combinations come up.
        self._weights = [weight * self._random.choice((0, 1, 1, 1, 3)) for weight, _ in kinds]
        if not any(self._weights):
            self._weights[0] = 1
        self._kinds = [kind for _, kind in kinds]
        self._isolating = (
            self._shake_the_controller,
            self._cut_off_a_leader,
            self._kill,
            self._pause,
            self._wall,
            self._slow_link,
            self._restart,
            self._full_disk,
            self._fail_syncs,
        )
        self._delicate = False  # a machine lost power and has not caught up yet

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / self._mean_seconds))
            kind = self._random.choices(self._kinds, self._weights)[0]
            if self._delicate and kind in self._isolating:
                continue
            task = asyncio.create_task(kind(), name=kind.__name__)  # type: ignore[arg-type]
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def heal(self) -> None:
        """Everything is well again: no walls, all machines up, all disks sound."""
        for task in list(self._under_way):
            task.cancel()
        internet = self._simulation.internet
        internet.tear_down_walls()
        internet.forget_links()
        for broker in self._cluster.nodes:
            machine = broker.machine
            machine.disk.capacity = 1 << 40
            machine.disk.sync_errors = machine.disk.read_flips = 0
            machine.resume()
            if machine.workers is not None:
                machine.workers.slowness = 1.0
        for broker in self._cluster.nodes:
            if broker.stopping and broker.machine.running and broker.machine.main is not None:
                await asyncio.wait([broker.machine.main])
                await asyncio.sleep(0.001)
            if not broker.machine.running:
                broker.start()
        self._simulation.journal.tell("healed", "all faults have ended")

    # -- kinds

    def _duration(self) -> float:
        return min(LONGEST_SECONDS, self._random.expovariate(1 / 1.5))

    def _broker(self) -> SimulatedBroker | None:
        running = [broker for broker in self._cluster.nodes if broker.machine.running]
        return self._random.choice(running) if running else None

    async def _kill(self) -> None:
        await self._down(lambda broker: broker.kill())

    async def _cut_power(self) -> None:
        names = {kind.__name__ for kind in self._isolating}
        isolated = any(task.get_name() in names for task in self._under_way if not task.done())
        broker = self._broker()
        alone = len(self._cluster.nodes) == 1
        if broker is None or not (alone or (not isolated and not self._delicate and self._all_in_sync())):
            return
        self._delicate = not alone
        self.count += 1
        self._cluster.weakened.add(broker.node_id)
        broker.cut_power()
        await asyncio.sleep(self._duration())
        if not broker.machine.running:
            broker.start()
        await asyncio.sleep(OUT_OF_SYNC_SECONDS)  # by now it was dropped from the in-sync sets, or is really in them
        if not alone:
            await self.until_in_sync()
        self._cluster.weakened.discard(broker.node_id)
        self._delicate = False

    async def until_in_sync(self) -> None:
        while not self._all_in_sync():  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    def _all_in_sync(self) -> bool:
        """As the nodes themselves see it, all of them: none may be behind with the metadata."""
        nodes = [broker.node for broker in self._cluster.nodes if broker.ready.is_set()]
        if len(nodes) < len(self._cluster.nodes) or not all(nodes):
            return False
        partitions = [
            partition
            for node in nodes
            if node is not None
            for topic in node.image.topics.values()
            for partition in topic.partitions.values()
        ]
        return all(len(partition.isr) == len(partition.replicas) for partition in partitions)

    async def _down(self, how: Callable[[SimulatedBroker], None]) -> None:
        victims = self._cluster.nodes if self._random.random() < 0.1 else [broker for broker in [self._broker()] if broker]
        for broker in victims:
            if broker.machine.running:
                self.count += 1
                how(broker)
        await asyncio.sleep(self._duration())
        for broker in victims:
            if not broker.machine.running:
                broker.start()

    async def _restart(self) -> None:
        broker = self._broker()
        if broker is None or not broker.ready.is_set() or broker.stopping:
            return
        self.count += 1
        self._simulation.journal.tell("controlled restarts", f"{broker.name} is told to stop")
        await broker.stop()
        await asyncio.sleep(self._duration() / 2)
        if not broker.machine.running:
            broker.start()

    async def _shake_the_controller(self) -> None:
        """The leader of the metadata quorum is paused, killed or cut off for about as long as an election takes."""
        leading = [broker for broker in self._cluster.nodes if broker.node is not None and broker.node.quorum.leader.is_self]
        if not leading:
            return
        broker, seconds = self._random.choice(leading), self._random.uniform(0.5, 4.0)
        self.count += 1
        how = self._random.randrange(3)
        internet, others = self._simulation.internet, [each.name for each in self._cluster.nodes if each is not broker]
        late = self._random.random() < 0.4  # candidates do not hear of each other in time
        if late:
            self._join(others, Link(self._random.uniform(0.03, 0.3), 0.01))
        if how == 0 and broker.machine.process is not None and not broker.machine.process.paused:
            broker.machine.pause()
            await asyncio.sleep(seconds)
            broker.machine.resume()
        elif how == 1:
            broker.kill()
            await asyncio.sleep(seconds)
            if not broker.machine.running:
                broker.start()
        else:
            self._simulation.journal.tell("walls", f"the controller {broker.name} is cut off")
            for other in others:
                internet.build_wall(broker.name, other)
                if self._random.random() < 0.5:
                    internet.build_wall(other, broker.name)
            await asyncio.sleep(seconds)
            internet.tear_down_walls()
            self._simulation.journal.tell("fallen walls", "the walls fall")
        if late:
            self._join(others, Link())

    def _join(self, hosts: list[str], link: Link) -> None:
        self._simulation.journal.tell("slow links", f"{' and '.join(hosts)} are {link.delay_seconds:.4f} s apart")
        for source, target in permutations(hosts, 2):
            self._simulation.internet.set_link(source, target, link)

    async def _cut_off_a_leader(self) -> None:
        """A leader of partitions is cut off from the other brokers, and not from clients: it goes on taking records that it cannot
        commit, while the others elect another one. Then it hears of that, or is killed before it can."""
        leading = [broker for broker in self._cluster.nodes if broker.ready.is_set() and _leads(broker)]
        if len(self._cluster.nodes) == 1 or not leading:
            return
        broker = self._random.choice(leading)
        self.count += 1
        self._simulation.journal.tell("walls", f"{broker.name} leads, and is cut off from the other brokers")
        both = self._random.random() < 0.5
        for other in self._cluster.nodes:
            if other is not broker:
                self._simulation.internet.build_wall(broker.name, other.name)
                if both:
                    self._simulation.internet.build_wall(other.name, broker.name)
        await asyncio.sleep(self._random.uniform(1.0, LONGEST_SECONDS))
        killed = self._random.random() < 0.3 and broker.machine.running
        if killed:
            broker.kill()
        self._simulation.internet.tear_down_walls()
        self._simulation.journal.tell("fallen walls", "the walls fall")
        if killed:
            await asyncio.sleep(self._duration())
            if not broker.machine.running:
                broker.start()

    async def _pause(self) -> None:
        broker = self._broker()
        if broker is not None and broker.machine.process is not None and not broker.machine.process.paused:
            self.count += 1
            broker.machine.pause()
            await asyncio.sleep(self._duration())
            broker.machine.resume()

    async def _cut_connections(self) -> None:
        self.count += 1
        for connection in self._simulation.internet.connections():
            if self._random.random() < 0.5:
                client, server = connection.hosts
                self._simulation.journal.tell("cut connections", f"the connection from {client} to {server} is cut")
                connection.cut()

    async def _wall(self) -> None:
        self.count += 1
        hosts = sorted(self._simulation.internet.hosts)
        self._random.shuffle(hosts)
        split = self._random.randrange(1, len(hosts))
        both = self._random.random() < 0.5
        left, right = hosts[:split], hosts[split:]
        arrow = "<->" if both else "->"
        self._simulation.journal.tell("walls", f"a wall {' '.join(sorted(left))} {arrow} {' '.join(sorted(right))}")
        for one in left:
            for other in right:
                self._simulation.internet.build_wall(one, other)
                if both:
                    self._simulation.internet.build_wall(other, one)
        await asyncio.sleep(self._duration())
        self._simulation.internet.tear_down_walls()
        self._simulation.journal.tell("fallen walls", "the walls fall")

    async def _slow_link(self) -> None:
        self.count += 1
        hosts = sorted(self._simulation.internet.hosts)
        source, target = self._random.sample(hosts, 2)
        delay = self._random.uniform(0.01, 1.0)
        self._simulation.journal.tell("slow links", f"the link {source} -> {target} becomes slow ({delay:.2f} s)")
        self._simulation.internet.set_link(source, target, Link(delay, delay / 2, 1e5))
        await asyncio.sleep(self._duration())
        self._simulation.internet.set_link(source, target, Link())

    async def _slow_disk(self) -> None:
        broker = self._broker()
        if broker is not None and broker.machine.workers is not None:
            workers = broker.machine.workers
            workers.slowness = self._random.uniform(10, 500)
            self.count += 1
            self._simulation.journal.tell("slow disks", f"the disk of {broker.name} becomes {workers.slowness:.0f} times slower")
            await asyncio.sleep(self._duration())
            workers.slowness = 1.0

    async def _full_disk(self) -> None:
        broker = self._broker()
        if broker is not None:
            disk = broker.machine.disk
            self.count += 1
            disk.capacity = disk.usage("/")[0] - disk.usage("/")[1] + self._random.randrange(SMALLEST_ROOM)
            self._simulation.journal.tell("full disks", f"the disk of {broker.name} is nearly full")
            await asyncio.sleep(self._duration())
            disk.capacity = 1 << 40

    async def _jump_clock(self) -> None:
        broker = self._random.choice(self._cluster.nodes)
        by_ms = self._random.randrange(-600_000, 600_000)
        self._simulation.journal.tell("clock jumps", f"the clock of {broker.name} jumps by {by_ms} ms")
        self.count += 1
        broker.machine.clock.jump(by_ms)

    async def _flip_reads(self) -> None:
        """Only of a node that serves: what it reads while it starts may be the only copy."""
        broker = self._broker()
        if broker is not None and broker.ready.is_set():
            self.count += 1
            broker.machine.disk.read_flips += self._random.randrange(1, 4)
            await asyncio.sleep(self._duration())
            broker.machine.disk.read_flips = 0

    async def _fail_syncs(self) -> None:
        broker = self._broker()
        if broker is not None and broker.ready.is_set():
            self.count += 1
            broker.machine.disk.sync_errors += self._random.randrange(1, 4)
            await asyncio.sleep(self._duration())
            broker.machine.disk.sync_errors = 0


def _leads(broker: SimulatedBroker) -> bool:
    return broker.node is not None and any(replica.leads for replica in broker.node.replicas)
