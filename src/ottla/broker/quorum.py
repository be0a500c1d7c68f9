"""The metadata quorum on this node: runs the raft machine, and shows what it commits to the rest of the node.

The machine says what to do (`raft/events.py:Effects`); here it is done in the order that its head demands: persist, truncate,
append, send. Appends are synced on a worker thread, and what is appended meanwhile shares the next sync. Committed records become
an image (`metadata/loader.py`), which is published before anybody who waited for them hears of it.

A node that leads runs the controller as well. A node that does not asks the one that does.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker import metadata_log, static_voters
from ottla.broker.controller import ActiveController
from ottla.broker.disk_watch import is_of_disk
from ottla.broker.metadata_log import MetadataLog
from ottla.broker.peers import Peers, is_gone
from ottla.client.errors import ConnectionRefused, NetworkError
from ottla.metadata.delta import Changes
from ottla.metadata.image import ClusterImage
from ottla.metadata.loader import Loader
from ottla.metadata.records import MetadataRecord
from ottla.metadata.snapshot import SnapshotPolicy
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.model.ids import METADATA_TOPIC
from ottla.model.machine import Ticket
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.quorum import DescribeQuorumRequest
from ottla.raft import events
from ottla.raft.core import Identity, Timing
from ottla.raft.log import OffsetAndEpoch
from ottla.raft.machine import RaftMachine
from ottla.raft.voters import Address, VoterSet
from ottla.records.batch import crc_of, headers
from ottla.storage.config import LogConfig
from ottla.storage.flushing import SyncFailed

if TYPE_CHECKING:
    from ottla.broker.node import Node

log = logging.getLogger("ottla.quorum")
MAX_EVENTS = 100_000  # a machine that answers itself for ever is broken
ASK_RETRY_MS = 20
ASK_RETRY_MAX_MS = 200
PROBE_MS = 500
STAND_STILL_MS = 500  # between attempts to write to a disk that refuses
# Before the loop may see to something else, so much is published: records, or what takes longer than this, because partitions need
# files made.
MAX_PUBLISHED = 500
MAX_PUBLISHING_MS = 5
PORTION = 4  # partitions, between looks at the clock


class Quorum:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._world = node.world
        self._loader = Loader()
        self._log = MetadataLog(node.world, node.config.metadata_directory, _log_config(node))
        self._raft: RaftMachine | None = None
        self._controller: ActiveController | None = None
        self._peers = Peers(node.world.network, f"raft-client-{node.node_id}")
        self._askers = Peers(node.world.network, f"broker-{node.node_id}-to-controller")
        self._events: deque[Any] = deque()
        self._stepping = False
        self._tickets: dict[Ticket, asyncio.Future[Any]] = {}
        self._next_ticket = 0
        self._timer: asyncio.TimerHandle | None = None
        self._applying_again: asyncio.Handle | None = None
        self._unpublished: deque[tuple[ClusterImage, Changes]] = deque()  # of what was read
        self._committed_offset = 0  # what the quorum has agreed on; `high_watermark` is how far it was read
        self._tasks: set[asyncio.Task[Any]] = set()
        self._foreign: set[str] = set()  # addresses of voters that say they belong to another cluster
        self._flush_wanted = asyncio.Event()
        self._moved = asyncio.Event()
        self._activate_at: int | None = None  # becoming leader: once everything below is committed
        self._bytes_since_snapshot = 0
        self._snapshot_ms = node.world.clock.monotonic_ms()  # when the last one was made, or this life began
        self._snapshot_from: int | None = None  # one is due: as soon as what lies before this offset is committed
        self.leader = events.Leadership(-1, 0, False)
        self.high_watermark = 0

    # Life -----------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns once what is committed is known and applied, and this node has heard of a leader."""
        snapshot = self._log.latest_snapshot()
        if snapshot is not None:
            image = self._loader.load_snapshot(self._log.load_snapshot(snapshot), snapshot.offset - 1, snapshot.epoch)
            self._node.image = image
        node = self._node
        static_voters.check_remembered(node.config, self._log.remembered_voters())
        listener, address = self._own_address()
        # What a process that was killed had written is here and perhaps not on the disk, and from here on it counts as if it were.
        await metadata_log.flush(self._log, self._world)
        self._raft = RaftMachine(
            Identity(node.node_id, node.cluster_id, node.directory.directory_id, listener, address),
            static_voters.initial_voters(node.config, address),
            self._log.view(),
            self._log.quorum_state(),
            _timing(node),
            self._world.random.below,
            [Address(host, port) for host, port in node.config.bootstrap_servers],
        )
        self._spawn(self._flush())
        self._run(self._raft.start(int(self._world.clock.monotonic_ms())))
        await self._until(self._has_started)
        await self._compare_voters()

    def _has_started(self) -> bool:
        if len(self._foreign) >= self.raft.voters.majority:
            raise ApiError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"this node was formatted for cluster {self._node.cluster_id} ({self._node.config.directory}/meta.properties), "
                f"and the controllers at {', '.join(sorted(self._foreign))} belong to another one",
            )
        return self.leader.leader_id >= 0 and self.high_watermark > 0

    async def _compare_voters(self) -> None:
        if self.leader.is_self:
            return
        data = DescribeQuorumRequest.TopicData
        request = DescribeQuorumRequest(topics=[data(topic_name=METADATA_TOPIC, partitions=[data.PartitionData()])])
        try:
            row = (await self._ask_once(request, None)).topics[0].partitions[0]
        except (ApiError, NetworkError, ProtocolError, IndexError):
            return  # the leader is being replaced; the check is a help, not a safeguard
        if not row.error_code:
            static_voters.check_current(self._node.config, [voter.replica_id for voter in row.current_voters])

    def _own_address(self) -> tuple[str, Address]:
        for endpoint in self._node.controller_bound:
            return endpoint.name, Address(endpoint.host or "localhost", endpoint.port)
        return self._node.config.controller_listener_names[0], Address("", 0)

    async def stop(self) -> None:
        if self.leader.is_self:
            self.step(events.Resign())
            await asyncio.sleep(0)
        self._stand_down()
        for timer in (self._timer, self._applying_again):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        self._peers.close()
        self._askers.close()
        try:
            self._log.close()
        except (OSError, ApiError) as error:
            self._node.disk_refuses("metadata log not closed cleanly", error)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until_applied(self, offset: int) -> None:
        await self._until(lambda: self._node.image.offset >= offset and not self._unpublished)

    async def _until(self, condition: Any) -> None:
        while not condition():
            self._moved.clear()
            await self._moved.wait()

    # Stepping -------------------------------------------------------------------------------------------------------------

    def receive(self, request: Any, version: int) -> asyncio.Future[Any]:
        """A request of the quorum's own from a peer, an observer or a tool."""
        if self._raft is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "this node is still starting")
        self._next_ticket += 1
        future = self._tickets[self._next_ticket] = asyncio.get_running_loop().create_future()
        self.step(events.Received(self._next_ticket, request, version, self._world.clock.wall_ms()))
        return future

    def step(self, event: Any) -> None:
        """One event at a time: what carrying out its effects brings about waits its turn."""
        self._events.append(event)
        if not self._stepping:
            self._run(None)

    @property
    def raft(self) -> RaftMachine:
        assert self._raft is not None, "the quorum has not started"
        return self._raft

    def _run(self, effects: events.Effects | None) -> None:
        self._stepping = True
        stands_still = False
        try:
            for _ in range(MAX_EVENTS):
                if effects is not None and not self._carry_out(effects):
                    stands_still = True
                    return
                if not self._events:
                    return
                effects = self.raft.step(self._events.popleft(), int(self._world.clock.monotonic_ms()))
            raise AssertionError("the raft machine does not come to rest")
        finally:
            self._stepping = stands_still

    def _carry_out(self, effects: events.Effects) -> bool:
        """False when the disk refuses (it is full): the quorum stands still, as if the node were paused, and tries again.

        Nothing is sent before it is written, so standing still breaks no promise; events wait in line meanwhile.
        """
        try:
            appended = self._write(effects)
        except (OSError, ApiError) as error:
            self._node.disk_refuses("metadata cannot be written", error)
            self._set_timer(None)
            self._timer = asyncio.get_running_loop().call_later(STAND_STILL_MS / 1000, self._run, effects)
            return False
        if appended is not None:
            first, epochs = appended
            self._appended(epochs)
            if effects.append_records is not None:
                for offset, record in metadata_log.voters_in(effects.append_records, first):
                    self.step(events.VotersLearned(offset, VoterSet.from_record(record, self._own_address()[0])))
        self._follow_up(effects)
        return True

    def _write(self, effects: events.Effects) -> tuple[int, tuple[tuple[int, int], ...]] | None:
        """What must be on disk before anything else happens; where the appended records begin, and the epochs that do.

        It may be repeated after a failure: each part leaves things as they were, or is done.
        """
        if effects.persist is not None:
            self._log.persist(effects.persist, self.raft.voters)
        if effects.truncate_to is not None:
            self._log.truncate(effects.truncate_to)
        if effects.snapshot_chunk is not None:
            self._receive_snapshot(effects.snapshot_chunk)
        first = self._log.end_offset
        if effects.append_records is not None:
            return first, self._log.append_fetched(effects.append_records)
        if effects.leader_change is not None:
            self._log.append_leader_change(effects.leader_change, self.raft.epoch)
            return first, ((self.raft.epoch, first),)
        return None

    def _follow_up(self, effects: events.Effects) -> None:
        for request in effects.send:
            self._spawn(self._send(request))
        for reply in effects.replies:
            self._reply(reply.ticket, reply.message)
        for read in effects.reads:
            self._read(read)
        if effects.leadership is not None:
            self._lead_or_follow(effects.leadership)
        if effects.high_watermark is not None:
            self._commit(effects.high_watermark)
        self._set_timer(effects.wake_at_ms)

    def _set_timer(self, wake_at_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at_ms is not None:
            delay_ms = max(0.0, wake_at_ms - self._world.clock.monotonic_ms())
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.step, events.Tick())

    def _appended(self, epochs: tuple[tuple[int, int], ...]) -> None:
        self._flush_wanted.set()
        self.step(events.Appended(self._log.end_offset, epochs))

    async def _flush(self) -> None:
        """A disk that fails to sync stops the node: it can promise nothing any more."""
        while True:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            generation = self.raft.log.generation
            try:
                flushed = await metadata_log.flush(self._log, self._world)
            except SyncFailed as error:
                self._node.fail(f"the metadata log could not be synced: {error}")
                return
            except ApiError as error:  # a full disk
                self._node.disk_refuses("metadata cannot be flushed", error)
                self._flush_wanted.set()
                await asyncio.sleep(STAND_STILL_MS / 1000)
                continue
            self.step(events.Flushed(flushed, generation))

    async def _send(self, send: events.Send) -> None:
        timeout_ms = self._node.settings["controller.quorum.request.timeout.ms"]
        try:
            response = await self._peers.request(
                send.address.host, send.address.port, send.request, version=send.version, timeout_ms=timeout_ms
            )
        except (NetworkError, ProtocolError) as error:
            log.debug("quorum request failed node=%d to=%d error=%s", self._node.node_id, send.node_id, error)
            self.step(events.Failed(send.request_id, refused=isinstance(error, ConnectionRefused)))
            return
        if response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._refused_as_foreign(f"{send.address.host}:{send.address.port}")
        if isinstance(response, FetchResponse) and not _is_sound(response):
            log.error("fetched metadata is damaged node=%d from=%d", self._node.node_id, send.node_id)
            self.step(events.Failed(send.request_id, refused=False))
            return
        self.step(events.Answered(send.request_id, response))

    def _refused_as_foreign(self, address: str) -> None:
        if address not in self._foreign:
            log.error("a voter of another cluster node=%d address=%s", self._node.node_id, address)
            self._foreign.add(address)
            self._moved.set()

    def _reply(self, ticket: Ticket, message: Any) -> None:
        future = self._tickets.pop(ticket, None)
        if future is not None and not future.done():
            future.set_result(message)

    def _read(self, read: events.ReadLog | events.ReadSnapshot) -> None:
        if isinstance(read, events.ReadLog):
            data = read.response.responses[0].partitions[0]
            data.records = self._log.read(read.offset, read.max_bytes, self._log.end_offset)
        else:
            self._read_snapshot(read)
        self._reply(read.ticket, read.response)

    def _read_snapshot(self, read: events.ReadSnapshot) -> None:
        row = read.response.topics[0].partitions[0]
        found = self._log.read_snapshot(read.snapshot, read.position, read.max_bytes)
        if found is None:
            row.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        elif read.position >= found[1]:
            row.error_code = ErrorCode.POSITION_OUT_OF_RANGE
        else:
            row.unaligned_records, row.size, row.position = found[0], found[1], read.position

    def _receive_snapshot(self, chunk: events.SnapshotChunk) -> None:
        self._log.receive_snapshot(chunk.snapshot, chunk.position, bytes(chunk.data), chunk.is_last)
        if chunk.is_last:
            self._publish_portions(math.inf)
            before = self._loader.image
            image = self._loader.load_snapshot(
                self._log.load_snapshot(chunk.snapshot), chunk.snapshot.offset - 1, chunk.snapshot.epoch
            )
            self._node.publish_whole(before, image)
            self.step(events.SnapshotInstalled(chunk.snapshot))

    # Committing -----------------------------------------------------------------------------------------------------------

    def _commit(self, offset: int) -> None:
        self._log.advance_high_watermark(offset)
        self._committed_offset = offset
        self._apply()

    def _apply(self) -> None:
        """Everything that is committed goes into the image, then whoever waits for it hears of it.

        Much of it goes piece by piece, with the loop's other work in between. What fails is tried again.
        """
        if self._applying_again is not None:
            self._applying_again.cancel()
            self._applying_again = None
        offset = self._committed_offset
        try:
            done = self._publish_up_to(offset)
            if done:
                self.high_watermark = offset
                self._activate_if_due()
        except (OSError, ApiError) as error:
            self._node.disk_refuses("metadata cannot be carried out", error)
            self._applying_again = asyncio.get_running_loop().call_later(STAND_STILL_MS / 1000, self._apply)
            return
        if not done:
            # Who asked for a thousand partitions is told when the image has them, not when each has its files, as by Kafka.
            if self._controller is not None:
                self._controller.committed(self._loader.offset + 1)
            self._applying_again = asyncio.get_running_loop().call_soon(self._apply)
            return
        if self._controller is not None:
            self._controller.committed(offset)
        self._moved.set()
        self._snapshot_if_due()

    def _publish_up_to(self, offset: int) -> bool:
        """False when it has done enough for one turn of the loop."""
        published, until_ms = 0, self._node.world.clock.monotonic_ms() + MAX_PUBLISHING_MS
        if not self._publish_portions(until_ms):
            return False
        while self._loader.offset + 1 < offset:
            for header, records in self._log.batches(self._loader.offset + 1, offset):
                if published and published + len(records) > MAX_PUBLISHED:
                    return False
                image, changes = self._loader.apply_batch(records, header.last_offset, header.leader_epoch)
                self._bytes_since_snapshot += header.size
                self._unpublished += [(image, portion) for portion in changes.portions(PORTION)]
                published += len(records)
                if not self._publish_portions(until_ms):
                    return False
        return True

    def _publish_portions(self, until_ms: float) -> bool:
        """One at least, and whether there was time for all. Each stays in line until it is carried out: a full disk may refuse the files of
        a new partition."""
        while self._unpublished:
            self._node.publish(*self._unpublished[0])
            self._unpublished.popleft()
            if self._node.world.clock.monotonic_ms() >= until_ms:
                return False
        return True

    def _snapshot_if_due(self) -> None:
        """First the log begins a segment, and once everything before it is committed a snapshot takes the place of that: the next
        start reads what came after, and not a record twice."""
        if self._snapshot_from is None and not self._snapshot_is_due():
            return
        try:
            if self._snapshot_from is None:
                self._snapshot_from = self._log.roll()
            if self._loader.image.offset + 1 < self._snapshot_from:
                return
            snapshot = self._log.write_snapshot(self._loader.image)
        except OSError as error:  # the next one is due after as many bytes again
            log.warning("snapshot failed node=%d error=%s", self._node.node_id, error)
            self._note_snapshot()
            return
        log.info("snapshot offset=%d epoch=%d", *snapshot)
        self._note_snapshot()
        self.step(events.SnapshotMade(OffsetAndEpoch(*snapshot)))
        self._log.forget_before(snapshot)
        self.step(events.LogStartMoved(self._log.start_offset))

    def _snapshot_is_due(self) -> bool:
        settings = self._node.settings
        policy = SnapshotPolicy(
            settings["metadata.log.max.record.bytes.between.snapshots"], settings["metadata.log.max.snapshot.interval.ms"]
        )
        since_ms = self._world.clock.monotonic_ms() - self._snapshot_ms
        return policy.is_due(self._bytes_since_snapshot, int(since_ms)) and not self._loader.in_transaction

    def _note_snapshot(self) -> None:
        self._snapshot_from = None
        self._bytes_since_snapshot = 0
        self._snapshot_ms = self._world.clock.monotonic_ms()

    # Leading --------------------------------------------------------------------------------------------------------------

    def _lead_or_follow(self, leadership: events.Leadership) -> None:
        if leadership != self.leader:
            log.info("metadata leader node=%d leader=%d epoch=%d", self._node.node_id, leadership.leader_id, leadership.epoch)
            # A leader that is cut off never answers: who asked it would wait for the whole time-out while there is another.
            self._askers.disconnect()
        self._stand_down()
        self.leader = leadership
        self._activate_at = self._log.end_offset if leadership.is_self else None
        self._moved.set()

    def _activate_if_due(self) -> None:
        """Everything that earlier leaders left is committed and in the image: the controller may decide."""
        due = self._activate_at
        if due is None or self.high_watermark < due:
            return
        self._activate_at = None
        try:
            self._controller = ActiveController(
                self._node, self._loader.image, self.leader.epoch, self._append_records, lambda: self._log.end_offset
            )
        except (OSError, ApiError):
            self._activate_at = due if self.leader.is_self else None
            raise

    def _append_records(self, records: Sequence[MetadataRecord], metadata_version: int) -> int:
        if not self.leader.is_self:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        try:
            first = self._log.append(records, metadata_version, self.leader.epoch)
        except (OSError, ApiError) as error:
            if is_of_disk(error):
                self._refused(error)
            raise
        self._appended(())
        return first

    def _refused(self, error: Exception) -> None:
        """A controller that cannot write decides nothing, not even that others shall lead what it leads: let another one decide."""
        self._node.disk_refuses("metadata cannot be appended", error)
        if len(self.raft.voters) > 1:
            self.step(events.Resign())
            raise ApiError(ErrorCode.NOT_CONTROLLER) from error

    def _stand_down(self) -> None:
        self._activate_at = None
        if self._controller is not None:
            self._controller.close()
            self._controller = None

    # Asking ---------------------------------------------------------------------------------------------------------------

    @property
    def leader_id(self) -> int:
        return self.leader.leader_id

    @property
    def is_controller(self) -> bool:
        return self._controller is not None

    async def is_lost(self) -> bool:
        """Whether so many voters are gone, by the word of their ports, that those left cannot agree on anything."""
        others = [address for voter, address in self.raft.voters.addresses.items() if voter != self._node.node_id]
        gone = await asyncio.gather(*(is_gone(self._world.network, *address, limit_ms=PROBE_MS) for address in others))
        return len(self.raft.voters) - sum(gone) < self.raft.voters.majority

    def suspect(self, broker_id: int) -> None:
        """A broker's connection is lost: if its port refuses another one, it is gone."""
        if self._controller is not None:
            self._controller.suspect(broker_id)

    async def decide(self, request: Any, version: int) -> Any:
        """A request to this node as the controller. Raises ApiError NOT_CONTROLLER if it is not."""
        if self._controller is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return await self._controller.ask(request, version)

    async def ask(self, request: Any, version: int | None = None) -> Any:
        """A request to the active controller, wherever it is; tried again while there is none, until the time is up."""
        deadline = self._world.clock.monotonic_ms() + self._node.settings["request.timeout.ms"]
        wait_ms = ASK_RETRY_MS
        while True:
            try:
                response = await self._ask_once(request, version)
                if getattr(response, "error_code", 0) != ErrorCode.NOT_CONTROLLER:
                    return response
                error = ApiError(ErrorCode.NOT_CONTROLLER)
            except ApiError as refused:
                if refused.code != ErrorCode.NOT_CONTROLLER:
                    raise
                error = refused
            except (NetworkError, ProtocolError) as lost:
                error = ApiError(ErrorCode.REQUEST_TIMED_OUT, f"the controller could not be reached: {lost}")
            if self._world.clock.monotonic_ms() + wait_ms > deadline:
                raise error
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = min(2 * wait_ms, ASK_RETRY_MAX_MS)

    async def describe(self, request: Any, version: int) -> Any:
        """DescribeQuorum is answered by the leader."""
        if self.leader.is_self:
            return await self.receive(request, version)
        return await self.ask(request, version)

    async def _ask_once(self, request: Any, version: int | None) -> Any:
        if self._controller is not None:
            return await self._controller.ask(request, request.VERSIONS.last if version is None else version)
        address = self.raft.leader_address
        if address is None or self.leader.is_self:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        timeout_ms = self._node.settings["request.timeout.ms"]
        return await self._askers.request(address.host, address.port, request, version=version, timeout_ms=timeout_ms)


def _is_sound(response: FetchResponse) -> bool:
    """Whether every batch that was fetched has its checksum: what is damaged is asked for again, not handed to the machine."""
    contents = [partition.records or b"" for topic in response.responses for partition in topic.partitions]
    return all(
        crc_of(content, position, header.size) == header.crc for content in contents for position, header in headers(content)
    )


def _log_config(node: Node) -> LogConfig:
    return LogConfig(
        segment_bytes=node.settings["metadata.log.segment.bytes"],
        segment_ms=node.settings["metadata.log.segment.ms"],
        retention_ms=-1,
        retention_bytes=-1,
        max_message_bytes=8 << 20,
    )


def _timing(node: Node) -> Timing:
    settings = node.settings
    return Timing(
        election_timeout_ms=settings["controller.quorum.election.timeout.ms"],
        fetch_timeout_ms=settings["controller.quorum.fetch.timeout.ms"],
        request_timeout_ms=settings["controller.quorum.request.timeout.ms"],
        retry_backoff_ms=settings["controller.quorum.retry.backoff.ms"],
    )
