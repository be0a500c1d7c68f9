"""The accumulator against a dumb broker: whatever is lost, refused, repeated or late, the log holds what was acknowledged, once, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.client.accumulator import BATCH_OVERHEAD, NO_IDENTITY, Accumulator, Batch, Identity, Limits
from ottla.client.encoding import encode_batch, encode_rows, row_size
from ottla.model.ids import TopicPartition
from ottla.records.builder import BatchBuilder, encode_record

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = Identity(7, 0)


def limits(**changes) -> Limits:
    defaults = {
        "batch_size": 1000,
        "linger_ms": 10,
        "buffer_memory": 10_000,
        "delivery_timeout_ms": 1000,
        "max_request_size": 5000,
        "idempotent": True,
        "mute": False,
    }
    return Limits(**(defaults | changes))


def put(accumulator: Accumulator, value: bytes, now: float = 0, partition: TopicPartition = P0) -> Batch | None:
    row = (0, None, value, ())
    return accumulator.append(partition, row, row_size(row), now)


def acknowledge_one(accumulator: Accumulator) -> None:
    """The broker knows this producer from now on."""
    put(accumulator, b"first")
    [first] = accumulator.drain([P0], ME, 100, route="old leader")
    accumulator.acknowledge(first, 0, -1)


def test_batch_waits_for_linger_and_not_longer():
    accumulator = Accumulator(limits())
    put(accumulator, b"a", 5)
    assert list(accumulator.ready(ME, 14)) == []
    assert accumulator.next_event_ms(5) == 15
    assert list(accumulator.ready(ME, 15)) == [P0]


def test_full_batch_does_not_wait():
    accumulator = Accumulator(limits())
    first = put(accumulator, bytes(900))
    second = put(accumulator, bytes(900))
    assert first is not second
    assert list(accumulator.ready(ME, 0)) == [P0]


def test_flush_and_pressure_make_everything_ready():
    accumulator = Accumulator(limits())
    put(accumulator, b"a")
    accumulator.flushing = 1
    assert list(accumulator.ready(ME, 0)) == [P0]
    accumulator.flushing, accumulator.pressed = 0, True
    assert list(accumulator.ready(ME, 0)) == [P0]


def test_memory_is_never_exceeded_and_comes_back():
    accumulator = Accumulator(limits(buffer_memory=2000))
    batches = []
    while (batch := put(accumulator, bytes(300))) is not None:
        batches.append(batch)
    assert accumulator.used <= 2000
    drained = accumulator.drain([P0], ME, 100)
    accumulator.acknowledge(drained[0], 0, -1)
    assert put(accumulator, bytes(300)) is not None
    accumulator.abort_waiting(lambda batch: ValueError())
    assert accumulator.used == 0


def test_record_larger_than_a_batch_goes_alone():
    accumulator = Accumulator(limits())
    put(accumulator, b"small")
    big = put(accumulator, bytes(3000))
    after = put(accumulator, b"small")
    assert big.count == 1
    assert after is not big


def test_nothing_is_drained_before_the_producer_has_an_id():
    accumulator = Accumulator(limits(linger_ms=0))
    put(accumulator, b"a")
    assert list(accumulator.ready(NO_IDENTITY, 0)) == []


def test_at_most_five_batches_of_a_partition_are_unresolved():
    accumulator = Accumulator(limits(linger_ms=0, buffer_memory=10**6))
    acknowledge_one(accumulator)
    for _ in range(7):
        put(accumulator, bytes(900))
    drained = [batch for _ in range(9) for batch in accumulator.drain([P0], ME, 0)]
    assert [batch.sequence for batch in drained] == [1, 2, 3, 4, 5]


def test_request_is_not_larger_than_allowed_but_holds_at_least_one_batch():
    accumulator = Accumulator(limits(linger_ms=0, max_request_size=1000))
    put(accumulator, bytes(900), partition=P0)
    put(accumulator, bytes(900), partition=P1)
    assert [batch.partition for batch in accumulator.drain([P0, P1], ME, 0)] == [P0]


def test_one_in_flight_without_idempotence_keeps_order():
    accumulator = Accumulator(limits(idempotent=False, mute=True, linger_ms=0))
    first, second = put(accumulator, bytes(900)), put(accumulator, bytes(900))
    assert accumulator.drain([P0], NO_IDENTITY, 0) == [first]
    assert accumulator.drain([P0], NO_IDENTITY, 0) == []
    accumulator.retry(first, 50)
    assert accumulator.drain([P0], NO_IDENTITY, 10) == []
    assert accumulator.drain([P0], NO_IDENTITY, 60) == [first]
    accumulator.acknowledge(first, 0, -1)
    assert accumulator.drain([P0], NO_IDENTITY, 60) == [second]


def test_what_waits_too_long_is_given_up():
    accumulator = Accumulator(limits())
    batch = put(accumulator, b"a", 0)
    assert accumulator.expire(999, lambda batch: TimeoutError()) == []
    assert accumulator.expire(1000, lambda batch: TimeoutError()) == [batch]
    assert isinstance(batch.error, TimeoutError)
    assert not accumulator.needs_new_epoch()  # it was never sent


def test_given_up_after_a_doubtful_attempt_asks_for_a_new_epoch():
    accumulator = Accumulator(limits(linger_ms=0))
    batch = put(accumulator, b"a", 0)
    accumulator.drain([P0], ME, 0)
    accumulator.retry(batch, 2000)
    accumulator.expire(1500, lambda batch: TimeoutError())
    later = put(accumulator, b"b", 1500)
    assert accumulator.drain([P0], ME, 1600) == []  # the count is in doubt
    assert accumulator.needs_new_epoch()
    accumulator.new_epoch()
    assert accumulator.drain([P0], Identity(7, 1), 1600) == [later]
    assert (later.identity.epoch, later.sequence) == (1, 0)


def test_refused_batch_leaves_no_gap():
    accumulator = Accumulator(limits(linger_ms=0, buffer_memory=10**6))
    acknowledge_one(accumulator)
    first, second = put(accumulator, bytes(900)), put(accumulator, bytes(900))
    accumulator.drain([P0], ME, 0)
    accumulator.drain([P0], ME, 0)
    accumulator.fail(first, ValueError(), was_not_written=True)
    assert accumulator.is_out_of_order_passing(second)  # it is under way with the old number
    accumulator.retry(second, 0)
    assert accumulator.drain([P0], ME, 0) == [second]
    assert second.sequence == 1
    assert not accumulator.is_out_of_order_passing(second)


def test_batch_too_large_is_cut_and_keeps_its_sequences():
    accumulator = Accumulator(limits(linger_ms=0, batch_size=5000))
    batch = None
    for _ in range(10):
        batch = put(accumulator, bytes(100))
    accumulator.drain([P0], ME, 0)
    used = accumulator.used
    pieces = accumulator.split(batch, 500)
    assert sum(piece.count for piece in pieces) == 10
    assert [piece.sequence for piece in pieces] == [first for first, _ in batch.pieces]
    for piece in pieces:
        assert accumulator.drain([P0], ME, 0) == [piece]
        accumulator.acknowledge(piece, 0, -1)
    assert accumulator.used == 0
    assert used > 0
    single = put(accumulator, b"x")
    accumulator.drain([P0], ME, 100)
    assert accumulator.split(single, 1) is None


rows = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.none() | st.binary(max_size=20) | st.just(bytes(5000)),
        st.none() | st.binary(max_size=20) | st.just(bytes(200)),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=30,
)


@given(rows)
def test_tight_loop_makes_the_bytes_of_the_builder(rows):
    base = rows[0][0]
    assert encode_rows(rows) == b"".join(
        encode_record(delta, time - base, key, value, headers) for delta, (time, key, value, headers) in enumerate(rows)
    )
    assert all(len(encode_record(100_000, 2**40, *row[1:])) <= row_size(row) for row in rows)
    batch, builder = Batch(P0, 0), BatchBuilder()
    batch.rows, batch.identity, batch.sequence = rows, ME, 3
    for row in rows:
        builder.append(*row)
    assert encode_batch(batch, 0, None, True) == builder.build(
        producer_id=7, producer_epoch=0, base_sequence=3, transactional=True
    )


@dataclass
class DumbBroker:
    """One partition: the idempotence rules of a Kafka broker, and the values it took."""

    log: list[bytes] = field(default_factory=list)
    epoch: int = -1
    next_sequence: int = 0
    recent: list[tuple[int, int, int]] = field(default_factory=list)

    def produce(self, epoch: int, sequence: int, values: list[bytes]) -> str:
        if epoch < self.epoch:
            return "fenced"
        if (epoch, sequence, len(values)) in self.recent:
            return "ok"
        expected = self.next_sequence if epoch == self.epoch else 0
        if sequence != expected and self.epoch >= 0:  # who knows nothing of a producer takes any first sequence
            return "out of order"
        self.log += values
        self.epoch, self.next_sequence = epoch, sequence + len(values)
        self.recent = [*self.recent, (epoch, sequence, len(values))][-5:]
        return "ok"

    def is_past(self, epoch: int, last_sequence: int) -> bool:
        """What DescribeProducers tells: where the producer is, and not what came before."""
        return epoch == self.epoch and self.next_sequence > last_sequence


class Faults(RuleBasedStateMachine):
    """Requests travel in order on a connection; answers get lost, brokers refuse, forget and are not ready yet, batches expire."""

    @initialize()
    def start(self):
        self.now = 0.0
        self.accumulator = Accumulator(limits(linger_ms=0, batch_size=200, buffer_memory=3000))
        self.identity = ME
        self.broker = DumbBroker()
        self.under_way: list[tuple[Batch, int, int]] = []
        self.appended: list[bytes] = []
        self.batches: list[Batch] = []

    @rule()
    def append(self):
        value = b"%06d" % len(self.appended)
        batch = put(self.accumulator, value, self.now)
        if batch is not None:
            self.appended.append(value)
            if batch not in self.batches:
                self.batches.append(batch)

    @rule()
    def drain(self):
        if self.accumulator.needs_new_epoch():
            self.identity = Identity(7, self.identity.epoch + 1)
            self.accumulator.new_epoch()
        for batch in self.accumulator.drain(
            [P0] if list(self.accumulator.ready(self.identity, self.now)) else [], self.identity, self.now
        ):
            self.under_way.append((batch, batch.identity.epoch, batch.sequence))

    def take(self):
        batch, epoch, sequence = self.under_way.pop(0)
        return batch, lambda: self.broker.produce(epoch, sequence, [row[2] for row in batch.rows])

    @precondition(lambda self: self.under_way)
    @rule()
    def answer(self):
        batch, produce = self.take()
        outcome = produce()
        if outcome == "ok":
            self.accumulator.acknowledge(batch, 0, -1)
        elif outcome == "out of order" and self.accumulator.is_out_of_order_passing(batch):
            self.accumulator.retry(batch, self.now)
        elif batch.doubtful and self.broker.is_past(batch.identity.epoch, batch.sequence + batch.count - 1):
            self.accumulator.acknowledge(batch, -1, -1)  # as the sender settles it
        else:
            self.accumulator.fail(batch, ValueError(outcome))

    @precondition(lambda self: self.under_way)
    @rule()
    def lose_the_answer(self):
        batch, produce = self.take()
        produce()
        batch.doubtful = True
        self.accumulator.retry(batch, self.now)

    @precondition(lambda self: self.under_way)
    @rule()
    def cut_the_connection(self):
        """Nothing that is under way arrives."""
        lost, self.under_way = self.under_way, []
        for batch, _, _ in lost:
            batch.doubtful = True
            self.accumulator.retry(batch, self.now)

    @precondition(lambda self: self.under_way)
    @rule()
    def refuse_for_now(self):
        """It does not know yet that it leads this partition, or too few replicas are in sync: nothing is written."""
        batch, _ = self.take()
        self.accumulator.retry(batch, self.now)

    @rule()
    def restart_the_broker(self):
        """It remembers the last batch only."""
        self.broker.recent = self.broker.recent[-1:]

    @precondition(lambda self: self.under_way)
    @rule()
    def refuse(self):
        batch, _ = self.take()
        self.accumulator.fail(batch, ValueError("too large"), was_not_written=True)

    @rule(elapsed=st.sampled_from([1, 100, 600]))
    def time_passes(self, elapsed):
        self.now += elapsed
        self.accumulator.expire(self.now, lambda batch: TimeoutError())

    @invariant()
    def order_holds_and_nothing_is_there_twice(self):
        if hasattr(self, "broker"):
            assert self.broker.log == sorted(set(self.broker.log))

    @invariant()
    def what_was_acknowledged_is_in_the_log(self):
        for batch in getattr(self, "batches", ()):
            if batch.is_done and batch.error is None:
                assert all(row[2] in self.broker.log for row in batch.rows)

    @invariant()
    def memory_is_within_its_limit(self):
        if hasattr(self, "accumulator"):
            assert 0 <= self.accumulator.used <= 3000
            assert self.accumulator.used == sum(batch.size for batch in self.accumulator.incomplete())

    def teardown(self):
        if not hasattr(self, "broker"):
            return
        for _ in range(300):  # once the faults end, everything ends
            self.drain()
            while self.under_way:
                self.answer()
        assert not self.accumulator.has_incomplete
        assert self.accumulator.used == 0


TestFaults = Faults.TestCase


def test_overhead_is_a_batch_header():
    from ottla.records.batch import HEADER_SIZE

    assert BATCH_OVERHEAD == HEADER_SIZE


def test_unknown_order_is_not_hidden():
    """A batch that is first in line and still out of order has truly lost its place."""
    accumulator = Accumulator(limits(linger_ms=0))
    batch = put(accumulator, b"a")
    accumulator.drain([P0], ME, 0)
    assert not accumulator.is_out_of_order_passing(batch)
    with pytest.raises(KeyError):
        accumulator.acknowledge(Batch(P1, 0), 0, -1)


def test_what_was_never_sent_waits_for_what_went_to_another_broker():
    """Found by the simulator, seed 413: the leader moved while batches were under way, a later one reached the new leader first, which
    knew nothing of the producer and took it, and the earlier ones, refused as out of order, were taken for written."""
    accumulator = Accumulator(limits())
    acknowledge_one(accumulator)
    put(accumulator, bytes(900))
    [first] = accumulator.drain([P0], ME, 20, route="old leader")
    put(accumulator, bytes(900))
    assert accumulator.drain([P0], ME, 40, route="new leader") == []
    accumulator.retry(first, 40)
    assert accumulator.drain([P0], ME, 40, route="new leader") == [first]
    [second] = accumulator.drain([P0], ME, 60, route="new leader")
    assert (first.sequence, second.sequence) == (1, 2)


def test_nothing_follows_a_producers_first_batch_until_that_is_acknowledged():
    """Found by the simulator, seed 244 of the focus replication: a leader that had just begun refused the first batches of a producer and
    took the fifth. It knew nothing of the producer, so that was its first; the earlier ones were refused as out of order, and the one
    of which an answer had been lost was taken for written."""
    accumulator = Accumulator(limits(linger_ms=0))
    for _ in range(3):
        put(accumulator, bytes(900))
    [first] = accumulator.drain([P0], ME, 0)
    assert list(accumulator.ready(ME, 0)) == []
    accumulator.retry(first, 10)
    assert accumulator.drain([P0], ME, 10) == [first]
    assert accumulator.drain([P0], ME, 10) == []
    accumulator.acknowledge(first, 0, -1)
    [second] = accumulator.drain([P0], ME, 10)
    [third] = accumulator.drain([P0], ME, 10)
    assert (second.sequence, third.sequence) == (1, 2)


def test_a_new_epoch_begins_with_one_batch_again():
    accumulator = Accumulator(limits(linger_ms=0))
    acknowledge_one(accumulator)
    for _ in range(2):
        put(accumulator, bytes(900))
    bumped = Identity(7, 1)
    [first] = accumulator.drain([P0], bumped, 0)
    assert accumulator.drain([P0], bumped, 0) == []
    accumulator.acknowledge(first, 0, -1)
    [second] = accumulator.drain([P0], bumped, 0)
    assert (first.sequence, second.sequence) == (0, 1)
