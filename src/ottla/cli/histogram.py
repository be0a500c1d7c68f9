"""Latencies collected, and drawn with characters.

Buckets grow by a twentieth, so any percentile is right to 5 % whatever its size, in a few hundred counters for hours of samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

GROWTH = 1.05
SMALLEST_MS = 0.001
BAR_WIDTH = 48
EIGHTHS = " ▏▎▍▌▋▊▉█"
PERCENTILES = (50.0, 95.0, 99.0, 99.9)


class Histogram:
    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0.0
        self.max_ms = 0.0
        self.min_ms = math.inf
        self._counts: dict[int, int] = {}

    def add(self, latency_ms: float, times: int = 1) -> None:
        self.count += times
        self.total_ms += latency_ms * times
        self.max_ms = max(self.max_ms, latency_ms)
        self.min_ms = min(self.min_ms, latency_ms)
        bucket = 0 if latency_ms <= SMALLEST_MS else math.ceil(math.log(latency_ms / SMALLEST_MS, GROWTH))
        self._counts[bucket] = self._counts.get(bucket, 0) + times

    @property
    def mean_ms(self) -> float:
        return self.total_ms / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """The latency that `percent` of all samples do not exceed."""
        wanted, seen = self.count * percent / 100, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(SMALLEST_MS * GROWTH**bucket, self.max_ms)
        return self.max_ms

    def summary(self) -> dict[str, float]:
        found = {f"p{percent:g}_ms": round(self.percentile(percent), 3) for percent in PERCENTILES}
        return {"mean_ms": round(self.mean_ms, 3), **found, "max_ms": round(self.max_ms, 3)}

    def rows(self, lines: int = 12) -> list[tuple[float, float, int]]:
        """From, to and count of at most `lines` ranges of equal ratio, from the smallest to the largest sample."""
        if not self.count:
            return []
        low = max(self.min_ms, SMALLEST_MS)
        ratio = max(self.max_ms / low, 1.0001) ** (1 / lines)
        found = [(low * ratio**line, low * ratio ** (line + 1), 0) for line in range(lines)]
        for bucket, count in self._counts.items():
            middle = min(max(SMALLEST_MS * GROWTH ** (bucket - 0.5), low), self.max_ms)
            line = min(lines - 1, int(math.log(middle / low, ratio)))
            start, end, before = found[line]
            found[line] = (start, end, before + count)
        return found

    def draw(self, lines: int = 12, width: int = BAR_WIDTH) -> list[str]:
        rows = self.rows(lines)
        most = max((count for _, _, count in rows), default=0)
        return [f"{ms_text(start):>9} – {ms_text(end):<9} {bar(count / most, width)} {count}" for start, end, count in rows]


def ms_text(latency_ms: float) -> str:
    if latency_ms < 1:
        return f"{latency_ms * 1000:.0f} µs"
    return f"{latency_ms:.1f} ms" if latency_ms < 1000 else f"{latency_ms / 1000:.2f} s"


def bar(share: float, width: int) -> str:
    """`share` of `width` characters, in eighths; whatever is more than nothing is seen."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float]) -> str:
    """Throughput over time, a character a step."""
    most = max(values, default=0)
    if most <= 0:
        return ""
    levels = "▁▂▃▄▅▆▇█"
    return "".join(levels[min(7, int(value / most * 7.999))] for value in values)
