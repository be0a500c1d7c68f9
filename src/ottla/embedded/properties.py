"""The properties of the nodes of a small cluster on one machine: what a person would write into `server-0.properties` and so on.

Every node is broker and controller at once. Node K keeps its data in DIR/node-K. Defaults that suit thousands of clients are
lowered where a cluster of one to three nodes would otherwise refuse to work (copies of the internal topics) or dawdle.
"""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

HOST = "127.0.0.1"
# Outgoing connections and listeners on port 0 get theirs from 32,768 upward on Linux, from 49,152 on macOS and Windows.
NEVER_LENT = range(10_000, 32_768)


class NodePlan(NamedTuple):
    """Where a node listens and writes. Port 0 is any free one; a controller's is fixed, because the others must know it."""

    node_id: int
    host: str
    port: int
    controller_port: int
    directory: str


def free_ports(count: int, host: str = HOST, *, but_not: Collection[int] = ()) -> list[int]:
    """Ports that nobody listens on now. They are let go before use, and may be left and taken again when a node restarts:
    so they are none that systems lend to whoever asks for any port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    start = secrets.randbelow(len(NEVER_LENT))
    found: list[int] = []
    for port in chain(NEVER_LENT[start:], NEVER_LENT[:start]):
        with socket.socket(family) as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                if port not in but_not:
                    found.append(port)
        if len(found) == count:
            return found
    raise OSError(errno.EADDRINUSE, f"{count} ports are not free on {host}")


def plan(brokers: int, directory: str, *, host: str = HOST, port: int = 0) -> list[NodePlan]:
    """A cluster of `brokers` nodes in `directory`. With a port given, nodes listen on it and on those that follow."""
    clients = [port + number for number in range(brokers)] if port else free_ports(brokers, host)
    controllers = free_ports(brokers, but_not=clients)
    return [
        NodePlan(node_id, host, client, controller, f"{directory}/node-{node_id}")
        for node_id, client, controller in zip(range(1, brokers + 1), clients, controllers, strict=True)
    ]


def properties(node: NodePlan, cluster: Sequence[NodePlan], settings: Mapping[str, str]) -> dict[str, str]:
    """Kafka's own names. `settings` are the user's and win."""
    copies = str(min(3, len(cluster)))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "listeners": f"PLAINTEXT://{_bracketed(node.host)}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": ",".join(f"{each.node_id}@{HOST}:{each.controller_port}" for each in cluster),
        "log.dirs": node.directory,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": str(min(2, len(cluster))),
        "group.initial.rebalance.delay.ms": "0",
        **settings,
    }


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def properties_text(values: Mapping[str, str]) -> str:
    """A properties file that any Java program reads the same way."""
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in values.items())
