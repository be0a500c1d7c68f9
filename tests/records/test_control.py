"""Control records, and which batches a reader of committed data sees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.errors import ApiError
from ottla.records.builder import build_batch
from ottla.records.control import (
    AbortedTransaction,
    ControlType,
    EndTransaction,
    control_batch,
    control_key,
    end_transaction_batch,
    read_control_type,
    read_end_transaction,
    visible_batches,
)
from ottla.records.record import Record, decode_batch


def test_types_are_read_as_far_as_they_are_known() -> None:
    for control_type in ControlType:
        if control_type is not ControlType.UNKNOWN:
            assert read_control_type(control_key(control_type)) is control_type
    assert read_control_type(b"\x00\x01\x00\x63 and more") is ControlType.UNKNOWN
    for broken in (None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x01"):
        with pytest.raises(ApiError):
            read_control_type(broken)


def test_a_leader_change_ends_no_transaction() -> None:
    [record] = decode_batch(control_batch(ControlType.LEADER_CHANGE, b"...", base_offset=4, timestamp=1))
    assert read_end_transaction(record) is None
    assert (record.offset, record.value) == (4, b"...")


@pytest.mark.parametrize("value", [None, b"", b"\x00\x00\x00\x00\x00", b"\xff\xff\x00\x00\x00\x01"])
def test_a_marker_that_cannot_be_read_is_an_error(value: bytes | None) -> None:
    with pytest.raises(ApiError):
        read_end_transaction(Record(0, 0, control_key(ControlType.COMMIT), value))


steps = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["write", "write", "commit", "abort", "plain"])), max_size=30)


@given(steps)
def test_readers_of_committed_data_see_what_was_not_aborted(plan: list[tuple[int, str]]) -> None:
    """The log is written batch by batch, and beside it the dumb model: each transaction's batches kept until its end is known."""
    log, offset = b"", 0
    open_since: dict[int, int] = {}
    pending: dict[int, list[int]] = {}
    expected: set[int] = set()
    aborted: list[AbortedTransaction] = []
    for producer, step in plan:
        identity = {"producer_id": producer, "producer_epoch": 0}
        if step in ("commit", "abort"):
            commit = step == "commit"
            log += end_transaction_batch(EndTransaction(commit, 0), timestamp=0, base_offset=offset, **identity)
            if commit:
                expected.update(pending.pop(producer, []))
            elif producer in open_since:
                aborted.append(AbortedTransaction(producer, open_since[producer]))
                pending.pop(producer)
            open_since.pop(producer, None)
            offset += 1
            continue
        records = [Record(offset, 0, None, b"x"), Record(offset + 1, 0, None, b"y")]
        if step == "write":
            log += build_batch(records, transactional=True, base_sequence=0, **identity)
            open_since.setdefault(producer, offset)
            pending.setdefault(producer, []).append(offset)
        else:
            log += build_batch(records)
            expected.add(offset)
        offset += 2
    still_open = {first for batches in pending.values() for first in batches}
    seen = {header.base_offset for _, header in visible_batches(log, aborted)}
    assert seen == expected | still_open  # the last stable offset keeps the open ones from a real reader
