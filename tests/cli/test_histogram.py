"""The histogram of `ottla perf`, against the sorted list that it stands for."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.histogram import GROWTH, Histogram, bar, sparkline

latencies = st.lists(st.floats(0.002, 60_000), min_size=1, max_size=300)


@given(latencies, st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_percentiles_are_those_of_the_samples_to_within_a_bucket(samples: list[float], percent: float) -> None:
    histogram = Histogram()
    for sample in samples:
        histogram.add(sample)
    ordered = sorted(samples)
    exact = next(value for rank, value in enumerate(ordered, 1) if rank >= len(ordered) * percent / 100)
    assert exact / GROWTH * 0.999 <= histogram.percentile(percent) <= exact * GROWTH * 1.001


@given(latencies)
def test_every_sample_is_in_one_drawn_row(samples: list[float]) -> None:
    histogram = Histogram()
    for sample in samples:
        histogram.add(sample)
    rows = histogram.rows()
    assert sum(count for _, _, count in rows) == len(samples)
    assert all(abs(end - start_of_next) < 1e-6 * end for (_, end, _), (start_of_next, _, _) in itertools.pairwise(rows))
    assert len(histogram.draw()) == 12


def test_bars_have_one_width_and_show_the_smallest_share() -> None:
    assert bar(1.0, 10) == "█" * 10
    assert bar(0.0, 10) == " " * 10
    assert bar(0.0001, 10).strip()
    assert {len(bar(share / 100, 10)) for share in range(101)} == {10}


def test_a_sparkline_has_a_character_a_value() -> None:
    assert sparkline([0, 1, 2, 4]) == "▁▂▄█"
    assert sparkline([]) == ""
