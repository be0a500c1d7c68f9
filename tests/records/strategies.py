"""Records as Hypothesis draws them, and batches of them."""

from __future__ import annotations

from hypothesis import strategies as st

from ottla.records.record import Record

header_lists = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=200)), max_size=4).map(tuple)
# Long ones are of zeros, or of bytes of which no two in a row are alike.
long_payloads = st.builds(
    lambda first, size: bytes(number % 251 for number in range(first, first + size)), st.integers(0, 250), st.integers(0, 400)
)
payloads = st.none() | st.binary(max_size=20) | st.integers(0, 400).map(lambda size: bytes(size)) | long_payloads
timestamps = st.integers(-1, 2**45) | st.just(-1)


@st.composite
def record_lists(draw: st.DrawFn, contiguous: bool = False, max_size: int = 12) -> list[Record]:
    """At least one record, with growing offsets."""
    offset = draw(st.integers(0, 2**40))
    records = []
    for _ in range(draw(st.integers(1, max_size))):
        records.append(Record(offset, draw(timestamps), draw(payloads), draw(payloads), draw(header_lists)))
        offset += 1 if contiguous else draw(st.integers(1, 300))
    return records
