"""The comparison of logs against a dumb twin that looks at every record."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.raft.log import Fit, LogView, OffsetAndEpoch
from ottla.raft.voters import majority_offset

EXAMPLES = settings(max_examples=300, deadline=None)
Epochs = list[int]  # the epoch of each record
logs = st.lists(st.integers(1, 6), max_size=12).map(sorted)


def view(epochs: Epochs) -> LogView:
    starts = [(epoch, offset) for offset, epoch in enumerate(epochs) if offset == 0 or epochs[offset - 1] != epoch]
    return LogView(end_offset=len(epochs), epochs=starts)


@st.composite
def related_logs(draw: st.DrawFn) -> tuple[Epochs, Epochs]:
    """A leader's log and a follower's that shares a prefix, as Raft's log matching has it: one writer for each epoch."""
    common = draw(logs)
    last = common[-1] if common else 0
    mine = sorted(draw(st.lists(st.sampled_from([last + 2, last + 4]), max_size=5)))
    theirs = sorted(draw(st.lists(st.sampled_from([last + 1, last + 3]), max_size=5)))
    if last and draw(st.booleans()):
        more = [last] * draw(st.integers(0, 3))
        return common + more + mine, common + theirs
    return common + mine, common + theirs


def common_length(one: Epochs, other: Epochs) -> int:
    return next(
        (index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


@EXAMPLES
@given(related_logs())
def test_truncation_ends_at_a_common_prefix_and_never_cuts_into_it(pair: tuple[Epochs, Epochs]) -> None:
    leader, follower = pair
    here = view(leader)
    for _ in range(20):
        mine = view(follower)
        fit, place = here.fit(mine.end_offset, mine.last_epoch)
        if fit is Fit.VALID:
            break
        cut = mine.truncation_point(place)
        assert common_length(leader, follower) <= cut < len(follower)
        follower = follower[:cut]
    assert follower == leader[: len(follower)]


@EXAMPLES
@given(logs, st.integers(0, 7))
def test_an_epoch_ends_after_its_last_record(epochs: Epochs, epoch: int) -> None:
    end = view(epochs).epoch_end(epoch)
    below = [number for number in epochs if number <= epoch]
    if below:
        assert end == OffsetAndEpoch(len(below), below[-1])
    else:
        assert end == OffsetAndEpoch(0, epoch)


@EXAMPLES
@given(logs, st.integers(0, 12), logs)
def test_truncating_and_appending_is_the_same_as_starting_from_the_result(epochs: Epochs, cut: int, more: Epochs) -> None:
    kept = epochs[: min(cut, len(epochs))]
    log = view(epochs)
    log.truncate(len(kept))
    added = [epoch + 6 for epoch in more]
    fresh = view(kept + added)
    log.append(len(kept + added), [row for row in fresh.epochs if row.start_offset >= len(kept)])
    assert (log.epochs, log.end) == (fresh.epochs, fresh.end)


@EXAMPLES
@given(st.lists(st.integers(0, 9), min_size=1, max_size=7))
def test_the_majority_offset_is_the_greatest_that_a_majority_has(offsets: list[int]) -> None:
    majority = len(offsets) // 2 + 1
    assert majority_offset(offsets) == max(
        offset for offset in range(10) if sum(other >= offset for other in offsets) >= majority
    )


@EXAMPLES
@given(logs, logs)
def test_of_two_logs_the_later_epoch_wins_and_then_the_longer(one: Epochs, other: Epochs) -> None:
    wins = (other[-1] if other else 0, len(other)) >= (one[-1] if one else 0, len(one))
    assert view(one).is_no_longer_than(view(other).end) is wins


def test_a_flush_that_began_before_a_truncation_does_not_count() -> None:
    log = view([1, 1, 1])
    log.append(5, ())
    generation = log.generation
    log.truncate(2)
    log.append(4, [(2, 2)])
    log.flush(5, generation)
    assert log.flushed_offset == 2
    log.flush(4, log.generation)
    assert log.flushed_offset == 4


def test_a_log_that_begins_with_a_snapshot_sends_those_who_need_more_to_the_snapshot() -> None:
    log = view([1, 1, 2, 2, 3, 3])
    log.snapshot = OffsetAndEpoch(4, 2)
    log.move_start(4)
    assert log.fit(0, 0) == (Fit.SNAPSHOT, OffsetAndEpoch(4, 2))
    assert log.fit(3, 2) == (Fit.SNAPSHOT, OffsetAndEpoch(4, 2))
    assert log.fit(4, 2) == (Fit.VALID, OffsetAndEpoch(4, 2))
    assert log.fit(4, 1) == (Fit.SNAPSHOT, OffsetAndEpoch(4, 2))
    assert log.fit(6, 3) == (Fit.VALID, OffsetAndEpoch(6, 3))
    assert log.fit(7, 3) == (Fit.DIVERGING, OffsetAndEpoch(6, 3))
    assert log.fit(5, 2) == (Fit.DIVERGING, OffsetAndEpoch(4, 2))
