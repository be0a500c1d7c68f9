"""What clients see of a node that is just starting."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ottla.broker.main import serve
from ottla.client.errors import NetworkError
from ottla.embedded.cluster import EmbeddedCluster
from ottla.embedded.formatting import format_node, new_id
from ottla.embedded.properties import plan, properties
from ottla.metadata.features import BOOTSTRAP_LEVELS
from ottla.metadata.records import LATEST_LEVEL, encode
from ottla.protocol.messages.controller import BrokerRegistrationRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.records.builder import build_batch
from ottla.records.record import Record
from tests.compatibility.wire import Closed, Wire, address_of, free_port
from tests.metadata.driver import Driver

NOW_MS = 1_700_000_000_000


def brokers_told(address: tuple[str, int], until: threading.Event, told: list[int]) -> None:
    """Ask for metadata as fast as answers come, over a new connection each time, as a client that lost its broker does."""
    while not until.is_set():
        try:
            with Wire(address, timeout_s=5) as wire:
                told.append(len(wire.ask(MetadataRequest(topics=[]), 8).brokers))
        except (OSError, Closed, NetworkError):
            continue


def test_metadata_never_tells_of_no_broker_at_all() -> None:
    """librdkafka takes an empty list at its word: it forgets every broker, and never asks anybody again."""
    with EmbeddedCluster(1, port=free_port()) as cluster:
        node = cluster.node(1)
        for life in range(5):
            node.kill() if life % 2 else node.stop()
            started, told = threading.Event(), []
            asker = threading.Thread(target=brokers_told, args=(address_of(cluster.bootstrap), started, told))
            asker.start()
            try:
                node.start()
            finally:
                started.set()
                asker.join()
            assert 0 not in told


async def test_a_cluster_that_has_more_than_we_do_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its other nodes may need what we lack, so it is not ours to turn off; and no waiting makes us have it."""
    theirs = {**BOOTSTRAP_LEVELS, "share.version": 1}
    cluster = Driver(bootstrap_features=theirs)
    supported = [
        BrokerRegistrationRequest.Feature(name=name, min_supported_version=0, max_supported_version=level)
        for name, level in theirs.items()
    ]
    assert cluster.register(2, features=supported).error_code == 0
    [planned] = plan(1, str(tmp_path))
    format_node(planned.directory, new_id(), planned.node_id)
    log = tmp_path / "node-1" / "__cluster_metadata-0" / "00000000000000000000.log"
    log.parent.mkdir()
    rows = [Record(index, NOW_MS, None, encode(record, LATEST_LEVEL)) for index, record in enumerate(cluster.log)]
    log.write_bytes(build_batch(rows, leader_epoch=1))
    assert await asyncio.wait_for(serve(properties(planned, [planned], {}), lambda node: None), 30) == 1
    [sentence] = capsys.readouterr().err.splitlines()
    assert sentence.startswith("ottla: ")
    assert "share.version=1" in sentence
