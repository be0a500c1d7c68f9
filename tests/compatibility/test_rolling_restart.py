"""Each node of three stopped and started again in turn, under load: no error reaches a client, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.clients import PARTITIONS, TOPIC, LibrdkafkaWriter, OwnWriter, Reader, Writer
from tests.compatibility.cluster import OttlaCluster
from tests.compatibility.wire import wait_until
from tests.histories import History, check

LIMIT_S = 90.0
MORE = 110  # acknowledgements to each writer between one step and the next, so that a quick machine restarts under load too


def in_sync(admin: AdminClient) -> bool:
    rows = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()
    return len(rows) == PARTITIONS and all(len(row.isrs) == 3 for row in rows)


def acknowledgements(writer: Writer) -> int:
    return sum(event["kind"] == "sent" for event in writer.recorder.events)


def wait_for_more(writers: list[Writer]) -> None:
    """Every writer is acknowledged by every partition again, and often."""
    before = [(list(writer.last), acknowledgements(writer)) for writer in writers]

    def came() -> bool:
        return all(
            all(now > then for now, then in zip(writer.last, thens)) and acknowledgements(writer) >= count + MORE
            for writer, (thens, count) in zip(writers, before)
        )

    wait_until("every partition being written to", came, limit_s=LIMIT_S)


@pytest.mark.slow
def test_a_restart_of_each_node_in_turn_shows_clients_no_error(tmp_path: Path) -> None:
    with OttlaCluster(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(30)
        writers: list[Writer] = [LibrdkafkaWriter("librdkafka", cluster.bootstrap), OwnWriter("own", cluster.bootstrap)]
        reader = Reader("reader", cluster.bootstrap)
        for client in (*writers, reader):
            client.start()
        wait_for_more(writers)
        for node in cluster.plans:
            cluster.processes[node].terminate()
            assert cluster.processes[node].wait(LIMIT_S) == 0
            wait_for_more(writers)
            cluster.start_node(node)
            cluster.wait_ready()
            wait_until("all replicas in sync", lambda: in_sync(admin), limit_s=LIMIT_S)
        wait_for_more(writers)
        for writer in writers:
            writer.stop()
        acknowledged = sum(map(acknowledgements, writers))
        wait_until("everything being read", lambda: sum(reader.positions) >= acknowledged, limit_s=LIMIT_S)
        reader.stop()
        report = check(History.of(*(client.recorder for client in (*writers, reader))))
        assert report.clean, str(report)
        assert report.acknowledged == report.sends > 1000
        assert [error for client in (*writers, reader) for error in client.errors] == []
        assert cluster.tracebacks() == []
