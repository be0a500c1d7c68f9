"""Random producers against one coordinator: whatever they do, in whatever order, its laws hold and its log tells all."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.model.errors import ErrorCode as E
from ottla.model.ids import TopicPartition
from ottla.transactions.records import decode_record
from ottla.transactions.requests import (
    MarkersWritten,
    ProducerIdReply,
)
from ottla.transactions.states import VALID_PREVIOUS, TransactionState

from .imaginary import ImaginaryCoordinator

NAMES = ["one", "two"]
names = st.sampled_from(NAMES)
members = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 1))


class Producers(RuleBasedStateMachine):
    """`held` are the identities ever given to somebody, newest last: all but the last must stay fenced for ever."""

    @initialize(version=st.sampled_from([0, 1, 2]))
    def start(self, version: int) -> None:
        self.coordinator = ImaginaryCoordinator(version)
        self.held: dict[str, list[ProducerIdReply]] = {name: [] for name in NAMES}

    @rule(name=names)
    def init(self, name: str) -> None:
        reply = self.coordinator.init(name)
        assert reply.error in (E.NONE, E.CONCURRENT_TRANSACTIONS)
        if reply.error == E.NONE:
            self.held[name].append(reply)

    @rule(name=names, back=st.integers(1, 3), member=members)
    def add(self, name: str, back: int, member: TopicPartition) -> None:
        if len(self.held[name]) < back:
            return
        error = self.coordinator.add(self.held[name][-back], member, name=name)
        if back > 1:
            assert error in (E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING)

    @rule(name=names, back=st.integers(1, 3), commit=st.booleans())
    def end(self, name: str, back: int, commit: bool) -> None:
        if len(self.held[name]) < back:
            return
        producer = self.held[name][-back]
        reply = self.coordinator.end(producer, commit, name)
        if reply.error == E.NONE and self.coordinator.transaction_version == 2 and reply not in self.held[name]:
            self.held[name].append(reply)

    @rule(milliseconds=st.sampled_from([1, 70_000, 8 * 24 * 3600 * 1000]))
    def wait(self, milliseconds: int) -> None:
        self.coordinator.pass_time(milliseconds)

    @rule()
    def write_one_marker(self) -> None:
        if self.coordinator.markers:
            done = self.coordinator.markers.pop(0)
            self.coordinator.tell(MarkersWritten(done.transactional_id, done.producer_id, done.producer_epoch))

    @rule()
    def crash(self) -> None:
        before = self.coordinator.durable_state()
        self.coordinator = self.coordinator.reloaded()
        assert self.coordinator.durable_state() == before, "the log tells all"

    @invariant()
    def every_decided_transaction_has_its_markers_on_the_way(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        waiting = {each.transactional_id for each in self.coordinator.markers}
        decided = {
            name
            for name, each in self.coordinator.shard.transactions.items()
            if each.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
        }
        assert decided <= waiting

    @invariant()
    def the_log_follows_the_table_of_states(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        states: dict[str, TransactionState] = {}
        identities: dict[str, tuple[int, int]] = {}
        for key, value in self.coordinator.log:
            record = decode_record(key, value)
            assert record is not None
            name, after = record.transactional_id, record.transaction
            if after is None:
                assert states[name] in VALID_PREVIOUS[TransactionState.DEAD]
                del states[name], identities[name]
                continue
            assert states.get(name, TransactionState.EMPTY) in VALID_PREVIOUS[after.state]
            identity = (after.producer_id, after.producer_epoch)
            assert identities.get(name, (-1, -1)) <= identity, "epochs and producer ids never go back"
            states[name], identities[name] = after.state, identity


Producers.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestProducers = Producers.TestCase
