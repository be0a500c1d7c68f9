"""Plays raw requests against a system and writes down what it answered, so that two systems can be held side by side.

Whatever differs from run to run by nature gets a name in the order of its appearance: member ids become `<member 1>`, the
group, the topic and its id `<group>`, `<topic>`, `<topic id>`. Fields with their default value are left out; lists without an
order of their own are sorted.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.coordinator import FindCoordinatorRequest
from ottla.protocol.messages.group_offsets import OffsetFetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.protocol.schema import Message, Struct
from tests.compatibility.wire import Wire, wait_until

_serial = count()
_ERRORS = {"error_code"}
_VOLATILE = {"throttle_time_ms", "client_host", "authorized_operations", "heartbeat_interval_ms"}


class Stage:
    def __init__(self, address: tuple[str, int], partitions: int = 2) -> None:
        self.address = address
        self.script: list[str] = []
        number = next(_serial)
        self.group, self.topic = f"play-group-{number:03}", f"play-topic-{number:03}"  # always as long: lengths show in bytes
        self._names: dict[Any, str] = {self.group: "<group>", self.topic: "<topic>"}
        self._members = 0
        self._wires: dict[str, Wire] = {}
        self.topic_id = self._create(self.topic, partitions)
        self._names[self.topic_id] = "<topic id>"
        for name in (self.group, "no-such-group", "g" * 300):
            self.wait_for_coordinator(name)

    def wait_for_coordinator(self, group: str) -> None:
        wait_until("the group's coordinator", lambda: self._has_coordinator(group))

    def _has_coordinator(self, group: str) -> bool:
        found = self._wire("setup").ask(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators[0]
        asked = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)])
        return found.error_code == ErrorCode.NONE and self._wire("setup").ask(asked, 8).groups[0].error_code == ErrorCode.NONE

    def _create(self, name: str, partitions: int) -> bytes:
        wire = self._wire("setup")
        wanted = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        made = wire.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 7)
        assert made.topics[0].error_code == ErrorCode.NONE, made
        wait_until("the topic's leaders", lambda: self._has_leaders(name, partitions))
        return bytes(made.topics[0].topic_id)

    def _has_leaders(self, name: str, partitions: int) -> bool:
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
        found = self._wire("setup").ask(asked, 9).topics[0].partitions
        return len(found) == partitions and all(row.error_code == ErrorCode.NONE for row in found)

    def give_name(self, value: str, name: str) -> None:
        """How a text of this play is to be written down."""
        self._names = {value: name} | self._names

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()

    def _wire(self, who: str) -> Wire:
        if who not in self._wires:
            self._wires[who] = Wire(self.address, client_id=who)
        return self._wires[who]

    # Acting ----------------------------------------------------------------------------------------------------------------

    def ask(self, who: str, request: Message, version: int) -> Any:
        """One line: the request, and the answer."""
        answer = self._wire(who).ask(request, version)
        self._write(f"{who} {type(request).__name__} v{version}", answer)
        return answer

    def quietly(self, who: str, request: Message, version: int) -> Any:
        """Not written down: how often it happens is a matter of time."""
        return self._wire(who).ask(request, version)

    def tell(self, who: str, request: Message, version: int) -> None:
        """The answer comes later, with `hear`."""
        self._wire(who).tell(request, version)
        self.script.append(f"{who} {type(request).__name__} v{version} …")

    def hear(self, who: str, request: type[Message], version: int) -> Any:
        answer = self._wire(who).read_response(request.TYPE_KEY, version)
        self._write(f"{who} {request.__name__} v{version} …", answer)
        return answer

    def note(self, text: str) -> None:
        self.script.append(f"# {text}")

    # Writing down ------------------------------------------------------------------------------------------------------------

    def _write(self, head: str, answer: Message) -> None:
        self._meet(answer)
        self.script.append(f"{head} → {self._show(answer)}")

    def _meet(self, value: Any) -> None:
        """Give names to the member ids in an answer, in the order of appearance."""
        if isinstance(value, Struct):
            for name in value.__fields__:
                inner = getattr(value, name)
                if name == "member_id" and inner and inner not in self._names and len(inner) > 20:
                    self._members += 1
                    self._names[inner] = f"<member {self._members}>"
                self._meet(inner)
        elif isinstance(value, list):
            for inner in value:
                self._meet(inner)

    def _show(self, value: Any, name: str = "") -> str:
        if isinstance(value, Struct):
            shown = []
            for field, declared in value.__fields__.items():
                inner = getattr(value, field)
                default = [] if declared.default is list else declared.default
                if field not in _VOLATILE and inner != default:
                    shown.append(f"{field}={self._show(inner, field)}")
            return f"({', '.join(shown)})"
        if isinstance(value, list):
            items = [self._show(inner) for inner in value]
            return f"[{', '.join(sorted(items))}]"
        if name in _ERRORS:
            return ErrorCode(value).name
        if isinstance(value, str):
            for known, placeholder in self._names.items():
                if isinstance(known, str):
                    value = value.replace(known, placeholder)
            return value
        if isinstance(value, bytes):
            return self._names.get(value, repr(value).replace(self.topic, "<topic>"))
        return str(value)
