"""A replica of the metadata log over real sockets, with its log in memory: the machine in the company of Apache Kafka.

The smallest shell that obeys `raft/events.py`. It answers ApiVersions, because Kafka's clients ask that first, and nothing else but
the quorum's own requests.
"""

from __future__ import annotations

import asyncio
import struct
import time
from random import Random
from typing import Any

from ottla.metadata import records as frames
from ottla.metadata.loader import Loader
from ottla.metadata.records import MetadataRecord
from ottla.protocol import codec
from ottla.protocol.apis import APIS
from ottla.protocol.framing import (
    read_request_head,
    request_frame,
    response_body_start,
    response_frame,
    skip_tags,
)
from ottla.protocol.messages.versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.raft.core import Identity, Timing
from ottla.raft.events import (
    Answered,
    Appended,
    Effects,
    Failed,
    Flushed,
    ReadLog,
    Received,
    Send,
    SnapshotInstalled,
    Tick,
)
from ottla.raft.log import LogView
from ottla.raft.machine import RaftMachine
from ottla.raft.quorum_state import QuorumState
from ottla.raft.voters import Address, VoterSet
from ottla.records.batch import headers
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, control_batch
from ottla.records.record import Record, decode_batches

SERVED = (1, 18, 52, 53, 54, 55, 59)  # Fetch, ApiVersions, Vote, BeginQuorumEpoch, EndQuorumEpoch, DescribeQuorum, FetchSnapshot


class LiveReplica:
    def __init__(self, node_id: int, cluster_id: str, voters: VoterSet, port: int, timing: Timing, **options: Any) -> None:
        me = Identity(node_id, cluster_id, bytes([node_id + 1]) * 16, address=Address("127.0.0.1", port))
        self.machine = RaftMachine(me, voters, LogView(), None, timing, Random(node_id).randrange, **options)
        self.port = port
        self.log = bytearray()
        self.start_offset = 0
        self.snapshot = bytearray()
        self.loader = Loader()
        self.persisted: list[QuorumState] = []
        self.errors: list[BaseException] = []
        self._connections: dict[int, Any] = {}
        self._turns: dict[int, asyncio.Lock] = {}
        self._tickets: dict[int, asyncio.Future[Any]] = {}
        self._serial = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._server: Any = None

    async def __aenter__(self) -> LiveReplica:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self._carry_out(self.machine.start(_now_ms()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for _, writer in self._connections.values():
            writer.close()
        assert not self.errors, self.errors

    # Effects --------------------------------------------------------------------------------------------------------------

    def step(self, event: Any) -> None:
        try:
            self._carry_out(self.machine.step(event, _now_ms()))
        except BaseException as error:
            self.errors.append(error)
            raise

    def _carry_out(self, effects: Effects) -> None:
        if effects.persist is not None:
            self.persisted.append(effects.persist)
        if effects.truncate_to is not None:
            ends = [position for position, header in headers(self.log) if header.base_offset >= effects.truncate_to]
            del self.log[min(ends, default=len(self.log)) :]
        for send in effects.send:
            self._spawn(self._send(send))
        for reply in effects.replies:
            self._tickets.pop(reply.ticket).set_result(reply.message)
        for read in effects.reads:
            assert isinstance(read, ReadLog)
            read.response.responses[0].partitions[0].records = self._read(read.offset)
            self._tickets.pop(read.ticket).set_result(read.response)
        if effects.wake_at_ms is not None:
            if self._timer is not None:
                self._timer.cancel()
            delay = max(0, effects.wake_at_ms - _now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(min(delay, 60), self.step, Tick())
        if effects.high_watermark is not None:
            self._apply()
        if effects.snapshot_chunk is not None:
            self._take_chunk(effects.snapshot_chunk)
        if effects.append_records is not None:
            self._append(bytes(effects.append_records))
        if effects.leader_change is not None:
            value = codec.encode(effects.leader_change, 0)
            end = self.machine.log.end_offset
            batch = control_batch(
                ControlType.LEADER_CHANGE, value, base_offset=end, timestamp=_wall_ms(), leader_epoch=self.machine.epoch
            )
            self._append(batch)

    def propose(self, *records: MetadataRecord) -> None:
        first, now_ms = self.machine.log.end_offset, _wall_ms()
        # Records of one batch have one timestamp: Kafka's controllers end themselves at any other.
        rows = [Record(first + index, now_ms, None, frames.encode(row, 30)) for index, row in enumerate(records)]
        self._append(build_batch(rows, leader_epoch=self.machine.epoch))

    def _append(self, data: bytes) -> None:
        self.log += data
        found = [header for _, header in headers(data)]
        epochs = tuple((header.leader_epoch, header.base_offset) for header in found)
        self.step(Appended(found[-1].next_offset, epochs))
        self.step(Flushed(found[-1].next_offset, self.machine.log.generation))

    def _read(self, offset: int) -> bytes:
        start = next((position for position, header in headers(self.log) if header.last_offset >= offset), len(self.log))
        return bytes(self.log[start:])

    def _apply(self) -> None:
        for header, records in decode_batches(bytes(self.log), from_offset=self.loader.offset + 1):
            if header.next_offset > self.machine.high_watermark:
                break
            values = [] if header.is_control else [frames.decode(record.value or b"") for record in records]
            self.loader.apply_batch(values, header.last_offset, header.leader_epoch)

    def _take_chunk(self, chunk: Any) -> None:
        if chunk.position == 0:
            self.snapshot.clear()
        self.snapshot += bytes(chunk.data)
        if chunk.is_last:
            rows: list[MetadataRecord] = []
            for header, records in decode_batches(bytes(self.snapshot)):
                rows += [] if header.is_control else [frames.decode(record.value or b"") for record in records]
            self.loader.load_snapshot(rows, chunk.snapshot.offset - 1, chunk.snapshot.epoch)
            self.log.clear()
            self.step(SnapshotInstalled(chunk.snapshot))

    # The wire -------------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, send: Send) -> None:
        async with self._turns.setdefault(send.node_id, asyncio.Lock()):  # a connection is read by one at a time
            await self._ask(send)

    async def _ask(self, send: Send) -> None:
        try:
            if send.node_id not in self._connections:
                self._connections[send.node_id] = await asyncio.open_connection(*send.address)
            reader, writer = self._connections[send.node_id]
            parts = request_frame(send.request, send.version, send.request_id, "ottla")
            writer.write(b"".join(bytes(part) for part in parts))
            while True:
                frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
                if struct.unpack_from(">i", frame)[0] == send.request_id:
                    break
            api = APIS[send.request.TYPE_KEY]
            start = response_body_start(frame, send.version in api.response.FLEXIBLE)
            self.step(Answered(send.request_id, codec.decode(api.response, send.version, frame, start)))
        except OSError as error:
            self._connections.pop(send.node_id, None)
            self.step(Failed(send.request_id, refused=isinstance(error, ConnectionRefusedError)))
        except asyncio.IncompleteReadError:
            self._connections.pop(send.node_id, None)
            self.step(Failed(send.request_id))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
                head = read_request_head(frame)
                request_type = APIS[head.api_key].request
                start = skip_tags(frame, head.position) if head.api_version in request_type.FLEXIBLE else head.position
                request = codec.decode(request_type, head.api_version, frame, start)
                response = await self._answer(request, head.api_version)
                parts = response_frame(response, head.api_version, head.correlation_id)
                writer.write(b"".join(bytes(part) for part in parts))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, request: Any, version: int) -> Any:
        if isinstance(request, ApiVersionsRequest):
            ranges = {key: APIS[key].request.VERSIONS for key in SERVED}
            row = ApiVersionsResponse.ApiVersion
            return ApiVersionsResponse(
                api_keys=[row(api_key=key, min_version=span.first, max_version=span.last) for key, span in ranges.items()]
            )
        self._serial += 1
        future = self._tickets[self._serial] = asyncio.get_running_loop().create_future()
        self.step(Received(self._serial, request, version, _wall_ms()))
        return await future


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


def _wall_ms() -> int:
    return int(time.time() * 1000)
