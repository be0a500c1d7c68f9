"""Apache Kafka 4.3 as a peer: nodes that are broker and controller at once, and Kafka's own tools.

    with KafkaPeer(folder, nodes=3) as kafka:
        kafka.bootstrap                                  # "127.0.0.1:…,…"
        run_tool("TopicCommand", "--bootstrap-server", kafka.bootstrap, "--list").stdout

Every node listens on ports that were free when it was made, with a small heap and the quick compiler only, because a test
wants it up soon and not fast; `bench` gives its own Java options.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Self

from ottla.embedded.formatting import new_id
from tests.compatibility import process
from tests.compatibility.jars import NoKafka, class_path
from tests.compatibility.wire import address_of, free_port, serves, wait_until

START_LIMIT_S = 120.0
TOOL_LIMIT_S = 120.0
QUICK_START = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
QUICK_TOOL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
TOOLS = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsoleConsumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "StorageTool": "kafka.tools.StorageTool",
    "Kafka": "kafka.Kafka",
}  # the others are in org.apache.kafka.tools
_LOG_CONFIG = """\
status = off
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = [%d] %p %m (%c)%n
"""


@cache
def _log_config(level: str) -> str:
    """A file for log4j, which would otherwise complain or chatter into a tool's output."""
    handle, path = tempfile.mkstemp(prefix="ottla-log4j-", suffix=".properties")
    with os.fdopen(handle, "w") as file:
        file.write(_LOG_CONFIG.format(level=level))
    atexit.register(Path(path).unlink, missing_ok=True)
    return path


def java(main: str, arguments: Sequence[str], options: Sequence[str], level: str = "ERROR") -> list[str]:
    binary = shutil.which("java")
    if binary is None:
        raise NoKafka("Java 17 or newer is needed to run Apache Kafka")
    log = f"-Dlog4j2.configurationFile={_log_config(level)}"
    return [binary, *options, log, "-cp", class_path(), TOOLS.get(main, f"org.apache.kafka.tools.{main}"), *arguments]


def run_tool(
    main: str, *arguments: str, stdin: str = "", options: Sequence[str] = QUICK_TOOL, limit_s: float = TOOL_LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools to its end. What it printed and its exit code are the caller's to judge."""
    command = java(main, arguments, options)
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False)


class KafkaPeer(process.Running):
    """A cluster of Apache Kafka nodes in one folder. Nodes are named by their ids, which begin at `first_id`."""

    name = "kafka"

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        first_id: int = 0,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = QUICK_START,
        log_level: str = "WARN",
    ) -> None:
        self.folder = folder
        self.first_id = first_id
        self.options = options
        self.log_level = log_level
        self.settings = dict(settings or {})
        self.ports = [free_port() for _ in range(nodes)]
        self.controller_ports = [free_port() for _ in range(nodes)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.cluster_id = new_id()
        for node in self.nodes:
            self._write_properties(node)
            self._format(node)

    @property
    def nodes(self) -> range:
        return range(self.first_id, self.first_id + len(self.ports))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def address(self) -> tuple[str, int]:
        return address_of(self.bootstrap)

    def log_directory(self, node: int | None = None) -> Path:
        return self.folder / f"node-{self.first_id if node is None else node}" / "data"

    def _write_properties(self, node: int) -> None:
        copies = str(min(3, len(self.ports)))
        voters = ",".join(f"{node}@127.0.0.1:{self.controller_ports[node - self.first_id]}" for node in self.nodes)
        listeners = f"PLAINTEXT://127.0.0.1:{self.ports[node - self.first_id]}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self.controller_ports[node - self.first_id]}",
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_directory(node)),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        } | self.settings
        folder = self.folder / f"node-{node}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def _format(self, node: int) -> None:
        properties = str(self.folder / f"node-{node}" / "server.properties")
        done = run_tool("StorageTool", "format", "-t", self.cluster_id, "-c", properties)
        if done.returncode:
            raise NoKafka(f"Apache Kafka could not format its storage: {done.stdout}{done.stderr}")

    def start_node(self, node: int) -> None:
        folder = self.folder / f"node-{node}"
        command = java("Kafka", [str(folder / "server.properties")], self.options, self.log_level)
        self.processes[node] = process.start(command, folder / "output.log", cwd=folder)

    def start(self) -> Self:
        for node in self.nodes:
            self.start_node(node)
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        for node, port in zip(self.nodes, self.ports, strict=True):
            wait_until(
                f"Kafka node {node} serving",
                lambda port=port: serves(("127.0.0.1", port), len(self.ports)),
                limit_s=START_LIMIT_S,
                alive=lambda node=node: self.processes[node].poll() is None,
            )

    def kill_node(self, node: int) -> None:
        self.processes[node].kill()
        self.processes[node].wait()

    def stop(self) -> None:
        for running in self.processes.values():
            if running.poll() is None:
                running.terminate()
        for running in self.processes.values():
            process.stop(running)
