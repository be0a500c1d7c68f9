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
# What RE2 says, and what Kafka's RE2/J says of the same mistake.
_WORDS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid perl operator": "invalid named capture",
}


@lru_cache(maxsize=MAX_COMPILED)
def compile_regex(regex: str) -> Any:
    try:
        return re2.compile(regex, _OPTIONS)
    except re2.error as error:
        detail = error.args[0]
        text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        text = text.partition(": ")[0]
        text = _WORDS.get(text, text)
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}."
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None


def matching(regex: str, topic_names: Iterable[str]) -> frozenset[str]:
    """The names that match from end to end."""
    pattern = compile_regex(regex)
    return frozenset(name for name in topic_names if pattern.fullmatch(name))
