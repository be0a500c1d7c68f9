"""Nodes as child processes, one for each core they may use: `ottla up --brokers 3`.

The parent writes each node's properties file beside its data, starts `ottla server` on it, waits until all are ready, and passes
on the signal that ends it. Until all are ready, a child that ends is the end of the whole. From then on it is reported, because a
cluster that is silently smaller helps nobody, and the others serve on, because that is what they are for; when none is left, so
is the parent's work.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ottla.embedded.properties import NodePlan, properties_text

READY = "ready bootstrap="
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0


class ChildNode:
    """One `ottla server` process. Lines of its standard output arrive in `events` as (node, line), None at its end."""

    def __init__(
        self, plan: NodePlan, properties: Mapping[str, str], log_level: str, events: queue.Queue[tuple[int, str | None]]
    ) -> None:
        self.node_id = plan.node_id
        file = Path(plan.directory) / "node.properties"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(properties_text(properties))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ottla", "server", str(file), "--log-level", log_level, "--with-parent"],
            stdin=subprocess.PIPE,  # closed by the system when this process is gone, however it went: then the child stops, too
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C in a terminal goes to the whole group: the parent alone decides when the children stop.
            process_group=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        threading.Thread(target=self._read, args=(events,), daemon=True, name=f"ottla-child-{plan.node_id}").start()

    def _read(self, events: queue.Queue[tuple[int, str | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            events.put((self.node_id, line.strip()))
        events.put((self.node_id, None))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def run_children(
    plans: Sequence[NodePlan], properties: Sequence[Mapping[str, str]], log_level: str, announce: Callable[[str], None]
) -> int:
    """Run a cluster until SIGTERM or SIGINT; 0 when it was told to stop, 1 when a node could not start or none is left."""
    events: queue.Queue[tuple[int, str | None]] = queue.Queue()
    told = -1  # stands for the parent among the node ids

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: events.put((told, None)))
    children = [ChildNode(plan, own, log_level, events) for plan, own in zip(plans, properties, strict=True)]
    ready: dict[int, str] = {}
    gone: set[int] = set()
    try:
        while True:
            try:
                node, line = events.get(timeout=START_LIMIT_S if len(ready) < len(children) else None)
            except queue.Empty:
                sys.stderr.write(f"ottla: not all nodes were ready within {START_LIMIT_S:.0f} s\n")
                return 1
            if node == told:
                return 0
            if line is None:
                gone.add(node)
                if len(ready) < len(children):
                    sys.stderr.write(f"ottla: node {node} could not start, so the others are stopped too\n")
                    return 1
                left = len(children) - len(gone)
                sys.stderr.write(f"ottla: node {node} ended; {left} of {len(children)} nodes serve on\n")
                if not left:
                    return 1
                continue
            if line.startswith(READY):
                ready[node] = line.removeprefix(READY)
                if len(ready) == len(children):
                    announce(",".join(ready[number] for number in sorted(ready)))
    finally:
        stop_all(children)


def stop_all(children: Sequence[ChildNode]) -> None:
    """All at once: a controlled shutdown needs the others."""
    threads = [threading.Thread(target=child.stop) for child in children]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
