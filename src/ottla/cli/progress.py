"""How far long work has come: a moving bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

SAMPLE_S = 0.25
MAX_SAMPLES = 4_000  # a thousand seconds; after that, samples are joined in pairs


class Progress:
    """Counts records; the rate over time is kept for a picture afterwards."""

    def __init__(self, total: int | None, label: str, *, quiet: bool = False) -> None:
        self.total, self.label, self.count, self.size = total, label, 0, 0
        self.started_s = self.ended_s = time.perf_counter()
        self.rates: list[float] = []
        self._interval_s = SAMPLE_S
        self._next_s = self.started_s + SAMPLE_S
        self._last_count = 0
        self._bar = None if quiet or not sys.stderr.isatty() else self._make_bar()

    def _make_bar(self) -> Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.add_task(self.label, total=self.total, rate="")
        return bar

    def __enter__(self) -> Self:
        self.started_s = self.ended_s = time.perf_counter()
        self._next_s = self.started_s + self._interval_s
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ended_s = time.perf_counter()
        if self._bar is not None:
            self._bar.stop()

    def add(self, count: int, size: int) -> None:
        self.count += count
        self.size += size
        now_s = time.perf_counter()
        if now_s >= self._next_s:
            self._sample(now_s)

    def _sample(self, now_s: float) -> None:
        self.rates.append((self.count - self._last_count) / (now_s - self._next_s + self._interval_s))
        self._last_count, self._next_s = self.count, now_s + self._interval_s
        if len(self.rates) >= MAX_SAMPLES:
            self.rates = [(one + other) / 2 for one, other in zip(self.rates[::2], self.rates[1::2], strict=False)]
            self._interval_s *= 2
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.count, rate=f"{self.rates[-1]:,.0f}/s")

    @property
    def seconds(self) -> float:
        return max(self.ended_s - self.started_s, 1e-9)

    def summary(self) -> dict[str, float | int]:
        return {
            "records": self.count,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(self.count / self.seconds, 1),
            "mib_per_second": round(self.size / self.seconds / (1 << 20), 2),
        }
