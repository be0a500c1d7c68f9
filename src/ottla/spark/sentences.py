"""What Spark's user sees of an error of ours: its sentence, without a Python traceback in front.

Spark's workers format what they catch with its traceback unless SPARK_HIDE_TRACEBACK is set in their environment. It is set here at
the moment one of our own errors leaves, in a worker process that ends with that very error, so tracebacks of users' functions stay.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ottla.model.errors import OttlaError

P = ParamSpec("P")
R = TypeVar("R")


def plainly(method: Callable[P, R]) -> Callable[P, R]:
    """For the methods that Spark calls."""

    @functools.wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return method(*arguments, **named)
        except OttlaError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return call


def plainly_each(method: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """For the methods whose errors come while Spark iterates."""

    @functools.wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> Iterator[R]:
        try:
            yield from method(*arguments, **named)
        except OttlaError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return call
