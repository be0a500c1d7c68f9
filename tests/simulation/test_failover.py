"""What nobody should have to wait for when a broker dies: told in virtual time, so that the waits can be compared with the settings."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ottla.broker import quorum
from ottla.broker.controller import ActiveController
from ottla.broker.dispatch import Dispatcher, RequestContext
from ottla.broker.handlers.metadata import metadata
from ottla.broker.replicas import Replicas
from ottla.broker.server import Connection
from ottla.client.admin import Admin
from ottla.client.connection import connect
from ottla.client.producer import Producer
from ottla.host import World
from ottla.metadata.delta import Changes
from ottla.metadata.image import ClusterImage, Partition
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.model.settings import BROKER_SETTINGS
from ottla.protocol.apis import BY_NAME
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.storage.log import Log
from tests.simulation.cluster import BROKER_PORT, SimulatedBroker, SimulatedCluster
from tests.simulation.simulation import Simulation

TOPIC = "t"


async def create(cluster: SimulatedCluster, name: str, partitions: int = 1, replicas: int = 3) -> None:
    async def main(world: World) -> None:
        servers = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)
        async with Admin(bootstrap_servers=servers, world=world) as admin:
            await admin.create_topic(name, partitions, replicas)

    await cluster.simulation.node(f"creates {name}").start(main)


def partition(broker: SimulatedBroker, topic: str = TOPIC, index: int = 0) -> Partition:
    assert broker.node is not None
    state = broker.node.partition_state(topic, index)
    assert state is not None
    return state


def leader_of(cluster: SimulatedCluster, index: int) -> SimulatedBroker:
    return cluster.brokers[partition(cluster.brokers[0], index=index).leader - 1]


def controller_of(cluster: SimulatedCluster) -> SimulatedBroker:
    return next(broker for broker in cluster.brokers if broker.node is not None and broker.node.quorum.is_controller)


async def leader_told_by(cluster: SimulatedCluster, asked: SimulatedBroker, index: int, serial: int) -> int:
    async def main(world: World) -> int:
        connection = await connect(world.network, asked.name, BROKER_PORT)
        topic = MetadataRequest.MetadataRequestTopic(name=TOPIC)
        answer = await connection.request(MetadataRequest(topics=[topic]), version=8)
        connection.close()
        return next(int(row.leader_id) for row in answer.topics[0].partitions if row.partition_index == index)

    return int(await cluster.simulation.node(f"asks {serial}").start(main))


@pytest.mark.parametrize("seed", range(3))
def test_who_stops_does_not_wait_for_the_heartbeats_of_others(seed: int) -> None:
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, TOPIC, partitions=6)
            await asyncio.sleep(2 + seed / 3)  # somewhere between two heartbeats
            began = asyncio.get_running_loop().time()
            await leader_of(cluster, 0).stop()
            taken_ms = (asyncio.get_running_loop().time() - began) * 1000
            assert taken_ms < BROKER_SETTINGS["broker.heartbeat.interval.ms"].default / 2

        simulation.run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_who_asks_for_the_leader_right_after_its_death_is_told_of_the_next(seed: int) -> None:
    """Told of the dead one, librdkafka would not ask again for up to a second. The last to die leads the metadata as well."""
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, TOPIC, partitions=6)
            await asyncio.sleep(2)
            controller = controller_of(cluster)
            index = next(index for index in range(6) if (leader_of(cluster, index) is controller) == (seed % 2 == 0))
            victim = leader_of(cluster, index)
            asked = next(broker for broker in cluster.brokers if broker not in (victim, controller))
            victim.kill()
            await asyncio.sleep(0.001)  # the connections break
            assert await leader_told_by(cluster, asked, index, seed) not in (-1, victim.node_id)

        simulation.run(scenario())


def test_a_question_that_is_read_just_before_the_loss_is_told_of_the_next_leader_too() -> None:
    """A client hears of a death when the peers do, and a loop reads requests before it tells of lost connections."""
    with Simulation(3) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, TOPIC)
            await asyncio.sleep(2)
            victim = leader_of(cluster, 0)
            asked = next(broker.node for broker in cluster.brokers if broker is not victim)
            assert asked is not None
            connection = Connection(asked.server, asked.config.inter_broker_listener, Dispatcher(asked, "broker"))
            request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)])
            victim.kill()
            answer = metadata(request, RequestContext(asked, connection, BY_NAME["Metadata"], 8, "asks"))
            asked.doubts.connection_lost(victim.node_id)
            [topic] = (answer if isinstance(answer, MetadataResponse) else await answer).topics
            assert topic.partitions[0].leader_id not in (-1, victim.node_id)

        simulation.run(scenario())


def test_a_broker_that_lost_connections_and_lives_keeps_nobody_waiting() -> None:
    with Simulation(7) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, TOPIC, partitions=3)
            asked, other = cluster.brokers[0].node, cluster.brokers[1]
            assert asked is not None
            before = simulation.loop.time()
            asked.doubts.connection_lost(other.node_id)
            assert asked.doubts
            await asked.doubts.settled()
            assert simulation.loop.time() - before < 0.1

        simulation.run(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_brokers_whose_connections_were_closed_for_idleness_find_each_other_again(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The connections between brokers that carry polls and heartbeats are never idle; others are, until somebody needs them."""
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, 3, {"connections.max.idle.ms": "3000"})

        async def transact(world: World) -> None:
            servers = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)
            async with Producer(bootstrap_servers=servers, world=world, transactional_id="t") as producer:
                for _ in range(3):
                    async with producer.transaction():
                        for index in range(6):
                            await producer.send_and_wait(TOPIC, b"x", partition=index)
                    await asyncio.sleep(10)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, TOPIC, partitions=6)
            await asyncio.sleep(10)
            await cluster.simulation.node("transacts").start(transact)
            assert all(len(partition(cluster.brokers[0], index=index).isr) == 3 for index in range(6))

        with caplog.at_level(logging.INFO, "ottla.server"):
            simulation.run(scenario())
        closed = [record.message for record in caplog.records if "reason=idle" in record.message]
        assert {"PLAINTEXT", "CONTROLLER"} == {message.split("listener=")[1].split()[0] for message in closed}


async def seconds_until_fenced(cluster: SimulatedCluster, victim: SimulatedBroker) -> float:
    loop, controller = asyncio.get_running_loop(), controller_of(cluster)
    began = loop.time()
    while controller.node is not None and not controller.node.image.brokers[victim.node_id].fenced:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return loop.time() - began


@pytest.mark.parametrize("connections_break", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_silent_broker_keeps_its_session_and_no_longer(seed: int, connections_break: bool) -> None:
    """A process that is stopped says nothing, but its machine accepts connections: it may go on in the next moment."""
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, TOPIC, partitions=6)
            await asyncio.sleep(2 + seed / 3)  # somewhere between two heartbeats
            victim = next(broker for broker in cluster.brokers if broker is not controller_of(cluster))
            victim.machine.pause()
            if connections_break:
                for connection in simulation.internet.connections():
                    if victim.name in connection.hosts:
                        connection.cut()
            session_s = BROKER_SETTINGS["broker.session.timeout.ms"].default / 1000
            heartbeat_s = BROKER_SETTINGS["broker.heartbeat.interval.ms"].default / 1000
            assert session_s - heartbeat_s - 0.1 < await seconds_until_fenced(cluster, victim) < session_s + 0.1
            assert all(partition(controller_of(cluster), index=index).leader != victim.node_id for index in range(6))

        simulation.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_whose_port_refuses_is_fenced_at_once(seed: int) -> None:
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            await asyncio.sleep(2 + seed / 3)
            victim = next(broker for broker in cluster.brokers if broker is not controller_of(cluster))
            victim.kill()
            assert await seconds_until_fenced(cluster, victim) < 0.1

        simulation.run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_followers_fetch_a_new_partition_at_once_although_they_are_in_a_long_poll(seed: int) -> None:
    """The first record of a topic, and the first after a failover, must not wait for the end of a poll that does not ask for it."""
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, 3)
        poll_s = BROKER_SETTINGS["replica.fetch.wait.max.ms"].default / 1000
        waits = []

        async def produce(world: World) -> None:
            servers = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)
            async with Producer(bootstrap_servers=servers, world=world, acks="all", linger_ms=0) as producer:
                await producer.send_and_wait("polled", b"so that every follower polls every leader", partition=0)
                for number in range(5):
                    await asyncio.sleep(poll_s / 2)
                    async with Admin(bootstrap_servers=servers, world=world) as admin:
                        await admin.create_topic(f"new-{number}", 1, 3)
                    before = simulation.loop.time()
                    await producer.send_and_wait(f"new-{number}", b"x")
                    waits.append(simulation.loop.time() - before)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, "polled", partitions=6)
            await cluster.simulation.node("produces").start(produce)

        simulation.run(scenario())
        assert max(waits) < poll_s / 2


def test_records_of_a_replicated_partition_are_deleted_as_soon_as_its_followers_have_heard() -> None:
    """Found by reading: the leader was not told of its followers' new starts, and then told nobody, until the time was up."""
    with Simulation(10) as simulation:
        cluster = SimulatedCluster(simulation, 3)
        took = []

        async def delete(world: World) -> None:
            servers = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)
            async with Producer(bootstrap_servers=servers, world=world, acks="all", linger_ms=0) as producer:
                for _ in range(10):
                    await producer.send_and_wait(TOPIC, b"x", partition=0)
            async with Admin(bootstrap_servers=servers, world=world) as admin:
                before = simulation.loop.time()
                deleted = await admin.delete_records({(TOPIC, 0): 7})
                took.append(simulation.loop.time() - before)
                assert list(deleted.values()) == [7]

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, TOPIC)
            await cluster.simulation.node("deletes").start(delete)

        simulation.run(scenario())
        assert took[0] < 3 * BROKER_SETTINGS["replica.fetch.wait.max.ms"].default / 1000


def test_a_wall_clock_that_jumps_takes_nobody_out_of_sync() -> None:
    """How long a follower has been behind is told by the monotonic clock: the wall's is set by operators and time servers."""
    with Simulation(8) as simulation:
        cluster = SimulatedCluster(simulation, 3)
        lag_ms = BROKER_SETTINGS["replica.lag.time.max.ms"].default

        async def produce(world: World) -> None:
            servers = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)
            async with Producer(bootstrap_servers=servers, world=world, acks=1, linger_ms=0) as producer:
                for _ in range(100):
                    await producer.send_and_wait(TOPIC, b"x", partition=0)
                    await asyncio.sleep(lag_ms / 1000 / 100)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, TOPIC)
            leader = leader_of(cluster, 0)
            epoch = partition(leader).partition_epoch
            writing = asyncio.ensure_future(cluster.simulation.node("writes").start(produce))
            for by_ms in (10 * lag_ms, -20 * lag_ms, 10 * lag_ms):
                await asyncio.sleep(lag_ms / 1000 / 4)
                leader.machine.clock.jump(by_ms)
            await writing
            assert partition(leader).partition_epoch == epoch

        simulation.run(scenario())


def test_much_metadata_is_applied_piece_by_piece_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "MAX_PUBLISHED", 3)
    monkeypatch.setattr(quorum, "MAX_PUBLISHING_MS", 0)  # nothing takes time here
    with Simulation(9) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            for number in range(5):
                await create(cluster, f"many-{number}", partitions=7)
            victim = next(broker for broker in cluster.brokers if broker is not controller_of(cluster))
            victim.kill()
            await create(cluster, "meanwhile", partitions=7, replicas=2)
            victim.start()
            await victim.ready.wait()
            await asyncio.sleep(5)
            images = [broker.node.image for broker in cluster.brokers if broker.node is not None]
            assert len(images) == 3
            assert all(image.topics == images[0].topics for image in images)
            assert len(images[0].topics) == 6

        simulation.run(scenario())


def test_many_partitions_of_one_batch_are_made_in_several_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each needs files: to make them all at once would keep the loop from everything else, a metadata leader from its followers."""
    made: dict[int, list[int]] = {}  # by node, how many in one turn
    there: list[int] = []  # how many the metadata's leader had when it answered
    follow, apply, committed = Replicas.follow, quorum.Quorum._apply, ActiveController.committed

    def counted(self: Replicas, image: ClusterImage, changes: Changes) -> None:
        follow(self, image, changes)
        made.setdefault(self.node_id, [0])[-1] += sum(map(len, changes.partitions.values()))

    def a_turn(self: quorum.Quorum) -> None:
        made.setdefault(self._node.node_id, []).append(0)
        apply(self)

    monkeypatch.setattr(Replicas, "follow", counted)

    def answering(self: ActiveController, offset: int) -> None:
        waiting = len(self._tickets)
        committed(self, offset)
        there.extend([len(self._node.replicas)] * (waiting - len(self._tickets)))

    monkeypatch.setattr(quorum.Quorum, "_apply", a_turn)
    monkeypatch.setattr(quorum, "MAX_PUBLISHING_MS", 0)  # nothing takes time here
    monkeypatch.setattr(ActiveController, "committed", answering)
    with Simulation(10) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, "many", partitions=3 * quorum.PORTION)
            await asyncio.sleep(1)
            for broker in cluster.brokers:
                assert broker.node is not None
                assert len(broker.node.replicas) == 3 * quorum.PORTION
            assert all(max(turns) == quorum.PORTION for turns in made.values())
            assert there[-1] == quorum.PORTION  # who asked for them was not kept waiting for the rest

        simulation.run(scenario())


def test_a_partition_whose_files_were_refused_is_made_once_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, opened = [0], Replicas._open

    def refuses_at_first(self: Replicas, topic_partition: TopicPartition, topic_id: bytes) -> Log:
        if self.node_id == 2 and topic_partition.topic == TOPIC and refused[0] < 5:
            refused[0] += 1
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space is left")
        return opened(self, topic_partition, topic_id)

    monkeypatch.setattr(Replicas, "_open", refuses_at_first)
    with Simulation(11) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            await create(cluster, TOPIC, partitions=3)
            await asyncio.sleep(10)
            node = cluster.brokers[1].node
            assert node is not None
            assert refused == [5]
            assert len(node.replicas) == 3

        simulation.run(scenario())
