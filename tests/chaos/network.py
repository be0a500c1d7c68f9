"""A small network of our own: each node in a network namespace, joined by a bridge, so that wires can be cut without a word.

The command starts itself again inside fresh namespaces (`unshare`): nothing of the machine's own network is touched, and
whatever is made here vanishes with the last process. Where the machine does not allow it (no root, no user namespaces) all nodes
share the loopback address, and there are no cuts.

A cut is a neighbour entry with an address that nobody has: packets leave and never arrive, in one direction, and neither side is
told. That is what a broken switch does, and what `refused` is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tests.compatibility.wire import free_port

CLIENTS = 254  # the end of the network where clients are
NOBODY = "02:00:00:00:00:99"
_INSIDE = "OTTLA_CHAOS_INSIDE"
_PORT, _CONTROLLER_PORT = 9092, 9093
_SILENT = 7
_KNOCK = f"""
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.5)
except TimeoutError:
    sys.exit({_SILENT})
except OSError:
    pass
"""


def enter(module: str) -> bool:
    """Start this program again in namespaces of its own, unless it is there. Returns whether cuts are possible; may not return."""
    if os.environ.get(_INSIDE):
        return os.environ[_INSIDE] == "yes"
    command = _unshare()
    os.environ[_INSIDE] = "yes" if command else "no"
    if not command:
        return False
    os.execvp(command[0], [*command, sys.executable, "-m", module, *sys.argv[1:]])
    raise AssertionError  # execvp does not return


def _unshare() -> list[str]:
    if not shutil.which("unshare") or not shutil.which("ip"):
        return []
    command = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    probe = "mount -t tmpfs none /run && ip netns add probe && ip link add w0 type veth peer name eth0 netns probe && ip link add wire type bridge"
    return command if subprocess.run([*command, "sh", "-c", probe], capture_output=True, check=False).returncode == 0 else []


class Network:
    """Where the nodes 1, 2… are, and what lies between them."""

    def __init__(self, nodes: int, cuttable: bool) -> None:
        self.nodes = range(1, nodes + 1)
        self.cuttable = cuttable
        self.cuts: set[tuple[int, int]] = set()
        self._addresses = {node: (free_port(), free_port()) for node in self.nodes} if not cuttable else {}
        if cuttable:
            self._lay()

    def _lay(self) -> None:
        _run("mount -t tmpfs none /run")
        _run("ip link set lo up")
        _run("ip link add wire type bridge")
        _run(f"ip addr add {_address(CLIENTS)}/24 dev wire")
        _run("ip link set wire up")
        for node in self.nodes:
            _run(f"ip netns add n{node}")
            _run(f"ip link add w{node} type veth peer name eth0 netns n{node}")
            _run(f"ip link set w{node} master wire up")
            _run(f"ip -n n{node} addr add {_address(node)}/24 dev eth0")
            _run(f"ip -n n{node} link set eth0 up")
            _run(f"ip -n n{node} link set lo up")

    def listener(self, node: int) -> str:
        return f"{_address(node)}:{_PORT}" if self.cuttable else f"127.0.0.1:{self._addresses[node][0]}"

    def controller(self, node: int) -> str:
        return f"{_address(node)}:{_CONTROLLER_PORT}" if self.cuttable else f"127.0.0.1:{self._addresses[node][1]}"

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """How to run something where a node is, or where clients are; the process is the node's own, not a wrapper's."""
        return [*(["ip", "netns", "exec", f"n{node}"] if self.cuttable and node != CLIENTS else []), *command]

    def cut(self, sender: int, receiver: int) -> None:
        """Nothing that `sender` sends arrives at `receiver` any more."""
        self.cuts.add((sender, receiver))
        _run(f"ip {_place(sender)} neigh replace {_address(receiver)} lladdr {NOBODY} dev {_device(sender)} nud permanent")

    def are_silent(self, cuts: Sequence[tuple[int, int]]) -> bool:
        """Whether nothing comes of knocking at a node through any of these cuts: neither an answer nor a refusal."""
        probes = [
            subprocess.Popen(self.command(sender, [sys.executable, "-S", "-c", _KNOCK, _address(receiver), str(_PORT)]))
            for sender, receiver in cuts
            if receiver != CLIENTS  # nobody listens there
        ]
        ends = [probe.wait() for probe in probes]
        return all(end == _SILENT for end in ends)

    def mend(self) -> None:
        for sender, receiver in sorted(self.cuts):
            _run(f"ip {_place(sender)} neigh del {_address(receiver)} dev {_device(sender)}")
        self.cuts.clear()


def _address(node: int) -> str:
    return f"10.99.0.{node}"


def _place(node: int) -> str:
    return "" if node == CLIENTS else f"-n n{node}"


def _device(node: int) -> str:
    return "wire" if node == CLIENTS else "eth0"


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
