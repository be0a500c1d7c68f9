"""The nodes: real `ottla server` processes that can be killed, paused and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from ottla.embedded.formatting import format_node, new_id
from ottla.embedded.properties import properties_text
from tests.chaos.network import Network
from tests.compatibility import process
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until

STOP_LIMIT_S = 5.0

# Short, so that a minute has many failures in it; the proportions are those of the defaults.
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "log.segment.bytes": "1048576",
    "metadata.log.max.record.bytes.between.snapshots": "20000",
}


class Nodes:
    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.network = network
        self.ids = list(network.nodes)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.paused: set[int] = set()
        cluster_id = new_id()
        for node in self.ids:
            self._file(node).write_text(properties_text(self._properties(node)))
            format_node(str(self.data(node)), cluster_id, node)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.network.listener(node) for node in self.ids)

    def data(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def _file(self, node: int) -> Path:
        return self.folder / f"server-{node}.properties"

    def _output(self, node: int) -> Path:
        return self.folder / f"output-{node}.log"

    def _properties(self, node: int) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "broker.rack": f"rack-{node}",
            "listeners": f"PLAINTEXT://{self.network.listener(node)},CONTROLLER://{self.network.controller(node)}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": ",".join(f"{each}@{self.network.controller(each)}" for each in self.ids),
            "log.dirs": str(self.data(node)),
            **SETTINGS,
        }

    def start(self, node: int) -> None:
        if self.alive(node):
            return
        server = [sys.executable, "-P", "-m", "ottla", "server", str(self._file(node)), "--log-level", "info"]
        self.processes[node] = process.start(self.network.command(node, server), self._output(node), env=process.environment())

    def alive(self, node: int) -> bool:
        return node in self.processes and self.processes[node].poll() is None

    def kill(self, node: int) -> None:
        self.paused.discard(node)
        self.processes[node].kill()
        self.processes[node].wait()

    def was_killed(self, node: int) -> bool:
        """By the signal that cannot be caught, not by a failure of its own."""
        return self.processes[node].returncode == -signal.SIGKILL

    def stands_still(self, node: int) -> bool:
        """A signal is delivered when the process is next scheduled, which on a busy machine is not at once."""
        running = psutil.Process(self.processes[node].pid)
        try:
            wait_until(
                f"node {node} standing still",
                lambda: running.status() == psutil.STATUS_STOPPED,
                limit_s=STOP_LIMIT_S,
                alive=lambda: self.alive(node),
            )
        except AssertionError:
            return False
        return True

    def pause(self, node: int) -> None:
        if self.alive(node):
            self.processes[node].send_signal(signal.SIGSTOP)
            self.paused.add(node)

    def resume(self, node: int) -> None:
        if node in self.paused:
            self.paused.discard(node)
            self.processes[node].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for node in list(self.paused):
            self.resume(node)
        for running in self.processes.values():
            if running.poll() is None:
                running.terminate()
        for running in self.processes.values():
            process.stop(running)

    def log_text(self) -> str:
        return "".join(self._output(node).read_text(errors="replace") for node in self.ids if self._output(node).exists())

    def tracebacks(self) -> list[str]:
        return OttlaNode.tracebacks(self)  # type: ignore[arg-type]
