"""Moments as people write them: names, ISO times, ages, milliseconds."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any, NamedTuple

import click

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3  # as ListOffsets numbers them
_NAMES = {"earliest": EARLIEST, "beginning": EARLIEST, "latest": LATEST, "end": LATEST, "max-timestamp": MAX_TIMESTAMP}
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Moment(NamedTuple):
    timestamp: int  # milliseconds since 1970, or one of the negative names


class MomentType(click.ParamType[Moment]):
    """`earliest`, `latest`, `2026-11-16T12:00`, `15m` (ago), or milliseconds since 1970."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Moment:
        if isinstance(value, Moment):
            return value
        text = str(value).strip()
        if text in _NAMES:
            return Moment(_NAMES[text])
        if text.isdigit():
            return Moment(int(text))
        if age := re.fullmatch(r"(\d+)(ms|s|m|h|d)", text):
            return Moment(time.time_ns() // 1_000_000 - int(age[1]) * _UNITS[age[2]])
        try:
            return Moment(int(datetime.fromisoformat(text).timestamp() * 1000))
        except ValueError:
            self.fail(
                f"{text!r} is no moment: write earliest, latest, a time like 2026-11-16T12:00, an age like 15m, or milliseconds",
                param,
                ctx,
            )


MOMENT = MomentType()
