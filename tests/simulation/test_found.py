"""What the simulator found, as scenarios of their own: seeds change their stories with the code, these do not."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest

from ottla.broker.dispatch import Dispatcher, RequestContext, Route, Served
from ottla.broker.server import Exchange
from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.host import World
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import OFFSETS_TOPIC, TopicPartition
from ottla.protocol.apis import BY_NAME
from ottla.protocol.codec import reader
from ottla.storage.config import LogConfig
from ottla.storage.log import Log
from tests.simulation.clients import cluster_of
from tests.simulation.cluster import DATA, SimulatedBroker, SimulatedCluster
from tests.simulation.disk import SimulatedDisk
from tests.simulation.journal import Journal
from tests.simulation.quorum import QuorumInvariants
from tests.simulation.run import Complaints
from tests.simulation.simulation import Simulation

LIMIT_SECONDS = 120.0


async def create_topic(cluster: SimulatedCluster, name: str) -> None:
    async def main(world: World) -> None:
        servers = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)
        async with Admin(bootstrap_servers=servers, world=world) as admin:
            try:
                await admin.create_topic(name, 1, 1)
            except ApiError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # an attempt whose answer was lost had done it
                    raise

    await asyncio.wait_for(cluster.simulation.node(f"creates {name}").start(main), LIMIT_SECONDS)


def restart(broker: SimulatedBroker) -> None:
    broker.kill()
    broker.start()


def test_what_a_killed_node_had_written_is_on_disk_before_it_counts_again() -> None:
    """Found with seed 5: killed before a sync and started again, a voter acknowledged what the next power cut could take."""
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, 1)
        broker = cluster.brokers[0]
        invariants = QuorumInvariants(cluster)

        async def scenario() -> None:
            await cluster.start()
            assert broker.machine.workers is not None
            broker.machine.workers.slowness = 1e6  # nothing is synced any more
            creating = asyncio.create_task(create_topic(cluster, "t"))
            await asyncio.sleep(2)
            assert broker.node is not None
            written = broker.node.quorum._log.end_offset
            assert invariants._durable_end(broker.machine.disk) < written
            restart(broker)
            await broker.ready.wait()
            assert broker.node is not None
            assert invariants._durable_end(broker.machine.disk) >= broker.node.quorum.high_watermark >= written
            await creating

        simulation.run(scenario())


def test_a_node_whose_disk_fails_to_sync_ends_and_recovers() -> None:
    """Found with seed 1: the task that syncs the metadata log died, and the node led for a minute without committing anything."""
    with Simulation(2) as simulation:
        cluster = SimulatedCluster(simulation, 1)
        disk = cluster.brokers[0].machine.disk

        async def scenario() -> None:
            await cluster.start()
            disk.sync_errors = 1
            await create_topic(cluster, "t")
            assert simulation.journal.counts["failed nodes"] == 1

        simulation.run(scenario())


def test_metadata_that_was_misread_is_read_again() -> None:
    """Found with seed 1: a wrong checksum while committed records were read left the quorum without a timer."""
    with Simulation(3) as simulation:
        cluster = SimulatedCluster(simulation, 1)
        disk = cluster.brokers[0].machine.disk

        async def scenario() -> None:
            await cluster.start()
            for number in range(5):
                disk.read_flips = 1
                await create_topic(cluster, f"t{number}")
                assert disk.read_flips == 0

        simulation.run(scenario())


def test_a_follower_of_the_quorum_asks_again_for_what_came_damaged() -> None:
    with Simulation(4) as simulation:
        cluster = SimulatedCluster(simulation, 3)

        async def scenario() -> None:
            await cluster.start()
            for number in range(5):
                for broker in cluster.brokers:
                    broker.machine.disk.read_flips = 3
                await create_topic(cluster, f"t{number}")
            for broker in cluster.brokers:
                broker.machine.disk.read_flips = 0
            await create_topic(cluster, "last")
            await asyncio.sleep(5)
            images = [broker.node.image for broker in cluster.brokers if broker.node is not None]
            assert all("last" in image.topic_ids for image in images)

        simulation.run(scenario())


def test_a_quorum_that_was_restarted_still_knows_where_its_log_begins() -> None:
    """Found with seed 328 of the focus raft: behind a snapshot, a restarted leader told a follower of an older epoch to cut its log
    to 0, below what was committed."""
    with Simulation(5) as simulation:
        cluster = SimulatedCluster(simulation, 1, {"metadata.log.max.record.bytes.between.snapshots": "500"})
        broker = cluster.brokers[0]

        async def scenario() -> None:
            await cluster.start()
            for number in range(10):
                await create_topic(cluster, f"t{number}")
            assert broker.node is not None
            before = broker.node.quorum.raft.log
            assert before.snapshot is not None
            restart(broker)
            await broker.ready.wait()
            assert broker.node is not None
            after = broker.node.quorum.raft.log
            assert after.start_offset >= before.start_offset > 0

        simulation.run(scenario())


def test_a_new_leader_tells_no_end_before_it_knows_what_is_committed() -> None:
    """Found with seed 304: right after an election the end of a log was told that lay before acknowledged records (KIP-207)."""
    with Simulation(6) as simulation:
        cluster = SimulatedCluster(simulation, 1)
        broker = cluster.brokers[0]

        async def ask(world: World) -> int:
            servers = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)
            async with Admin(bootstrap_servers=servers, world=world, default_api_timeout_ms=2_000) as admin:
                return (await admin.latest_offsets([("t", 0)]))[TopicPartition("t", 0)]

        async def scenario() -> None:
            await cluster.start()
            await create_topic(cluster, "t")
            assert broker.node is not None
            leader = broker.node.replicas.leader("t", 0).leader
            assert leader is not None
            leader.epoch_start_offset = 1  # as if it had become the leader with a record of which it does not know the fate
            with pytest.raises(ApiError) as caught:
                await simulation.node("asks too early").start(ask)
            assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
            leader.epoch_start_offset = 0
            assert await simulation.node("asks again").start(ask) == 0

        simulation.run(scenario())


@pytest.mark.parametrize("commits", [1, 200], ids=["loaded at once", "loaded in turns"])
def test_a_coordinator_whose_log_was_misread_is_loaded_again(commits: int) -> None:
    """Found by reading, after seed 1: the load of a group's partition met a wrong checksum, once, and its groups were refused for good."""
    misreads = 5  # more than the node's own registration brings news of the partition, at each of which its leader loads it anew
    group, place = "g", TopicPartition("t", 0)
    with Simulation(7) as simulation:
        cluster = SimulatedCluster(simulation, 1, {"offsets.topic.num.partitions": "1"})
        broker = cluster.brokers[0]
        disk = broker.machine.disk
        servers = ",".join(f"{host}:{port}" for host, port in cluster.bootstrap)

        async def commit(world: World) -> None:
            async with Consumer(bootstrap_servers=servers, world=world, group_id=group, enable_auto_commit=False) as consumer:
                consumer.assign([place])
                for offset in range(1, commits + 1):
                    await consumer.commit({place: offset})

        async def committed(world: World) -> int:
            async with Admin(bootstrap_servers=servers, world=world) as admin:
                return (await admin.group_offsets(group))[place].offset

        async def scenario() -> None:
            await cluster.start()
            await create_topic(cluster, "t")
            await simulation.node("commits").start(commit)
            await broker.stop()  # cleanly, so that nobody reads the log before the coordinator does
            await asyncio.sleep(1)
            disk.read_flips, disk.flips_in = misreads, f"{DATA}/{OFFSETS_TOPIC}"
            broker.start()
            await broker.ready.wait()
            asking = asyncio.wait_for(simulation.node("asks").start(committed), LIMIT_SECONDS)
            assert await asking == commits
            assert simulation.journal.counts["flipped reads"] == misreads

        simulation.run(scenario())


def test_a_refusal_that_nobody_waits_for_any_more_is_no_complaint() -> None:
    """Found with seed 348: a handler was abandoned because its connection was lost, and ended with a refusal all the same, as whoever
    waits with a time-out may; asyncio complained of an exception that was never retrieved."""
    with Simulation(8) as simulation:
        cluster = SimulatedCluster(simulation, 1)
        broker = cluster.brokers[0]

        async def refuses_when_abandoned(request: object, context: object) -> None:
            try:
                await asyncio.sleep(LIMIT_SECONDS)
            except asyncio.CancelledError:
                raise ApiError(ErrorCode.NOT_CONTROLLER) from None

        async def scenario() -> None:
            await cluster.start()
            assert broker.node is not None
            dispatcher = Dispatcher(broker.node, "controller")
            connection = broker.node.server.factory("CONTROLLER", dispatcher)()
            api = BY_NAME["CreateTopics"]
            context = RequestContext(broker.node, connection, api, api.versions.last, None)
            served = Served(api, refuses_when_abandoned, False)
            route = Route(served, context, reader(api.request, api.versions.last), b"", may_be_short=True)
            exchange = dispatcher._answer(route, api.request(), 1)
            assert isinstance(exchange, Exchange)
            assert exchange.later is not None
            await asyncio.sleep(1)
            exchange.later.cancel()
            await asyncio.sleep(1)
            gc.collect()  # only now asyncio would complain

        simulation.run(scenario())


def test_nodes_that_start_together_fail_in_no_way_that_was_not_foreseen() -> None:
    """Found with seed 5: a voter that asked another one which was still starting left a stack trace in its log, at almost every start."""
    for seed in (5, 12):
        with Simulation(seed) as simulation, Complaints(simulation.loop):
            cluster = SimulatedCluster(simulation, 3)
            simulation.run(cluster.start())


def test_a_leader_whose_address_is_not_known_is_asked_for_again() -> None:
    """Found with seed 172: a client knew of a new leader, then a broker that lagged behind left that one out of its answer; the error was
    not one to try again after, and the client gave up."""
    with Simulation(9) as simulation:
        cluster = SimulatedCluster(simulation, 1)

        async def main(world: World) -> None:
            client = cluster_of(world, cluster.bootstrap, "client")
            await client.start()
            await client.refresh({"t"})
            known = client.view.topics["t"]
            newer = replace(known.partitions[0], leader=2, leader_epoch=known.partitions[0].leader_epoch + 1)
            client.view.topics["t"] = replace(known, partitions=(newer,))
            with pytest.raises(ApiError) as caught:
                await client.leader("t", 0)
            assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
            assert caught.value.code.retriable
            await client.close()

        async def scenario() -> None:
            await cluster.start()
            await create_topic(cluster, "t")
            await simulation.node("client").start(main)

        simulation.run(scenario())


def test_a_file_that_changes_while_it_is_synced_is_synced_again() -> None:
    """Found by reading, after seed 353: the transaction index of a segment that was sealed during a sync was never synced, and with
    the power its last entries would have gone, which keep aborted records from showing."""
    disk = SimulatedDisk("d", "seed", Journal())
    log = Log.open(disk, "/data/t-0", TopicPartition("t", 0), bytes(16), LogConfig(), 0)
    log.flush(0)
    path = "/data/t-0/some.txnindex"
    file = disk.open(path, create=True)
    file.append(b"one")
    log._sync_later(path)
    job = log.prepare_flush()
    job.run()
    file.append(b"two")
    log._sync_later(path)
    log.complete_flush(job, 0)
    log.flush(0)
    assert dict(disk.durable_files(path))[path].durable == b"onetwo"
