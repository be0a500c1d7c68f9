"""Bytes from many places laid behind one another, in one pass over them: how `column_encoder` makes batches.

In: *parts*, each with a piece of bytes for every row, in the order in which the pieces of a row shall stand. Out: one buffer with
the pieces of the first row, then those of the second…, and where each row begins.

A part is either `Short`, numbers that numpy wrote, at most eight bytes for a row; or a `Column` of Arrow's, whose bytes stay where
they are. Both become *views*, 16 bytes each, which is how an array of Arrow's type `binary_view` says where its elements are: a size,
and then either up to twelve bytes themselves or a buffer and a position in it. Arrow casts that array to `binary`, whose bytes lie
behind one another: this is the pass. To bring rows into another order is therefore to move views, or what they are made of.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Views = npt.NDArray[np.void]
Which = slice | Ints  # of the rows

WORD_SIZE = 8
INLINE = 12  # bytes that a view has room for; if there are no more, they must be there
MOST_SPARE = 1 << 20  # bytes of a column's buffer that are not asked for: up to here, and half of it, it is not worth to cut it
# A view as Arrow defines it. `word` are the first of its inline bytes; where it has none, it is a copy of the element's first four
# bytes, and `buffer`. `position` then says where they are, or else has the last of the inline bytes.
VIEW = np.dtype(
    {
        "names": ["size", "word", "buffer", "position"],
        "formats": ["<i4", "<u8", "<i4", "<i4"],
        "offsets": [0, 4, 8, 12],
        "itemsize": 16,
    }
)
_WHOLE = np.dtype("V16")  # for numpy, which would copy a structure field by field
assert sys.byteorder == "little", "Arrow's numbers are those of the machine, and pyarrow is released for this kind only"


class Short(NamedTuple):
    """Up to eight bytes for each row: the first `sizes` of its little-endian word. Those behind them are zero."""

    words: Words
    sizes: Ints
    longest: int

    def of(self, rows: Which) -> Short:
        return Short(self.words[rows], self.sizes[rows], self.longest)


class Column(NamedTuple):
    """Byte strings in a buffer. A null's size is -1, and its view empty."""

    views: Views
    sizes: Ints
    data: Any

    def of(self, rows: Which) -> Column:
        return Column(self.views[rows], self.sizes[rows], self.data)

    def shown_in(self, buffers: list[Any]) -> Views:
        """The views as they are when the buffer stands behind these. It is put there, if it is needed."""
        if int(self.sizes.max()) <= INLINE:
            return self.views
        number, first, data = len(buffers), 0, self.data
        used = np.maximum(self.sizes, 0)
        if data.size > MOST_SPARE + 2 * int(used.sum()):
            position = self.views["position"].astype(np.int64)
            first = int(position.min(initial=data.size, where=used > INLINE))
            data = data.slice(first, int((position + used).max(where=used > INLINE, initial=0)) - first)
        buffers.append(data)
        if not number and not first:  # the number that it has already
            return self.views
        views = self.views.copy()
        np.copyto(views["buffer"], number, where=used > INLINE)
        np.subtract(views["position"], first, out=views["position"], where=used > INLINE)
        return views


Part = Short | Column


def as_binary(column: Any) -> Any:
    """An array of bytes or text."""
    if column.type == pa.string():
        return column.view(pa.binary())  # costs less than the cast, which looks whether there is something to do
    return column if column.type == pa.binary() else column.cast(pa.binary())


def column_of(column: Any | None, count: int) -> Column:
    """Arrow's arrays and chunked arrays of binary or string, nulls allowed; a missing one is all null."""
    if column is None:
        return Column(np.zeros(count, VIEW), np.full(count, -1), None)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if not count:
        return Column(np.zeros(0, VIEW), np.zeros(0, np.int64), None)
    binary = as_binary(column)
    offsets = np.frombuffer(binary.buffers()[1], np.int32)[binary.offset : binary.offset + count + 1]
    sizes = np.diff(offsets).astype(np.int64)
    if binary.null_count:
        sizes[np.asarray(binary.is_null())] = -1
    if int(sizes.min()) <= INLINE:  # then bytes must be copied, which Arrow does
        shown = binary.cast(pa.binary_view())
        views = np.frombuffer(shown.buffers()[1], VIEW)[shown.offset : shown.offset + count]
    else:
        # Arrow would copy the first four bytes of each, too, as its format demands. But the cast in `gather`, which is all that ever
        # sees these views, does not look at them, and to read something of each element takes longer than all else here.
        views = np.zeros(count, VIEW)
        views["size"], views["position"] = sizes, offsets[:-1]
    return Column(views, sizes, binary.buffers()[2])


def together(parts: Sequence[Part]) -> list[Part]:
    """As few parts as hold the same bytes in the same order."""
    made: list[Part] = []
    for part in parts:
        last = made[-1] if made else None
        if isinstance(part, Column):
            if int(part.sizes.max()) > 0:
                made.append(part)
        elif isinstance(last, Short) and last.longest + part.longest <= WORD_SIZE:
            words = last.words | part.words << (last.sizes << 3).view(np.uint64)
            made[-1] = Short(words, last.sizes + part.sizes, last.longest + part.longest)
        else:
            made.append(part)
    return made


def gather(parts: Sequence[Part], starts: Ints | None = None, room: int = 0) -> tuple[memoryview, npt.NDArray[np.int32]]:
    """The bytes, which may be written to, with `room` zeros before each of the rows `starts`; and where each row begins and the last
    one ends. The first part is `Short`. Nothing is gathered that has more than 2 GB."""
    count = len(parts[0].sizes)
    views, buffers = np.empty((count, len(parts)), VIEW), list[Any]()  # nobody looks at the inline bytes behind the last
    for place, part in enumerate(parts):
        if isinstance(part, Short):
            views["size"][:, place], views["word"][:, place] = part.sizes, part.words
        else:
            views.view(_WHOLE)[:, place] = part.shown_in(buffers).view(_WHOLE)
    # Arrow begins with as much memory as all buffers have, and if that does not do for the inline bytes too, it takes twice as much
    # and copies what it has so far. So this one is longer than what is in it.
    step = room + WORD_SIZE
    heads = np.empty(views.size * INLINE + step * (0 if starts is None else len(starts)), np.uint8)
    if starts is not None:
        _make_room(views[:, 0], len(buffers), heads[: step * len(starts)].reshape(-1, step), starts)
    shared = [None, pa.py_buffer(views.view(_WHOLE)), *buffers, pa.py_buffer(heads)]
    laid = pa.Array.from_buffers(pa.binary_view(), views.size, shared).cast(pa.binary())
    offsets = np.frombuffer(laid.buffers()[1], np.int32)[laid.offset :: len(parts)]
    return memoryview(laid.buffers()[2]).cast("B"), offsets[: count + 1]


def _make_room(views: Views, number: int, heads: npt.NDArray[np.uint8], starts: Ints) -> None:
    """The views of the rows `starts` show these heads, in the buffer with this number: zeros, and then what they showed before."""
    heads[:, :-WORD_SIZE] = 0
    heads[:, -WORD_SIZE:] = views["word"][starts, np.newaxis].view(np.uint8)
    step = heads.shape[1]
    views["size"][starts] += step - WORD_SIZE
    views["word"][starts] = 0  # the first bytes again
    views["buffer"][starts] = number
    views["position"][starts] = step * np.arange(len(starts))
