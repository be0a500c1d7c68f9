"""Writes down what one client does, while it does it: every call before it is made, and its outcome when it is known.

One line of JSON an event. With a path each line goes to the operating system at once, so a client that is killed with signal 9
leaves everything it did behind it; what it had begun and not finished is *unknown*, which is the truth. The clock is the
machine's monotonic one, so the files of many processes can be laid side by side.

    recorder = Recorder("producer-1", path)
    send = recorder.sending("topic", 0, "value")
    recorder.sent(send, offset)                     # or failed(send), or nothing: unknown

    transaction = recorder.beginning()
    send = recorder.sending("topic", 0, "value", transaction)
    recorder.ending(transaction, commit=True)
    recorder.ended(transaction, committed=True)     # or nothing: unknown

    recorder.polled([("topic", 0, 17, "value")])
    recorder.reassigned()                           # a rebalance or a seek: the next poll may start anywhere
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Recorder:
    """`process` names the client; a client that starts again is another process. `read_committed` is its isolation level."""

    def __init__(
        self,
        process: str,
        path: Path | str | None = None,
        *,
        read_committed: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.process = process
        self.read_committed = read_committed
        self.events: list[Event] = []
        self._clock = clock
        self._lock = threading.Lock()  # callbacks of some clients come from another thread
        self._serial = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path is not None else None

    def sending(self, topic: str, partition: int | None, value: Any, transaction: int | None = None) -> int:
        """About to send. The partition may be left open; then the acknowledgement tells it."""
        return self._begin("sending", topic=topic, partition=partition, value=value, transaction=transaction)

    def sent(self, send: int, offset: int, partition: int | None = None) -> None:
        self._note("sent", id=send, offset=offset, partition=partition)

    def failed(self, send: int) -> None:
        """It is certain that the record is not in the log and never will be. If in doubt, say nothing."""
        self._note("failed", id=send)

    def beginning(self) -> int:
        return self._begin("beginning")

    def ending(self, transaction: int, commit: bool) -> None:
        self._note("ending", id=transaction, commit=commit)

    def ended(self, transaction: int, committed: bool) -> None:
        self._note("ended", id=transaction, committed=committed)

    def polled(self, records: Iterable[tuple[str, int, int, Any]]) -> None:
        """(topic, partition, offset, value) of each record of one poll, in the order in which the client gave them."""
        self._note("polled", records=[list(record) for record in records], read_committed=self.read_committed)

    def reassigned(self) -> None:
        self._note("reassigned")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _begin(self, kind: str, **fields: Any) -> int:
        with self._lock:
            self._serial += 1
            serial = self._serial
        self._note(kind, id=serial, **fields)
        return serial

    def _note(self, kind: str, **fields: Any) -> None:
        event = {"time": self._clock(), "process": self.process, "kind": kind, **fields}
        with self._lock:
            self.events.append(event)
            if self._file is not None:
                os.write(self._file, json.dumps(event).encode() + b"\n")
