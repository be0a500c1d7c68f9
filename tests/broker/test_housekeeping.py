"""What a node does from time to time goes on when a part of it fails."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.admin import Admin
from ottla.client.producer import Producer
from ottla.host import World
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.simulation import Simulation

RECORDS = 40
CHECK_S = 10
DELETED_AFTER_S = 60  # file.delete.delay.ms
SETTINGS = {"log.retention.check.interval.ms": str(CHECK_S * 1000), "replica.high.watermark.checkpoint.interval.ms": "1000"}
ROLLS = {"segment.ms": "60000"}  # on a full disk it cannot
EXPIRES = {"segment.bytes": str(1 << 20), "retention.ms": "60000"}


def test_a_full_disk_is_told_in_a_line_and_what_may_go_goes(caplog: pytest.LogCaptureFixture) -> None:
    """A log that cannot be rolled comes first; if nobody else's old segments went, the disk would stay full for ever."""
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, 1, settings=SETTINGS)
        [broker] = cluster.brokers

        async def write(world: World) -> None:
            host, port = cluster.bootstrap[0]
            async with Admin(bootstrap_servers=f"{host}:{port}", world=world) as admin:
                await admin.create_topic("rolls", 1, 1, configs=ROLLS)
                await admin.create_topic("expires", 1, 1, configs=EXPIRES)
            async with Producer(bootstrap_servers=f"{host}:{port}", world=world) as producer:
                await producer.send_and_wait("rolls", b"x")
                for _ in range(RECORDS):
                    await producer.send_and_wait("expires", bytes(100_000))

        async def scenario() -> None:
            await cluster.start()
            await simulation.node("writes").start(write)
            assert broker.node is not None
            log = broker.node.replicas.leader("expires", 0).log
            disk = broker.machine.disk
            disk.capacity = disk.usage("/")[0] - disk.usage("/")[1]
            await asyncio.sleep(60 + 2 * CHECK_S)
            assert log.log_start_offset > 0
            await asyncio.sleep(DELETED_AFTER_S + CHECK_S)
            assert disk.usage("/")[1] > 1 << 20  # and so there is room again, without anybody's help
            assert log.log_start_offset == log.log_end_offset == RECORDS

        with caplog.at_level("WARNING", "ottla"):
            simulation.run(scenario())
    told = [record for record in caplog.records if record.name == "ottla.housekeeping"]
    assert {record.getMessage().partition(" error=")[0] for record in told} >= {"housekeeping failed work=high_watermarks"}
    assert any("retention failed topic=rolls partition=0" in record.getMessage() for record in told)
    assert 0 < sum(record.getMessage().startswith("flush failed topic=expires") for record in caplog.records) < 3, (
        "it is tried every second"
    )
    assert not any(record.exc_info for record in told), "a full disk is no fault of the program"
