"""`Consumer`: partitions in, records out, positions committed.

    async with Consumer(bootstrap_servers="127.0.0.1:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            ...

A consumer belongs to one task at a time. Fetching and heartbeats go on in the background; everything that concerns the
application (records, errors, rebalance listeners) happens inside `poll`, or the iteration, which polls. Whoever does not poll for
`max_poll_interval_ms` leaves the group.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack

from ottla.client.admin.types import EARLIEST, LATEST, CommittedOffset, ListedOffset
from ottla.client.assignors import BUILT_IN, Assignor
from ottla.client.cluster import Cluster
from ottla.client.commits import Commitable, CommitCallback, Commits
from ottla.client.consumer_membership import ConsumerMember
from ottla.client.coordination import Coordination, Member
from ottla.client.errors import ConcurrentUse, IllegalState, NetworkError, SettingError, WaitTimedOut
from ottla.client.fetcher import Fetcher
from ottla.client.life import Client
from ottla.client.listener import RebalanceListener
from ottla.client.membership import Assign, ClassicMember, Duty, Lose, MemberSettings, Revoke
from ottla.client.metadata import TopicInfo
from ottla.client.offsets import Offsets
from ottla.client.positions import COMMITTED, POLICY, ConsumerRecord, Decoding, Position
from ottla.client.settings import ConsumerSettings, resolve
from ottla.client.transactions import GroupMetadata
from ottla.host import World
from ottla.model.errors import ApiError, OttlaError
from ottla.model.ids import TopicPartition, random_uuid, uuid_text

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("ottla.consumer")

MAX_WAIT_MS = 500.0  # how long a poll sleeps before it looks again at clocks that nobody rings
Partitions = Iterable[tuple[str, int]]


class Consumer(Client):
    def __init__(self, *, world: World | None = None, **settings: Unpack[ConsumerSettings]) -> None:
        self._settings = resolve(ConsumerSettings, settings)
        self._assignors = _assignors(self._settings)
        self._cluster = Cluster(self._settings, world)
        self._offsets = Offsets(self._cluster, self._settings)
        self._decoding = Decoding(
            self._settings["check_crcs"], self._settings["key_deserializer"], self._settings["value_deserializer"]
        )
        self._positions: dict[TopicPartition, Position] = {}
        self._listener = RebalanceListener()
        self._subscription: frozenset[str] | None = None
        self._pattern: str | re.Pattern[str] | None = None
        self._coordination: Coordination | None = None
        self._fetcher: Fetcher | None = None
        self._event = asyncio.Event()
        self._turn = 0
        self._inside = False
        self._current: Position | None = None
        self._finding: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._commits = Commits(self._cluster, self._offsets, self._settings, self._positions, self._member)

    # Life --------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._fetcher = Fetcher(self._cluster, self._positions, self._settings, self._event.set)
        if self._subscription is not None or self._pattern is not None:
            self._join()

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Commit (if that is automatic), give the partitions up, leave the group at once, disconnect."""
        if self._closed:
            return
        try:
            if self._started:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._leave()
        except (TimeoutError, OttlaError) as error:
            log.warning("close_incomplete error=%s", error)
        finally:  # a listener may raise what it likes: the consumer is closed all the same
            self._closed = True
            if self._fetcher is not None:
                self._fetcher.close()
            self._commits.cancel()
            self._event.set()
            await self._cluster.close()

    async def _leave(self) -> None:
        await self._commits.before_giving_up()
        coordination, self._coordination = self._coordination, None
        if coordination is not None:
            try:
                if owned := coordination.member.owned:
                    await self._listener.on_partitions_revoked(owned)
            finally:
                await coordination.leave("the consumer was closed")

    def _running(self) -> Fetcher:
        self._check_running()
        assert self._fetcher is not None
        return self._fetcher

    # What to read ------------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Share these topics, or those whose whole name matches the pattern, with the other members of the group.

        With group_protocol=consumer a pattern given as text is matched by the broker (RE2); a compiled one here.
        """
        self._check_not_closed()
        if isinstance(topics, str):
            raise SettingError(f"topics must be a collection of names, such as [{topics!r}]")
        if (not topics) == (pattern is None):
            raise SettingError("give either topics or a pattern")
        if self._settings["group_id"] is None:
            raise IllegalState("subscribe needs a group_id; without one, assign partitions yourself")
        if self._positions and self._subscription is None and self._pattern is None:
            raise IllegalState("this Consumer has assigned itself partitions; unsubscribe first")
        self._listener = listener or self._listener
        self._subscription, self._pattern = frozenset(topics), pattern
        if self._started:
            self._join()

    def _join(self) -> None:
        if self._coordination is None:
            self._coordination = Coordination(self._cluster, self._make_member(), self._settings, self._event.set)
            self._coordination.start()
        pattern = self._pattern
        by_server = isinstance(pattern, str) and self._settings["group_protocol"] == "consumer"
        compiled = None if pattern is None or by_server else re.compile(pattern)
        self._coordination.subscribe(self._subscription or frozenset(), compiled, str(pattern) if by_server else None)

    def _make_member(self) -> Member:
        settings = self._settings
        member = MemberSettings(
            group_id=settings["group_id"] or "",
            session_timeout_ms=settings["session_timeout_ms"],
            heartbeat_interval_ms=settings["heartbeat_interval_ms"],
            rebalance_timeout_ms=settings["max_poll_interval_ms"],
            retry_backoff_ms=settings["retry_backoff_ms"],
            instance_id=settings["group_instance_id"],
            rack=settings["client_rack"] or None,
            server_assignor=settings["group_remote_assignor"],
        )
        if settings["group_protocol"] == "consumer":
            return ConsumerMember(member, uuid_text(random_uuid(self._cluster.world.random.bytes)))
        return ClassicMember(member, self._assignors)

    async def unsubscribe(self) -> None:
        """Give everything up and leave the group."""
        self._running()
        await self._leave()
        self._subscription = self._pattern = None
        self._set_positions(frozenset())

    def assign(self, partitions: Partitions) -> None:
        """Read exactly these partitions, without a group's help. With a group_id offsets can still be committed."""
        self._running()
        if self._subscription is not None or self._pattern is not None:
            raise IllegalState("this Consumer is subscribed; unsubscribe first")
        self._set_positions(frozenset(TopicPartition(*each) for each in partitions))

    def _set_positions(self, wanted: frozenset[TopicPartition]) -> None:
        """Positions of partitions that stay are kept."""
        for key in [key for key in self._positions if key not in wanted]:
            del self._positions[key]
            self._commits.forget(key)
        for key in sorted(wanted):
            if key not in self._positions:
                self._positions[key] = Position(key, COMMITTED if self._settings["group_id"] is not None else POLICY)
        self._current = None
        self._event.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def subscription(self) -> frozenset[str]:
        return self._subscription or frozenset()

    def pause(self, partitions: Partitions) -> None:
        """Fetch and return nothing of these until `resume`; stay a member all the same."""
        for position in self._own(partitions):
            position.paused = True
        self._current = None

    def resume(self, partitions: Partitions) -> None:
        for position in self._own(partitions):
            position.paused = False
        self._running().poke()

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(key for key, position in self._positions.items() if position.paused)

    def _own(self, partitions: Partitions) -> list[Position]:
        found = []
        for each in partitions:
            key = TopicPartition(*each)
            if key not in self._positions:
                raise IllegalState(
                    f"{key} is not assigned to this Consumer; it has {', '.join(map(str, sorted(self._positions))) or 'none'}"
                )
            found.append(self._positions[key])
        return found

    # Records -----------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float = 0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records as soon as there are any, at most `max_records` (`max_poll_records`); empty when `timeout_ms` passes first.

        Records that cannot be read (`UnreadableRecords`) or deserialized (`DeserializationFailed`) are an error that comes back until
        someone seeks past them; polls in between return what the other partitions have.
        """
        limit = self._settings["max_poll_records"] if max_records is None else max_records
        with self._only_one():
            return await self._until(lambda: self._take(limit), timeout_ms) or []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        position = self._current
        if position is not None and not self._inside and not self._closed:
            index = position.index
            if index + 1 < len(position.records):  # the common case; the last of a batch goes the long way
                record = position.records[index]
                position.index = index + 1
                position.offset = record.offset + 1
                position.epoch = record.leader_epoch
                return record
        with self._only_one():
            while True:
                taken: list[ConsumerRecord] = await self._until(lambda: self._take(1), None)
                if taken:
                    if self._decoding.is_plain:
                        self._current = self._positions.get(TopicPartition(taken[0].topic, taken[0].partition))
                    return taken[0]

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        if self._inside:
            raise ConcurrentUse("another task is inside this Consumer; one Consumer belongs to one task, so give each its own")
        self._running()
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    async def _until(self, take: Callable[[], Any], timeout_ms: float | None) -> Any:
        """Do what is due, then take; wait and repeat while there is nothing."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        if not self._positions and self._subscription is None and self._pattern is None:
            raise IllegalState("this Consumer reads nothing yet: subscribe to topics, or assign partitions")
        await asyncio.sleep(0)  # a loop of polls that all find something must not starve heartbeats
        while True:
            self._event.clear()
            await self._do_duties()
            self._look_for_positions()
            self._commits.now_and_then()
            self._raise_errors()
            taken = take()
            self._running().poke()
            if taken:
                return taken
            wait = MAX_WAIT_MS / 1000 if deadline is None else min(MAX_WAIT_MS / 1000, deadline - loop.time())
            if wait <= 0:
                return None
            try:
                async with asyncio.timeout(wait):
                    await self._event.wait()
            except TimeoutError:
                pass
            self._running()

    def _take(self, limit: int) -> list[ConsumerRecord]:
        """From one partition after the other, each in turn first, so that none starves."""
        keys = list(self._positions)
        taken: list[ConsumerRecord] = []
        if keys:
            self._turn %= len(keys)
        for step in range(len(keys)):
            position = self._positions[keys[(self._turn + step) % len(keys)]]
            while position.offset is not None and not position.paused and len(taken) < limit:
                try:
                    records = position.take(limit - len(taken), self._decoding)
                except OttlaError as error:
                    self._turn += step + 1  # the others go on at the next poll
                    self._fetch_later(position)
                    if not taken:
                        raise
                    self._error = error  # first what could be read
                    return taken
                if not records:
                    break
                taken += records
            if len(taken) >= limit:
                self._turn += step  # it may have more
                break
        else:
            self._turn += 1
        return taken

    def _fetch_later(self, position: Position) -> None:
        """After records that could not be read: whoever polls in a loop shall not make a loop of fetches."""
        position.retry_at_ms = self._cluster.now_ms() + self._cluster.backoff_ms(0)

    def _raise_errors(self) -> None:
        fetcher = self._running()
        error, self._error = self._error, None
        if error is None:
            error, fetcher.error = fetcher.error, None
        if error is None and self._coordination is not None:
            error = self._coordination.member.error
        if error is not None:
            raise error

    async def arrow(self, *, headers: bool = False) -> AsyncIterator[pyarrow.RecordBatch]:
        """Everything that is fetched, as `pyarrow.RecordBatch`es: topic, partition, offset, timestamp, key, value (and headers)."""
        from ottla.client.arrow import take_batch

        def take() -> Any:
            positions = list(self._positions.values())
            for step in range(len(positions)):
                position = positions[(self._turn + step) % len(positions)]
                while position.offset is not None and not position.paused and (chunk := position.take_chunk()) is not None:
                    try:
                        made = take_batch(position, chunk, headers, self._settings["check_crcs"])
                    except ApiError:
                        self._turn += step + 1
                        self._fetch_later(position)
                        raise
                    if made.num_rows:
                        self._turn += step + 1
                        return made
            return None

        while True:
            with self._only_one():
                batch = await self._until(take, None)
            yield batch

    # Duties ------------------------------------------------------------------------------------------------------------

    async def _do_duties(self) -> None:
        coordination = self._coordination
        if coordination is None:
            return
        coordination.polled()
        while (duty := coordination.member.pending) is not None:
            try:
                await self._do(duty)
            finally:
                coordination.done(duty)
            await asyncio.sleep(0)

    async def _do(self, duty: Duty) -> None:
        self._current = None
        if isinstance(duty, Assign):
            log.info("assigned added=%s", sorted(map(str, duty.added)))
            self._set_positions(duty.owned)
            await self._listener.on_partitions_assigned(duty.added)
            return
        log.info("%s partitions=%s", "revoked" if isinstance(duty, Revoke) else "lost", sorted(map(str, duty.partitions)))
        try:
            if isinstance(duty, Lose):
                await self._listener.on_partitions_lost(duty.partitions)
            else:
                await self._commits.before_giving_up()
                await self._listener.on_partitions_revoked(duty.partitions)
        finally:
            self._set_positions(frozenset(self._positions) - duty.partitions)

    def _look_for_positions(self) -> None:
        """Start finding the offsets of partitions that have none."""
        missing = [position for position in self._positions.values() if position.reset is not None]
        if missing and (self._finding is None or self._finding.done()):
            self._finding = self._cluster.spawn(self._find(missing), "find positions")

    async def _find(self, positions: list[Position]) -> None:
        try:
            await self._offsets.find_positions(positions)
        except (NetworkError, ApiError, OttlaError) as error:
            self._error = error
        self._running().poke()
        self._event.set()

    # Positions ---------------------------------------------------------------------------------------------------------

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """The next poll starts there."""
        if offset < 0:
            raise IllegalState(f"an offset must not be negative, and {offset} is")
        for position in self._own([partition]):
            position.seek(offset)
        self._current = None
        self._running().poke()

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        self._reset(partitions, LATEST)

    def seek_to_time(self, timestamp_ms: int, partitions: Partitions | None = None) -> None:
        """To the first record that is as young, or to the end when none is."""
        self._reset(partitions, timestamp_ms)

    def _reset(self, partitions: Partitions | None, timestamp: int) -> None:
        self._running()
        for position in self._own(self._positions if partitions is None else partitions):
            position.reset_to(timestamp)
        self._current = None

    async def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that will be returned."""
        [position] = self._own([partition])
        deadline = asyncio.get_running_loop().time() + self._settings["default_api_timeout_ms"] / 1000
        while position.offset is None:
            self._look_for_positions()
            if self._finding is not None:
                await asyncio.wait([self._finding])
            self._raise_errors()
            if asyncio.get_running_loop().time() > deadline:
                raise WaitTimedOut(f"the position of {position.key} could not be found within default_api_timeout_ms")
        return position.offset

    async def lag(self) -> dict[TopicPartition, int]:
        """Records between the position and the end, for each assigned partition."""
        self._running()
        ends = await self.end_offsets(self._positions)
        return {key: max(0, end - await self.position(key)) for key, end in ends.items() if key in self._positions}

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        self._running()
        return await self._offsets.latest_offsets(partitions, isolation_level=self._settings["isolation_level"])

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        self._running()
        return await self._offsets.earliest_offsets(partitions)

    async def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, ListedOffset | None]:
        """For each partition the first record that is as young as asked, or None."""
        self._running()
        found = await self._offsets.list_offsets(times, isolation_level=self._settings["isolation_level"])
        return {key: listed if listed.offset >= 0 else None for key, listed in found.items()}

    async def partitions_for(self, topic: str, *, timeout_ms: float | None = None) -> TopicInfo:
        """A topic's partitions and their leaders. Waits for a topic that is missing, at most `timeout_ms` (`default_api_timeout_ms`)."""
        self._running()
        allow_create = self._settings["allow_auto_create_topics"]
        return await self._cluster.topic(topic, allow_create=allow_create, timeout_ms=timeout_ms)

    # Commits -----------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Commitable | None = None, *, timeout_ms: float | None = None) -> None:
        """Commit these offsets (of the next record to read), or everything that was returned; tries until it is done or refused."""
        self._running()
        await self._commits.commit(offsets, timeout_ms)

    def commit_async(self, offsets: Commitable | None = None, callback: CommitCallback | None = None) -> None:
        """Commit in the background, one attempt. The callback learns what became of it; it may be a coroutine function.

        Whoever tries again in the callback must make sure that no newer commit has been made since.
        """
        self._running()
        self._commits.commit_async(offsets, callback)

    async def committed(self, partitions: Partitions) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed; partitions without a commit are left out."""
        self._running()
        return await self._offsets.committed(partitions)

    def _member(self) -> Member | None:
        return self._coordination.member if self._coordination is not None else None

    def group_metadata(self) -> GroupMetadata:
        """Who this member is, for `Producer.send_offsets_to_transaction`."""
        member = self._member()
        if member is None:
            return GroupMetadata(self._offsets.group_id)
        return GroupMetadata(self._offsets.group_id, *member.known_as, self._settings["group_instance_id"])


def _assignors(settings: ConsumerSettings) -> list[Assignor]:
    made: list[Assignor] = []
    for each in settings["partition_assignment_strategy"]:
        if isinstance(each, str):
            if each not in BUILT_IN:
                raise SettingError(
                    f"partition_assignment_strategy knows {', '.join(BUILT_IN)}, not {each!r}; or give an Assignor object"
                )
            made.append(BUILT_IN[each]())
        else:
            made.append(each)
    if not made:
        raise SettingError("partition_assignment_strategy must name at least one assignor")
    return made
