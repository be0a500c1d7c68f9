"""Java and ottla brokers in one cluster, under a controller of either kind (design.md §1).

The controller is a process of its own. Apache Kafka's is formatted `--standalone` with the voters in the log (KIP-853), so brokers
know only its address; ottla's is a static voter. Java brokers have ids from 1, ottla's from 11. Each keeps its port over restarts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

from ottla.embedded.formatting import new_id
from tests.compatibility import process
from tests.compatibility.jars import NoKafka
from tests.compatibility.kafka import QUICK_START, java, run_tool
from tests.compatibility.wire import free_port, serves, wait_until

START_LIMIT_S = 120.0
CONTROLLER_ID = 100
FIRST_OTTLA_ID = 11
_SOURCE = Path(__file__).resolve().parents[2] / "src"


class MixedCluster(process.Running):
    def __init__(self, folder: Path, *, java_brokers: int, ottla_brokers: int, ottla_controls: bool = False) -> None:
        self.folder = folder
        self.ottla_controls = ottla_controls
        self.cluster_id = new_id()
        self.java_ids = list(range(1, java_brokers + 1))
        self.ottla_ids = list(range(FIRST_OTTLA_ID, FIRST_OTTLA_ID + ottla_brokers))
        self.ports = {node_id: free_port() for node_id in [*self.broker_ids, CONTROLLER_ID]}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for node_id in self.ports:
            self._write_properties(node_id)
            self._format(node_id)

    @property
    def broker_ids(self) -> list[int]:
        return [*self.java_ids, *self.ottla_ids]

    def is_ottla(self, node_id: int) -> bool:
        return node_id in self.ottla_ids or (node_id == CONTROLLER_ID and self.ottla_controls)

    @property
    def controller(self) -> str:
        return f"127.0.0.1:{self.ports[CONTROLLER_ID]}"

    def bootstrap_of(self, node_id: int) -> str:
        return f"127.0.0.1:{self.ports[node_id]}"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[node_id]}" for node_id in self.broker_ids)

    def data(self, node_id: int) -> Path:
        return self.folder / f"node-{node_id}" / "data"

    def partition_folder(self, node_id: int, topic: str, partition: int) -> Path:
        return self.data(node_id) / f"{topic}-{partition}"

    def output(self, node_id: int) -> str:
        path = self.folder / f"node-{node_id}" / "output.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _properties_path(self, node_id: int) -> Path:
        return self.folder / f"node-{node_id}" / "server.properties"

    def _write_properties(self, node_id: int) -> None:
        port = self.ports[node_id]
        name = "CONTROLLER" if node_id == CONTROLLER_ID else "PLAINTEXT"
        properties = {
            "process.roles": "controller" if node_id == CONTROLLER_ID else "broker",
            "node.id": str(node_id),
            **self._quorum(),
            "listeners": f"{name}://127.0.0.1:{port}",
            "advertised.listeners": f"{name}://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data(node_id)),
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "replica.lag.time.max.ms": "5000",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.num.partitions": "3",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        path = self._properties_path(node_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def _quorum(self) -> dict[str, str]:
        if self.ottla_controls:
            return {"controller.quorum.voters": f"{CONTROLLER_ID}@{self.controller}"}
        return {"controller.quorum.bootstrap.servers": self.controller}

    def _format(self, node_id: int) -> None:
        path = str(self._properties_path(node_id))
        if self.is_ottla(node_id):
            command = [sys.executable, "-P", "-m", "ottla", "storage", "format", path, "--cluster-id", self.cluster_id]
            subprocess.run(command, env=self._environment(), check=True, capture_output=True)
            return
        # Levels that ottla does not serve are left out: it could not join a cluster that has them.
        levels = ["--feature", "share.version=0", "--feature", "streams.version=0"]
        own = ["--standalone", *levels] if node_id == CONTROLLER_ID else levels
        done = run_tool("StorageTool", "format", "-t", self.cluster_id, "-c", path, *own)
        if done.returncode:
            raise NoKafka(f"Apache Kafka could not format its storage: {done.stdout}{done.stderr}")

    def _environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(_SOURCE)}

    def start_node(self, node_id: int) -> None:
        folder = self.folder / f"node-{node_id}"
        path = str(self._properties_path(node_id))
        if self.is_ottla(node_id):
            command = [sys.executable, "-P", "-m", "ottla", "server", path]
        else:
            command = java("Kafka", [path], QUICK_START, "WARN")
        self.processes[node_id] = process.start(command, folder / "output.log", cwd=folder, env=self._environment())

    def wait_serving(self, node_id: int, brokers: int = 1) -> None:
        wait_until(
            f"node {node_id} serving",
            lambda: serves(("127.0.0.1", self.ports[node_id]), brokers),
            limit_s=START_LIMIT_S,
            alive=lambda: self.processes[node_id].poll() is None,
        )

    def kill(self, node_id: int) -> None:
        """kill -9."""
        self.processes[node_id].kill()
        self.processes[node_id].wait()

    def replace_disk(self, node_id: int) -> None:
        """While it is down: an empty folder with an id of its own."""
        shutil.rmtree(self.data(node_id))
        self._format(node_id)

    def start(self) -> Self:
        for node_id in [CONTROLLER_ID, *self.broker_ids]:
            self.start_node(node_id)
        for node_id in self.broker_ids:
            self.wait_serving(node_id, len(self.broker_ids))
        return self

    def stop(self) -> None:
        for node_id in [*self.broker_ids, CONTROLLER_ID]:
            if node_id in self.processes:
                process.stop(self.processes[node_id])
