"""Regular expressions over topic names, matched by RE2: linear time whatever the client sends (the server pays for it)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import re2

from ottla.model.errors import ApiError, ErrorCode

MAX_COMPILED = 1_000
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


@lru_cache(maxsize=MAX_COMPILED)
def compile_regex(regex: str) -> Any:
    try:
        return re2.compile(regex, _OPTIONS)
    except re2.error as error:
        detail = error.args[0]
        text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        text = text.partition(": ")[0].replace("missing )", "missing closing )").replace("missing ]", "missing closing ]")
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}."
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None


def matching(regex: str, topic_names: Iterable[str]) -> frozenset[str]:
    """The names that match from end to end."""
    pattern = compile_regex(regex)
    return frozenset(name for name in topic_names if pattern.fullmatch(name))
