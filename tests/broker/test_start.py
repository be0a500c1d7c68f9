"""What clients see of a node that is just starting."""

from __future__ import annotations

import threading

from ottla.client.errors import NetworkError
from ottla.embedded.cluster import EmbeddedCluster
from ottla.protocol.messages.metadata import MetadataRequest
from tests.compatibility.wire import Closed, Wire, address_of, free_port


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
