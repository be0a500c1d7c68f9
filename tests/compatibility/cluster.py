"""Several ottla nodes, each a process of its own that can be killed, stopped and started again on its ports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ottla.embedded.formatting import format_node, new_id
from ottla.embedded.properties import plan, properties, properties_text
from tests.compatibility import process
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import address_of, serves, wait_until

START_LIMIT_S = 60.0


class OttlaCluster:
    name = "ottla"

    def __init__(
        self, folder: Path, nodes: int = 3, settings: Mapping[str, str] | None = None, *, log_level: str = "info"
    ) -> None:
        self.folder = folder
        self.log_level = log_level
        self.plans = {each.node_id: each for each in plan(nodes, str(folder))}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        cluster_id = new_id()
        for node_id, each in self.plans.items():
            values = properties(each, list(self.plans.values()), settings or {})
            self._file(node_id).parent.mkdir(parents=True, exist_ok=True)
            self._file(node_id).write_text(properties_text(values))
            format_node(each.directory, cluster_id, node_id)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{each.port}" for each in self.plans.values())

    @property
    def address(self) -> tuple[str, int]:
        return address_of(self.bootstrap)

    def _file(self, node_id: int) -> Path:
        return self.folder / f"server-{node_id}.properties"

    def output(self, node_id: int) -> Path:
        return self.folder / f"output-{node_id}.log"

    def start_node(self, node_id: int) -> None:
        command = [sys.executable, "-m", "ottla", "server", str(self._file(node_id)), "--log-level", self.log_level]
        self.processes[node_id] = process.start(command, self.output(node_id), env=process.environment(), cwd=self.folder)

    def wait_ready(self) -> None:
        for node_id, each in self.plans.items():
            wait_until(
                f"node {node_id} serving",
                lambda each=each: serves(("127.0.0.1", each.port), len(self.plans)),
                limit_s=START_LIMIT_S,
                alive=lambda node_id=node_id: self.processes[node_id].poll() is None,
            )

    def kill_node(self, node_id: int) -> None:
        self.processes[node_id].kill()
        self.processes[node_id].wait()

    def log_text(self) -> str:
        return "".join(self.output(node_id).read_text(errors="replace") for node_id in self.plans)

    def tracebacks(self) -> list[str]:
        return OttlaNode.tracebacks(self)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        for node_id in self.plans:
            self.start_node(node_id)
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for running in self.processes.values():
            if running.poll() is None:
                running.terminate()
        for running in self.processes.values():
            process.stop(running)
