"""Where the nodes of a small cluster listen."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ottla.embedded import properties
from ottla.embedded.properties import NEVER_LENT, free_ports, plan

LENT = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not LENT.exists(), reason="only Linux tells which ports it lends")
def test_a_chosen_port_is_none_that_an_outgoing_connection_may_get() -> None:
    """Else it may be gone when the node comes to it, or comes back to it after a restart."""
    first, last = map(int, LENT.read_text().split())
    assert not set(free_ports(50)) & set(range(first, last + 1))


def test_all_ports_of_a_cluster_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the controllers' would follow right behind the clients', or be the clients' own."""
    monkeypatch.setattr(properties.secrets, "randbelow", lambda _: 0)
    for port in (0, NEVER_LENT[0]):
        nodes = plan(3, "data", port=port)
        assert len({number for node in nodes for number in (node.port, node.controller_port)}) == 6


def test_a_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(properties.secrets, "randbelow", lambda _: NEVER_LENT.index(port))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert free_ports(1) != [port]


def test_an_address_of_another_machine_is_refused_at_once() -> None:
    with pytest.raises(OSError, match="assign"):
        free_ports(1, "192.0.2.1")


def test_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(properties, "NEVER_LENT", range(port, port + 1))
    assert free_ports(1) == [port]
    with pytest.raises(OSError, match="2 ports are not free"):
        free_ports(2)
