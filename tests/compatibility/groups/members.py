"""Members of a group as processes: Python clients by `member.py`, the Java client by Kafka's VerifiableConsumer."""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

from tests.compatibility.kafka import QUICK_TOOL, java
from tests.compatibility.process import _die_with_parent
from tests.compatibility.wire import wait_until

LIMIT_S = 60.0
PIPE_BYTES = 4096  # the smallest there is: a Java member whose output nobody reads soon stands still
_SCRIPT = Path(__file__).with_name("member.py")
_JAVA_STRATEGIES = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


class Member:
    """Started at once. `partitions` is what it says it owns, `read` the (partition, offset) it has read, in order."""

    def __init__(self, library: str, bootstrap: str, group: str, topic: str, strategy: str, **options: Any) -> None:
        self.library = library
        self.partitions: set[int] = set()
        self.read: list[tuple[int, int]] = []
        self.has_joined = False
        wanted = {"bootstrap": bootstrap, "group": group, "topic": topic, "strategy": strategy, "max_poll_interval_ms": 60_000}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            self._command(wanted | options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            preexec_fn=_die_with_parent,
        )
        self._attentive = threading.Event()
        self._attentive.set()
        if library == "java" and sys.platform == "linux":
            assert self.process.stdout is not None
            fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _command(self, options: dict[str, Any]) -> list[str]:
        if self.library != "java":
            return [sys.executable, str(_SCRIPT), self.library, json.dumps(options)]
        file = tempfile.NamedTemporaryFile("w", suffix=".properties", delete=False)  # noqa: SIM115
        with file:
            file.write(
                f"metadata.max.age.ms=1000\nmax.poll.interval.ms={options['max_poll_interval_ms']}\nauto.commit.interval.ms=200\n"
            )
            if options["strategy"] != "consumer":
                file.write("heartbeat.interval.ms=500\n")
        arguments = ["--bootstrap-server", options["bootstrap"], "--group-id", options["group"], "--topic", options["topic"]]
        arguments += ["--verbose", "--enable-autocommit", "--reset-policy", "earliest", "--command-config", file.name]
        if options["strategy"] == "consumer":
            arguments += ["--group-protocol", "consumer"]
        else:
            arguments += ["--assignment-strategy", _JAVA_STRATEGIES[options["strategy"]], "--session-timeout", "6000"]
        if options.get("instance"):
            arguments += ["--group-instance-id", options["instance"]]
        return java("VerifiableConsumer", arguments, QUICK_TOOL)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._attentive.wait()
            with contextlib.suppress(json.JSONDecodeError):
                self._note(json.loads(line))

    def _note(self, said: dict[str, Any]) -> None:
        if "has" in said:
            self.partitions, self.has_joined = set(said["has"]), True
        elif "read" in said:
            self.read += [(partition, offset) for partition, offset in said["read"]]
        elif said.get("name") == "partitions_assigned":
            self.has_joined = True
            self.partitions = self.partitions | {row["partition"] for row in said["partitions"]}
        elif said.get("name") == "partitions_revoked":
            self.partitions = self.partitions - {row["partition"] for row in said["partitions"]}
        elif said.get("name") == "record_data":
            self.read.append((said["partition"], said["offset"]))

    # Orders ------------------------------------------------------------------------------------------------------------------

    def order(self, word: str) -> None:
        """`pause` (no more polls), `resume` or `close`.

        Kafka's VerifiableConsumer takes no orders. But it prints what it reads before it polls again, and blocks when nobody reads
        that; its heartbeats go on. So there must be enough to read for it to pause.
        """
        if self.library == "java":
            {"pause": self._attentive.clear, "resume": self._attentive.set, "close": self.process.terminate}[word]()
            return
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.partitions = set()

    def close(self) -> None:
        """As a user would: it leaves the group."""
        self.order("close")
        self.process.wait(LIMIT_S)
        self.partitions = set()

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]


class Members:
    """A group of them, all gone in the end."""

    def __init__(self, library: str, strategy: str, bootstrap: str, group: str, topic: str) -> None:
        self._how = (library, bootstrap, group, topic, strategy)
        self.alive: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.alive:
            member.kill()

    def add(self, strategy: str | None = None, **options: Any) -> Member:
        *how, usual = self._how
        member = Member(*how, strategy or usual, **options)
        self.alive.append(member)
        return member

    def remove(self, member: Member) -> Member:
        self.alive.remove(member)
        return member

    def settle(self, shares: list[int], among: list[Member] | None = None) -> None:
        """Wait until every partition has one owner and the members' shares are these."""
        members = self.alive if among is None else among
        everything = list(range(sum(shares)))

        def settled() -> bool:
            owned = sorted(partition for member in members for partition in member.partitions)
            return owned == everything and sorted(len(member.partitions) for member in members) == shares

        try:
            alive = lambda: all(member.process.poll() is None for member in members)  # noqa: E731
            wait_until(f"shares of {shares}", settled, limit_s=LIMIT_S, alive=alive)
        except AssertionError as error:
            seen = [(member.process.poll(), sorted(member.partitions), member.errors()) for member in members]
            raise AssertionError(f"{error}: {seen}") from None

    def read(self) -> set[tuple[int, int]]:
        return {row for member in self.alive for row in member.read}
