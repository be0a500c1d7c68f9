"""The options of a source or sink: the names of Spark's Kafka connector, checked, with the nearest right one offered.

In: Spark's option map (names without regard to case). Out: one frozen value that pickles to executors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ottla.spark.client_settings import OptionError as OptionError
from ottla.spark.client_settings import check_name, converted

EARLIEST, LATEST = -2, -1
Offsets = dict[str, dict[int, int]]  # topic → partition → offset; EARLIEST and LATEST stand for themselves

_NAMES = (
    "bootstrap.servers", "subscribe", "subscribePattern", "assign", "topic", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "includeHeaders", "isolation.level", "group.id", "groupIdPrefix", "pushFilters",
    "exactlyOnce", "checkpointLocation", "path", "queryName", "transactional.id.prefix", "segments", "latestPerKey",
    "value.format", "value.schema", "value.mode", "value.delimiter", "key.format", "deadLetterTopic",
    "archive", "archiveBy", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
)  # fmt: skip
_TOPICS = ("assign", "subscribe", "subscribePattern", "topic")
_BY_LOWER = {name.lower(): name for name in _NAMES}
# Settings of Kafka's Java clients that mean nothing here, or that the source sets itself, as the connector does.
_FIXED = {
    "key.deserializer", "value.deserializer", "key.serializer", "value.serializer", "enable.auto.commit", "auto.offset.reset",
    "interceptor.classes", "transactional.id",
}  # fmt: skip

VALUE_FORMATS = ("json", "csv", "avro", "string")
VALUE_SCHEMA = "value.schema"
# The connector's defaults.
CONNECTOR_ATTEMPTS = 3
CONNECTOR_BETWEEN_S = 1.0
CONNECTOR_STALLED_S = 120.0
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Options:
    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, int], ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)  # by the names above
    client: Mapping[str, Any] = field(default_factory=dict)  # kafka.* settings, in snake case

    def text(self, name: str, default: str | None = None) -> str | None:
        return self.values.get(name, default)

    def flag(self, name: str, default: bool) -> bool:
        text = self.values.get(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise OptionError(f"option {name} must be true or false, not {text!r}")
        return text.strip().lower() == "true"

    def number(self, name: str, least: int = 1) -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"\s*\d{1,18}\s*", text) or int(text) < least:
            raise OptionError(
                f"option {name} must be a whole number {f'above {least - 1}' if least else 'from 0 on'}, not {text!r}"
            )
        return int(text)

    @property
    def offset_attempts(self) -> tuple[int, float]:
        """How often the driver asks a cluster that cannot be reached, and seconds between. Unless it is told so it asks once, so
        that whoever gave a wrong address reads it at once."""
        attempts, between_ms = self.number("fetchOffset.numRetries"), self.number("fetchOffset.retryIntervalMs", 0)
        if attempts is None:
            attempts = 1 if between_ms is None else CONNECTOR_ATTEMPTS
        return attempts, CONNECTOR_BETWEEN_S if between_ms is None else between_ms / 1000

    @property
    def stalled_s(self) -> float:
        """How long an executor waits for the next records of its range."""
        given_ms = self.number("kafkaConsumer.pollTimeoutMs")
        return CONNECTOR_STALLED_S if given_ms is None else given_ms / 1000

    def duration_s(self, name: str, default: float) -> float:
        """As Spark writes intervals: 500ms, 30s, 15m, 1h."""
        text = self.values.get(name)
        if text is None:
            return default
        found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|d)\s*", text.lower())
        if found is None:
            raise OptionError(f"option {name} must be a time such as 500ms, 30s, 15m or 1h, not {text!r}")
        return int(found[1]) * _SECONDS[found[2]]

    @property
    def value_format(self) -> str | None:
        """None: values stay bytes. Raises OptionError."""
        name = self.text("value.format")
        if name is None:
            for other in (VALUE_SCHEMA, "value.mode", "value.delimiter", "key.format", "deadLetterTopic"):
                if self.text(other) is not None:
                    raise OptionError(f"option {other} goes with the option value.format ({', '.join(VALUE_FORMATS)})")
            return None
        if name.strip().lower() not in VALUE_FORMATS:
            raise OptionError(f"option value.format must be one of {', '.join(VALUE_FORMATS)}, not {name!r}")
        return name.strip().lower()

    @property
    def wants_headers(self) -> bool:
        return self.flag("includeHeaders", False) or self.text("deadLetterTopic") is not None

    @property
    def starts_late_at_latest(self) -> bool:
        """What a start by time does in a partition that has no record so late: begin at its end, or (the default) fail."""
        name = "startingOffsetsByTimestampStrategy"
        text = self.text(name, "error") or ""
        if text.strip().lower() not in ("error", "latest"):
            raise OptionError(f"option {name} must be error or latest, not {text!r}")
        return text.strip().lower() == "latest"

    @property
    def isolation_level(self) -> str:
        return self.values.get("isolation.level", "read_uncommitted")


def parse(options: Mapping[str, str], *, reading: bool) -> Options:
    """Raises OptionError."""
    values: dict[str, str] = {}
    client: dict[str, Any] = {}
    for given, text in options.items():
        name = given.lower()
        if name.startswith("kafka."):
            name = name.removeprefix("kafka.")
            if name in _FIXED:
                raise OptionError(f"option {given} is set by the source itself and cannot be given")
            check_name(given, name)
            if name not in ("bootstrap.servers", "group.id", "isolation.level"):
                client[name.replace(".", "_")] = text
                continue
        if name not in _BY_LOWER:
            raise _unknown(given)
        values[_BY_LOWER[name]] = text
    servers = values.get("bootstrap.servers", "")
    from_files = reading and "segments" in values
    to_files = not reading and "archive" in values
    if not servers and not from_files and not to_files:
        raise OptionError("option kafka.bootstrap.servers is missing: where is the cluster? For example localhost:9092")
    _check_isolation(values)
    for name in ("startingOffsets", "endingOffsets"):
        if name in values:
            parse_offsets(name, values[name])
    made = Options(servers, values=values, client=converted(client))
    _ = (
        made.offset_attempts,
        made.stalled_s,
        made.starts_late_at_latest,
    )  # what is wrong with them is said now, not in an executor
    if from_files and not any(name in values for name in _TOPICS):
        return made  # all there are
    return _with_topics(made) if reading else made


def _unknown(given: str) -> OptionError:
    near = get_close_matches(given.lower(), _BY_LOWER, 1, 0.6)
    hint = f"; did you mean {_BY_LOWER[near[0]]}?" if near else "; settings of the client begin with kafka."
    return OptionError(f"unknown option {given}{hint}")


def _check_isolation(values: Mapping[str, str]) -> None:
    level = values.get("isolation.level", "read_uncommitted")
    if level not in ("read_committed", "read_uncommitted"):
        raise OptionError(f"option isolation.level must be read_committed or read_uncommitted, not {level!r}")


def _with_topics(options: Options) -> Options:
    """Exactly one of assign, subscribe and subscribePattern; `topic` is subscribe for one."""
    chosen = [name for name in _TOPICS if name in options.values]
    if len(chosen) != 1:
        given = " and ".join(chosen) or "none"
        raise OptionError(f"one of the options subscribe, subscribePattern and assign must be given; there is {given}")
    text = options.values[chosen[0]]
    if chosen[0] == "assign":
        rows = _assigned(text)
        return Options(options.bootstrap_servers, (), None, rows, options.values, options.client)
    if chosen[0] == "subscribePattern":
        text = text.strip()
        if not text:
            raise OptionError("option subscribePattern is empty")
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"option subscribePattern is not a regular expression: {error}") from None
        return Options(options.bootstrap_servers, (), text, (), options.values, options.client)
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise OptionError(f"option {chosen[0]} names no topic")
    return Options(options.bootstrap_servers, topics, None, (), options.values, options.client)


def _assigned(text: str) -> tuple[tuple[str, int], ...]:
    try:
        rows = json.loads(text)
        return tuple((str(topic), int(partition)) for topic, partitions in rows.items() for partition in partitions)
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f'option assign must look like {{"topicA":[0,1],"topicB":[2,4]}}, not {text!r}') from None


def parse_offsets(name: str, text: str) -> Offsets | int:
    """`earliest`, `latest`, or JSON per topic and partition."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    try:
        rows = {str(topic): {int(p): int(at) for p, at in parts.items()} for topic, parts in json.loads(text).items()}
        if any(at < EARLIEST for parts in rows.values() for at in parts.values()):
            raise ValueError
        return rows
    except (ValueError, AttributeError, TypeError):
        example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
        raise OptionError(f"option {name} must be earliest, latest or JSON like {example}, not {text!r}") from None
