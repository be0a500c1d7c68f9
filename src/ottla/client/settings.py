"""The settings of producers, consumers and admins: Kafka's names in snake case, with Kafka's defaults, checked at construction.

One declaration serves twice. To a type checker each class is a TypedDict, so `Producer(linger_ms="5")` is flagged and
`settings["linger_ms"]` is an int; at run time the `Setting` beside each type gives its default, limits and one line of help.
"""

from __future__ import annotations

import ssl
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

from ottla.client.errors import SettingError
from ottla.client.settings_rules import CONSUMER_RULES, PRODUCER_RULES, Rule

MAX_INT32 = 2_147_483_647


@dataclass(frozen=True, slots=True)
class Setting:
    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] | None = None


def _ms(default: int, meaning: str, low: int = 0) -> Setting:
    return Setting(default, meaning, low, MAX_INT32)


def _bytes(default: int, meaning: str, low: int = 0) -> Setting:
    return Setting(default, meaning, low, MAX_INT32)


class CommonSettings(TypedDict, total=False):
    """What every client takes."""

    bootstrap_servers: Annotated[
        str | Sequence[str], Setting("127.0.0.1:9092", "where to ask first: host:port, several by commas")
    ]
    client_id: Annotated[str, Setting("ottla", "the name that brokers log and count quotas by")]
    client_rack: Annotated[str, Setting("", "the rack this client stands in, to read from the closest replica")]
    request_timeout_ms: Annotated[float, _ms(30_000, "how long one broker may take to answer one request", 1)]
    default_api_timeout_ms: Annotated[float, _ms(60_000, "how long one call may take with all its retries")]
    socket_connection_setup_timeout_ms: Annotated[float, _ms(10_000, "how long connecting and agreeing on versions may take", 1)]
    connections_max_idle_ms: Annotated[float, _ms(540_000, "after how long an unused connection is closed")]
    reconnect_backoff_ms: Annotated[float, _ms(50, "how long to wait before connecting again to a broker that failed")]
    reconnect_backoff_max_ms: Annotated[float, _ms(1_000, "the most that wait grows to")]
    retry_backoff_ms: Annotated[float, _ms(100, "how long to wait before asking again after a passing error")]
    retry_backoff_max_ms: Annotated[float, _ms(1_000, "the most that wait grows to")]
    metadata_max_age_ms: Annotated[float, _ms(300_000, "after how long the view of the cluster is refreshed anyway", 1)]
    security_protocol: Annotated[
        str, Setting("PLAINTEXT", "TLS and SASL", choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))
    ]
    ssl_context: Annotated[ssl.SSLContext | None, Setting(None, "a ready TLS context, instead of the ssl_ files")]
    ssl_cafile: Annotated[str | None, Setting(None, "certificates to trust; the system's when left out")]
    ssl_certfile: Annotated[str | None, Setting(None, "this client's certificate, for mutual TLS")]
    ssl_keyfile: Annotated[str | None, Setting(None, "the key to that certificate")]
    ssl_check_hostname: Annotated[bool, Setting(True, "whether the certificate must name the host")]
    sasl_mechanism: Annotated[str, Setting("PLAIN", "how to log in", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))]
    sasl_username: Annotated[str | None, Setting(None, "who logs in")]
    sasl_password: Annotated[str | None, Setting(None, "the password")]


class AdminSettings(CommonSettings, total=False):
    """What `Admin` takes: nothing more."""


Serializer = Callable[[Any], "bytes | None"]
Partitioner = Callable[[str, "bytes | None", "bytes | None", int], int]
Deserializer = Callable[[Any], Any]


class ProducerSettings(CommonSettings, total=False):
    acks: Annotated[
        int | str,
        Setting("all", "who must have a record before it counts as delivered", choices=(0, 1, -1, "0", "1", "-1", "all")),
    ]
    enable_idempotence: Annotated[
        bool | None, Setting(None, "no duplicates and no reordering by retries; on unless acks forbid it")
    ]
    transactional_id: Annotated[str | None, Setting(None, "the name under which this producer's transactions survive a restart")]
    transaction_timeout_ms: Annotated[int, _ms(60_000, "after how long the broker aborts a transaction left open", 1)]
    batch_size: Annotated[int, _bytes(16_384, "bytes of records that are sent together to one partition")]
    linger_ms: Annotated[float, _ms(5, "how long a batch that is not full waits for more")]
    buffer_memory: Annotated[
        int, Setting(33_554_432, "bytes of records not yet acknowledged; `send` waits when they are used up", 1)
    ]
    max_block_ms: Annotated[float, _ms(60_000, "how long `send` waits for room or for a topic's metadata")]
    max_request_size: Annotated[int, _bytes(1_048_576, "the largest request, and so the largest record", 1)]
    delivery_timeout_ms: Annotated[float, _ms(120_000, "from `send` to the last retry")]
    retries: Annotated[int, Setting(MAX_INT32, "how often; delivery_timeout_ms is the better limit", 0, MAX_INT32)]
    max_in_flight_requests_per_connection: Annotated[int, Setting(5, "requests under way to one broker", 1, 1000)]
    compression_type: Annotated[str, Setting("none", "the codec", choices=("none", "gzip", "snappy", "lz4", "zstd"))]
    compression_level: Annotated[int | None, Setting(None, "the codec's own level")]
    partitioner: Annotated[
        str | Partitioner, Setting("default", "default (murmur2 of the key, else sticky), round_robin, or a function")
    ]
    partitioner_ignore_keys: Annotated[bool, Setting(False, "treat every record as if it had no key")]
    partitioner_adaptive_partitioning_enable: Annotated[bool, Setting(True, "send more to partitions whose queues are short")]
    key_serializer: Annotated[Serializer | None, Setting(None, "a function from key to bytes")]
    value_serializer: Annotated[Serializer | None, Setting(None, "a function from value to bytes")]


class ConsumerSettings(CommonSettings, total=False):
    group_id: Annotated[str | None, Setting(None, "the group that shares the partitions and keeps the offsets")]
    group_instance_id: Annotated[str | None, Setting(None, "a fixed name: a restart within the session time-out moves nothing")]
    group_protocol: Annotated[str, Setting("classic", "who assigns: the members or the broker", choices=("classic", "consumer"))]
    group_remote_assignor: Annotated[str | None, Setting(None, "the broker's assignor: uniform or range")]
    partition_assignment_strategy: Annotated[
        Sequence[Any], Setting(("range", "cooperative-sticky"), "assignors that this member knows, best first")
    ]
    session_timeout_ms: Annotated[int, _ms(45_000, "after how long without a heartbeat a member counts as dead", 1)]
    heartbeat_interval_ms: Annotated[int, _ms(3_000, "how often to say that this member lives", 1)]
    max_poll_interval_ms: Annotated[int, _ms(300_000, "how long between two polls before the member gives its partitions up", 1)]
    max_poll_records: Annotated[int, Setting(500, "the most records one poll returns", 1, MAX_INT32)]
    enable_auto_commit: Annotated[bool, Setting(True, "commit what was polled, by itself")]
    auto_commit_interval_ms: Annotated[float, _ms(5_000, "how often")]
    auto_offset_reset: Annotated[str, Setting("latest", "earliest, latest, none, or by_duration:<ISO 8601 duration>")]
    isolation_level: Annotated[str, Setting("read_uncommitted", "transactions", choices=("read_uncommitted", "read_committed"))]
    fetch_min_bytes: Annotated[int, _bytes(1, "how much must be there before the broker answers")]
    fetch_max_bytes: Annotated[int, _bytes(52_428_800, "the most that one fetch returns")]
    fetch_max_wait_ms: Annotated[int, _ms(500, "how long the broker waits for fetch_min_bytes")]
    max_partition_fetch_bytes: Annotated[int, _bytes(1_048_576, "the most that one fetch returns of one partition")]
    check_crcs: Annotated[bool, Setting(True, "check each batch's checksum")]
    allow_auto_create_topics: Annotated[bool, Setting(True, "let a subscription create its topic, if the broker allows")]
    exclude_internal_topics: Annotated[bool, Setting(True, "whether a pattern passes over internal topics")]
    enable_fetch_sessions: Annotated[bool, Setting(True, "tell the broker only what changed since the last fetch (KIP-227)")]
    key_deserializer: Annotated[Deserializer | None, Setting(None, "a function from bytes to key")]
    value_deserializer: Annotated[Deserializer | None, Setting(None, "a function from bytes to value")]


S = TypeVar("S", bound=CommonSettings)
_RULES: dict[type, tuple[Rule, ...]] = {ProducerSettings: PRODUCER_RULES, ConsumerSettings: CONSUMER_RULES}


_tables: dict[type, dict[str, tuple[Any, Setting]]] = {}


def table(kind: type) -> dict[str, tuple[Any, Setting]]:
    """Name → (type, setting) of every setting that `kind` takes."""
    if kind not in _tables:
        hints = get_type_hints(kind, include_extras=True)
        _tables[kind] = {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}
    return _tables[kind]


def resolve(kind: type[S], given: Mapping[str, Any]) -> S:
    """All settings of `kind`, defaults filled in. Raises `SettingError` for a name or value that makes no sense."""
    rows = table(kind)
    for name in given:
        if name not in rows:
            raise SettingError(_unknown(name, rows, kind))
    settings = {name: setting.default for name, (_, setting) in rows.items()}
    for name, value in given.items():
        settings[name] = _check(name, value, *rows[name])
    for rule in _RULES.get(kind, ()):
        rule(settings, given)
    return settings  # type: ignore[return-value]


def _unknown(name: str, rows: Mapping[str, Any], kind: type) -> str:
    who = kind.__name__.removesuffix("Settings")
    nearest = get_close_matches(name.replace(".", "_").lower(), rows, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(sorted(rows))}"
    return f"{who} has no setting {name}; {hint}"


def _check(name: str, value: Any, base: Any, setting: Setting) -> Any:
    if not _fits(value, base):
        raise SettingError(f"{name} must be {_type_name(base)}, not {value!r}")
    if setting.choices is not None and value not in setting.choices:
        nearest = get_close_matches(str(value), [str(choice) for choice in setting.choices], n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else ""
        raise SettingError(f"{name} must be one of {', '.join(map(str, setting.choices))}, not {value!r}; {hint}".rstrip("; "))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if setting.low is not None and value < setting.low:
            raise SettingError(f"{name} must be at least {setting.low}, not {value}")
        if setting.high is not None and value > setting.high:
            raise SettingError(f"{name} must be at most {setting.high}, not {value}")
    return value


def _fits(value: Any, base: Any) -> bool:
    origin = get_origin(base)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(base))
    if base is Any:
        return True
    if base is type(None):
        return value is None
    if base is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if base is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is Callable or origin is types.FunctionType or str(origin).endswith("Callable'>"):
        return callable(value)
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return isinstance(value, base)


def _type_name(base: Any) -> str:
    if get_origin(base) in (Union, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(base))
    return {type(None): "None", int: "a whole number", float: "a number", str: "text", bool: "True or False"}.get(base) or (
        "a function" if "Callable" in str(base) else str(getattr(base, "__name__", base))
    )
