"""Stories of producers and their coordinator, told for both versions of the protocol where they agree."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.model.errors import ErrorCode as E
from ottla.transactions.producer_ids import ProducerIds
from ottla.transactions.requests import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    ProducerIdReply,
    TransactionSettings,
    VerifyPartitions,
)
from ottla.transactions.states import LAST_CLIENT_EPOCH, MAX_PRODUCER_EPOCH

from .imaginary import A0, A1, B0, ImaginaryCoordinator

DAY_MS = 24 * 3600 * 1000


@pytest.fixture(params=[0, 1, 2], ids=["records-v0", "version-1", "version-2"])
def coordinator(request: pytest.FixtureRequest) -> ImaginaryCoordinator:
    return ImaginaryCoordinator(request.param)


@pytest.fixture
def first() -> ImaginaryCoordinator:
    return ImaginaryCoordinator(1)


@pytest.fixture
def second() -> ImaginaryCoordinator:
    return ImaginaryCoordinator(2)


def behind(producer: ProducerIdReply, epochs: int = 1) -> ProducerIdReply:
    return ProducerIdReply(E.NONE, producer.producer_id, producer.producer_epoch - epochs)


def test_a_transaction_goes_from_empty_to_committed(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    assert (producer.error, producer.producer_id, producer.producer_epoch) == (E.NONE, 1000, 0)
    assert coordinator.state() == "Empty"
    assert coordinator.add(producer, A0) == E.NONE
    assert coordinator.add(producer, A1, B0) == E.NONE
    assert coordinator.state() == "Ongoing"
    assert coordinator.end(producer).error == E.NONE
    assert coordinator.state() == "PrepareCommit"
    [markers] = coordinator.markers
    assert (markers.commit, markers.partitions) == (True, {A0, A1, B0})
    coordinator.write_markers()
    assert coordinator.state() == "CompleteCommit"


def test_an_abort_writes_abort_markers(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A0)
    assert coordinator.end(producer, commit=False).error == E.NONE
    assert coordinator.state() == "PrepareAbort"
    assert not coordinator.markers[0].commit
    coordinator.write_markers()
    assert coordinator.state() == "CompleteAbort"


def test_version_1_keeps_its_epoch_and_version_2_bumps_it_at_each_end(
    first: ImaginaryCoordinator, second: ImaginaryCoordinator
) -> None:
    producer = first.init()
    for _ in range(3):
        first.add(producer, A0)
        first.end(producer)
        assert first.markers[0].producer_epoch == producer.producer_epoch
        first.write_markers()
    assert first.shard.transactions["copy"].producer_epoch == 0

    producer = second.init()
    for epoch in range(3):
        assert producer.producer_epoch == epoch
        assert second.add(producer, A0) == E.NONE
        producer = second.end(producer)
        assert second.markers[0].producer_epoch == epoch + 1, "the marker itself carries the bumped epoch"
        second.write_markers()
    assert second.shard.transactions["copy"].producer_epoch == 3


def test_adding_partitions_that_are_there_writes_nothing(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A0, A1)
    written = len(coordinator.log)
    assert coordinator.add(producer, A1) == E.NONE
    assert len(coordinator.log) == written


def test_between_the_decision_and_its_markers_the_client_is_told_to_wait(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A0)
    after = coordinator.end(producer)
    current = after if coordinator.transaction_version == 2 else producer
    assert coordinator.add(current, A0) == E.CONCURRENT_TRANSACTIONS
    assert coordinator.init().error == E.CONCURRENT_TRANSACTIONS
    assert coordinator.end(producer).error == E.CONCURRENT_TRANSACTIONS
    assert coordinator.end(producer, commit=False).error == E.INVALID_TXN_STATE
    coordinator.write_markers()
    assert coordinator.init().error == E.NONE


def test_a_second_producer_fences_the_first(coordinator: ImaginaryCoordinator) -> None:
    older = coordinator.init()
    newer = coordinator.init()
    assert newer.producer_id == older.producer_id
    assert newer.producer_epoch == older.producer_epoch + 1
    assert coordinator.add(older, A0) == E.PRODUCER_FENCED
    assert coordinator.end(older).error == E.PRODUCER_FENCED
    assert coordinator.add(newer, A0) == E.NONE


def test_a_second_producer_aborts_what_the_first_left_open(coordinator: ImaginaryCoordinator) -> None:
    older = coordinator.init()
    coordinator.add(older, A0)
    assert coordinator.init().error == E.CONCURRENT_TRANSACTIONS
    assert coordinator.state() == "PrepareAbort"
    assert coordinator.markers[0].producer_epoch == older.producer_epoch + 1, "the marker fences the older producer"
    coordinator.write_markers()
    newer = coordinator.init()
    assert newer.error == E.NONE
    assert newer.producer_epoch == older.producer_epoch + 2
    assert coordinator.add(older, A0) == E.PRODUCER_FENCED


def test_a_producer_that_takes_too_long_is_aborted_and_fenced(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init(timeout_ms=5_000)
    coordinator.add(producer, A0)
    coordinator.pass_time(5_000)
    assert coordinator.state() == "Ongoing"
    coordinator.pass_time(1)
    assert coordinator.state() == "PrepareAbort"
    coordinator.write_markers()
    assert coordinator.state() == "CompleteAbort"
    assert coordinator.add(producer, A0) == E.PRODUCER_FENCED
    recovered = coordinator.init()
    assert (recovered.error, recovered.producer_epoch) == (E.NONE, producer.producer_epoch + 2)


def test_after_a_time_out_a_version_1_producer_is_fenced_and_a_version_2_commit_finds_it_aborted(
    first: ImaginaryCoordinator, second: ImaginaryCoordinator
) -> None:
    for coordinator, error in ((first, E.PRODUCER_FENCED), (second, E.INVALID_TXN_STATE)):
        producer = coordinator.init(timeout_ms=5_000)
        coordinator.add(producer, A0)
        coordinator.pass_time(6_000)
        coordinator.write_markers()
        assert coordinator.end(producer, commit=True).error == error


def test_a_two_phase_transaction_never_times_out() -> None:
    coordinator = ImaginaryCoordinator(2, TransactionSettings(transaction_two_phase_commit_enable=True))
    producer = coordinator.init(enable_two_phase_commit=True, timeout_ms=0)
    coordinator.add(producer, A0)
    coordinator.pass_time(400 * DAY_MS)
    assert coordinator.state() == "Ongoing"


def test_idle_transactional_ids_are_forgotten_and_ongoing_ones_are_not(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init("idle")
    coordinator.pass_time(7 * DAY_MS - 1)
    busy = coordinator.init("busy", timeout_ms=900_000)
    coordinator.add(busy, A0, name="busy")
    coordinator.pass_time(1)
    assert set(coordinator.shard.transactions) == {"busy"}
    assert coordinator.log[-1][1] is None, "a tombstone"
    assert coordinator.add(producer, A0, name="idle") == E.INVALID_PRODUCER_ID_MAPPING


# Ends that are asked for twice, too late, or in the wrong state ----------------------------------------------------------


def test_a_repeated_end_is_recognised(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A0)
    told = coordinator.end(producer)
    coordinator.write_markers()
    again = coordinator.end(producer)
    assert again.error == E.NONE
    assert (again.producer_id, again.producer_epoch) == (told.producer_id, told.producer_epoch)
    assert coordinator.end(producer, commit=False).error == E.INVALID_TXN_STATE


def test_ending_an_empty_transaction(first: ImaginaryCoordinator, second: ImaginaryCoordinator) -> None:
    producer = first.init()
    assert first.end(producer, commit=True).error == E.INVALID_TXN_STATE
    assert first.end(producer, commit=False).error == E.INVALID_TXN_STATE

    producer = second.init()
    assert second.end(producer, commit=True).error == E.INVALID_TXN_STATE
    bumped = second.end(producer, commit=False)
    assert (bumped.error, bumped.producer_epoch) == (E.NONE, 1)
    assert second.state() == "CompleteAbort"
    assert not second.markers
    assert second.end(producer, commit=False).producer_epoch == 1, "a repeat, one epoch behind"
    assert second.end(bumped, commit=False).producer_epoch == 2, "the next one"
    assert second.end(behind(bumped, 5), commit=False).error == E.PRODUCER_FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_a_version_2_commit_right_after_a_finished_transaction_is_refused(second: ImaginaryCoordinator, commit: bool) -> None:
    producer = second.init()
    second.add(producer, A0)
    producer = second.end(producer, commit)
    second.write_markers()
    assert second.end(producer, commit=True).error == E.INVALID_TXN_STATE


def test_unknown_ids_and_epochs(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    stranger = ProducerIdReply(E.NONE, 4711, 0)
    future = ProducerIdReply(E.NONE, producer.producer_id, 5)
    assert coordinator.add(producer, A0, name="nobody") == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.end(producer, name="nobody").error == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.add(stranger, A0) == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.end(stranger).error == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.add(future, A0) == E.PRODUCER_FENCED
    assert coordinator.end(future).error == E.PRODUCER_FENCED
    assert coordinator.add(producer, A0, name="") == E.INVALID_REQUEST
    assert coordinator.end(producer, name="").error == E.INVALID_REQUEST
    assert len(coordinator.log) == 1, "only the first InitProducerId wrote"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"transactional_id": ""}, E.INVALID_REQUEST),
        ({"timeout_ms": 0}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": -1}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_001}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"expected_producer_id": 5}, E.INVALID_REQUEST),
        ({"expected_producer_epoch": 5}, E.INVALID_REQUEST),
        ({"enable_two_phase_commit": True}, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared_transaction": True}, E.UNSUPPORTED_VERSION),
    ],
)
def test_init_producer_id_refuses_what_makes_no_sense(
    coordinator: ImaginaryCoordinator, changes: dict[str, Any], error: E
) -> None:
    request: dict[str, Any] = {"transactional_id": "copy", "timeout_ms": 60_000} | changes
    assert coordinator.ask(InitProducerId(**request)) == ProducerIdReply(error)
    assert not coordinator.log


# KIP-360: a producer goes on after an error -------------------------------------------------------------------------------


def test_a_producer_that_names_itself_gets_the_next_epoch(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    expected = {"expected_producer_id": producer.producer_id, "expected_producer_epoch": producer.producer_epoch}
    bumped = coordinator.init(**expected)
    assert (bumped.error, bumped.producer_epoch) == (E.NONE, 1)
    assert coordinator.init(**expected) == bumped, "the same request again, because its answer was lost"
    assert coordinator.init(**{**expected, "expected_producer_id": 4711}).error == E.PRODUCER_FENCED
    other = coordinator.init()
    assert other.producer_epoch == 2
    assert coordinator.init(**expected).error == E.PRODUCER_FENCED, "somebody else came in between"


def test_a_producer_that_was_forgotten_may_go_on(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    coordinator.pass_time(8 * DAY_MS)
    assert not coordinator.shard.transactions
    again = coordinator.init(expected_producer_id=producer.producer_id, expected_producer_epoch=producer.producer_epoch)
    assert (again.error, again.producer_epoch) == (E.NONE, 0)
    assert again.producer_id != producer.producer_id


# Epochs run out -----------------------------------------------------------------------------------------------------------


def exhaust(coordinator: ImaginaryCoordinator, epoch: int = LAST_CLIENT_EPOCH) -> ProducerIdReply:
    """The same producer, 32766 bumps later."""
    from dataclasses import replace

    from ottla.transactions.records import TransactionRecord

    coordinator.init()
    aged = replace(coordinator.shard.transactions["copy"], producer_epoch=epoch)
    coordinator.shard.apply(TransactionRecord("copy", aged))
    return ProducerIdReply(E.NONE, aged.producer_id, epoch)


def test_when_epochs_run_out_a_new_producer_id_follows(coordinator: ImaginaryCoordinator) -> None:
    old = exhaust(coordinator)
    new = coordinator.init()
    assert (new.error, new.producer_epoch) == (E.NONE, 0)
    assert new.producer_id == old.producer_id + 1
    assert coordinator.add(old, A0) == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.add(new, A0) == E.NONE


def test_a_rotation_whose_answer_was_lost_can_be_asked_for_again(coordinator: ImaginaryCoordinator) -> None:
    old = exhaust(coordinator)
    expected = {"expected_producer_id": old.producer_id, "expected_producer_epoch": old.producer_epoch}
    new = coordinator.init(**expected)
    assert new.producer_epoch == 0
    assert coordinator.init(**expected) == new


def test_a_version_2_end_at_the_last_epoch_rotates_after_the_markers(second: ImaginaryCoordinator) -> None:
    old = exhaust(second)
    second.add(old, A0)
    new = second.end(old)
    assert (new.producer_id, new.producer_epoch) == (old.producer_id + 1, 0), "the client may know at once"
    [markers] = second.markers
    assert (markers.producer_id, markers.producer_epoch) == (old.producer_id, MAX_PRODUCER_EPOCH)
    assert second.shard.transactions["copy"].producer_id == old.producer_id
    assert second.end(old).error == E.CONCURRENT_TRANSACTIONS
    second.write_markers()
    assert second.shard.transactions["copy"].producer_id == new.producer_id
    assert second.end(old) == new, "the retry that missed the rotation"
    assert second.end(old, commit=False).error == E.INVALID_TXN_STATE
    assert second.add(new, A0) == E.NONE


def test_fencing_at_the_last_client_epoch_still_has_one_epoch_left(coordinator: ImaginaryCoordinator) -> None:
    old = exhaust(coordinator)
    coordinator.add(old, A0)
    coordinator.pass_time(100_000)
    assert coordinator.markers[0].producer_epoch == MAX_PRODUCER_EPOCH
    coordinator.write_markers()
    new = coordinator.init()
    assert new.error == E.NONE
    assert new.producer_id > old.producer_id


def test_without_producer_ids_the_client_is_told_to_come_back(coordinator: ImaginaryCoordinator) -> None:
    coordinator.producer_ids = ProducerIds()
    assert coordinator.init().error == E.COORDINATOR_LOAD_IN_PROGRESS
    assert not coordinator.log


# Verification (KIP-890 part 1) --------------------------------------------------------------------------------------------


def test_verification_says_which_partitions_are_part_of_the_transaction(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A0)
    asked = frozenset({A0, B0})

    def verify(epoch: int = 0, producer_id: int = producer.producer_id, name: str = "copy") -> dict[Any, E]:
        verdict: dict[Any, E] = coordinator.ask(VerifyPartitions(name, producer_id, epoch, asked))
        return verdict

    assert verify() == {A0: E.NONE, B0: E.TRANSACTION_ABORTABLE}
    assert set(verify(epoch=1).values()) == {E.PRODUCER_FENCED}
    assert set(verify(producer_id=3).values()) == {E.INVALID_PRODUCER_ID_MAPPING}
    assert set(verify(name="nobody").values()) == {E.INVALID_PRODUCER_ID_MAPPING}
    assert set(verify(name="").values()) == {E.INVALID_REQUEST}
    after = coordinator.end(producer)
    epoch = after.producer_epoch if coordinator.transaction_version == 2 else 0
    assert set(verify(epoch).values()) == {E.CONCURRENT_TRANSACTIONS}
    coordinator.write_markers()
    assert set(verify(epoch).values()) == {E.TRANSACTION_ABORTABLE}


# Loading ------------------------------------------------------------------------------------------------------------------


def test_a_decided_transaction_is_finished_by_the_next_coordinator(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A0, B0)
    coordinator.end(producer)
    next_coordinator = coordinator.reloaded()
    assert next_coordinator.markers == coordinator.markers
    next_coordinator.write_markers()
    assert next_coordinator.state() == "CompleteCommit"


def test_late_news_of_markers_does_no_harm(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A0)
    coordinator.end(producer)
    [markers] = coordinator.markers
    coordinator.write_markers()
    news = MarkersWritten("copy", markers.producer_id, markers.producer_epoch)
    assert coordinator.tell(news) == 0
    current = coordinator.shard.transactions["copy"]
    coordinator.add(ProducerIdReply(E.NONE, current.producer_id, current.producer_epoch), A0)
    assert coordinator.tell(news) == 0
    assert coordinator.state() == "Ongoing"
    assert coordinator.tell(MarkersWritten("nobody", 1, 1)) == 0


# Questions ----------------------------------------------------------------------------------------------------------------


def test_describe_tells_all_that_is_known(coordinator: ImaginaryCoordinator) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A1, A0, B0)
    told = coordinator.ask(DescribeTransaction("copy"))
    assert (told.error_code, told.transaction_state, told.producer_id) == (0, "Ongoing", producer.producer_id)
    assert told.transaction_start_time_ms == coordinator.now_ms
    assert [(topic.topic, topic.partitions) for topic in told.topics] == [("a", [0, 1]), ("b", [0])]
    assert coordinator.ask(DescribeTransaction("nobody")).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    assert coordinator.ask(DescribeTransaction("")).error_code == E.INVALID_REQUEST


def test_list_filters(coordinator: ImaginaryCoordinator) -> None:
    for name in ("etl-1", "etl-2", "web"):
        coordinator.init(name)
    producer = coordinator.init("etl-2")
    coordinator.add(producer, A0, name="etl-2")
    coordinator.now_ms += 10

    def names(**filters: Any) -> list[str]:
        return sorted(each.transactional_id for each in coordinator.ask(ListTransactions(**filters)).transaction_states)

    assert names() == ["etl-1", "etl-2", "web"]
    assert names(state_filters=("Ongoing",)) == ["etl-2"]
    assert names(state_filters=("Ongoing", "Empty")) == ["etl-1", "etl-2", "web"]
    assert names(producer_id_filters=(producer.producer_id,)) == ["etl-2"]
    assert names(duration_filter_ms=9, state_filters=("Ongoing",)) == ["etl-2"]
    assert names(duration_filter_ms=10, state_filters=("Ongoing",)) == []
    assert names(transactional_id_pattern="etl-.*") == ["etl-1", "etl-2"]
    assert names(transactional_id_pattern="etl") == [], "the whole id must match"
    unknown = coordinator.ask(ListTransactions(state_filters=("Sleeping",)))
    assert unknown.unknown_state_filters == ["Sleeping"]
    assert unknown.transaction_states == []
    assert coordinator.ask(ListTransactions(transactional_id_pattern="(")).error_code == E.INVALID_REGULAR_EXPRESSION


def test_a_version_1_client_on_a_version_2_cluster_keeps_its_epoch(second: ImaginaryCoordinator) -> None:
    producer = second.init()
    for _ in range(2):
        assert second.ask(AddPartitions("copy", producer.producer_id, 0, frozenset({A0}))) == E.NONE
        assert second.ask(EndTransaction("copy", producer.producer_id, 0, True)).error == E.NONE
        second.write_markers()
        assert second.shard.transactions["copy"].producer_epoch == 0
