"""Partitions join a transaction while the one before still ends, or while their leaders move (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from ottla import Admin, ApiError, Producer
from ottla.host import World
from ottla.model.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.protocol.messages.transactions import AddPartitionsToTxnRequest
from tests.simulation.cluster import SimulatedBroker, SimulatedCluster
from tests.simulation.simulation import Simulation

LIMIT_SECONDS = 120.0
SETTLED_SECONDS = 1.0  # in simulated time: whatever is on its way has arrived
SERVERS = "n1:9092,n2:9092,n3:9092"
SETTINGS = {
    "add.partitions.to.txn.retry.backoff.max.ms": "10000",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


class Play:
    def __init__(self, simulation: Simulation, admin: Admin, sender: Producer, cluster: SimulatedCluster) -> None:
        self.internet = simulation.internet
        self.admin = admin
        self.sender = sender
        self._cluster = cluster

    async def coordinator(self) -> SimulatedBroker:
        leader = (await self.admin.describe_topic(TRANSACTIONS_TOPIC)).partitions[0].leader
        return self._cluster.brokers[leader - 1]

    def broker_beside(self, coordinator: SimulatedBroker) -> SimulatedBroker:
        return next(broker for broker in self._cluster.brokers if broker is not coordinator)

    def lose(self, broker: SimulatedBroker) -> None:
        broker.kill()

    async def lead(self, topic: str, partition: int, replicas: list[int]) -> None:
        """The first of these becomes its leader."""
        await self.admin.alter_partition_reassignments({(topic, partition): replicas})
        leader = -1
        while leader != replicas[0]:
            await asyncio.sleep(SETTLED_SECONDS)
            with suppress(ApiError):  # it leads already, or is not in sync yet
                await self.admin.elect_leaders([(topic, partition)])
            leader = (await self.admin.describe_topic(topic)).partitions[partition].leader


class HeldQuestion:
    """What a leader asks the coordinator of a transaction, stopped on its way until it is let go."""

    def __init__(self, broker: SimulatedBroker) -> None:
        assert broker.node is not None
        self.asked = asyncio.Event()
        self.released = asyncio.Event()
        self._transactions = broker.node.transactions
        self._ask_broker = self._transactions.ask_broker
        self._transactions.ask_broker = self._hold  # type: ignore[method-assign]

    async def _hold(self, broker_id: int, request: Any) -> Any:
        if isinstance(request, AddPartitionsToTxnRequest):
            self.asked.set()
            await self.released.wait()
        return await self._ask_broker(broker_id, request)


def perform(scene: Callable[[Play], Awaitable[None]]) -> None:
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, 3, SETTINGS)

        async def client(world: World) -> None:
            async with (
                Admin(bootstrap_servers=SERVERS, world=world) as admin,
                Producer(bootstrap_servers=SERVERS, transactional_id="mover", linger_ms=50, world=world) as sender,
            ):
                await sender.init_transactions()
                await scene(Play(simulation, admin, sender, cluster))

        async def scenario() -> None:
            await cluster.start()
            await asyncio.wait_for(simulation.node("client").start(client), LIMIT_SECONDS)

        simulation.run(scenario())


async def send(sender: Producer, *partitions: int) -> None:
    for partition in partitions:
        await sender.send("t", b"v", partition=partition)
    await sender.flush()


async def send_offsets(sender: Producer) -> None:
    await sender.send_offsets_to_transaction({("t", 0): 1}, "g")


@pytest.mark.parametrize(
    ("takes_part", "join"), [("t", lambda sender: send(sender, 0)), (OFFSETS_TOPIC, send_offsets)], ids=["records", "offsets"]
)
def test_a_transaction_that_waits_for_the_markers_of_the_one_before_is_taken_once_they_are_written(
    takes_part: str, join: Callable[[Producer], Awaitable[None]]
) -> None:
    """A marker ends every verification of its producer: the one that waited for it has to be begun again."""

    async def scene(play: Play) -> None:
        await play.admin.create_topic("t", 1, 3)
        async with play.sender.transaction():
            await join(play.sender)
            play.lose(play.broker_beside(await play.coordinator()))
            await play.admin.set_topic_configs(takes_part, {"min.insync.replicas": "3"})  # no marker can be written any more
            await asyncio.sleep(30 * SETTLED_SECONDS)
        await play.sender.begin_transaction()
        joining = asyncio.ensure_future(join(play.sender))
        await asyncio.sleep(SETTLED_SECONDS)
        assert not joining.done()
        await play.admin.set_topic_configs(takes_part, {"min.insync.replicas": "1"})
        await joining
        await play.sender.commit_transaction()

    perform(scene)


def test_a_marker_that_overtakes_the_question_whether_the_next_transaction_may_join_does_no_harm() -> None:
    async def scene(play: Play) -> None:
        coordinator = await play.coordinator()
        leader = play.broker_beside(coordinator)
        await play.admin.create_topic("t", assignments={0: [leader.node_id]})
        async with play.sender.transaction():
            await send(play.sender, 0)
            play.internet.build_wall(coordinator.name, leader.name)
        await play.sender.begin_transaction()
        question = HeldQuestion(leader)
        joining = asyncio.create_task(send(play.sender, 0))
        await question.asked.wait()
        play.internet.tear_down_walls()
        await asyncio.sleep(SETTLED_SECONDS)  # the marker is written, and the coordinator knows
        question.released.set()
        await joining
        await play.sender.commit_transaction()

    perform(scene)


def test_records_for_a_partition_that_comes_to_be_led_here_while_others_are_verified_are_sent_again() -> None:
    async def scene(play: Play) -> None:
        coordinator = await play.coordinator()
        leader = play.broker_beside(coordinator)
        here, there = leader.node_id, coordinator.node_id
        await play.admin.create_topic("t", assignments={0: [here, there], 1: [here, there]})
        async with play.sender.transaction():
            await send(play.sender, 0, 1)  # both are led here, as the producer still believes later
        await play.lead("t", 1, [there, here])
        await play.sender.begin_transaction()
        question = HeldQuestion(leader)
        joining = asyncio.create_task(send(play.sender, 0, 1))
        await question.asked.wait()
        await play.lead("t", 1, [here, there])
        question.released.set()
        await joining
        await play.sender.commit_transaction()

    perform(scene)
