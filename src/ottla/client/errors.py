"""What the clients raise, beside `ApiError`: everything is an `OttlaError`, and each message says what to do.

`retriable` says whether the same call may succeed later without a change; the clients have then already tried for as long as
their time-outs allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.model.errors import ApiError, ErrorCode, OttlaError
from ottla.model.ids import TopicPartition


class NetworkError(OttlaError):
    """The broker could not be reached, or the connection to it broke. Whether it served the request is not known."""

    retriable = True


class ConnectionRefused(NetworkError):
    """Nothing listens at that address."""


class UnknownHost(NetworkError):
    """The host name has no address."""


class ConnectTimedOut(NetworkError):
    """The address took the connection, or not even that, and then said nothing in time."""


class ConnectionLost(NetworkError):
    """The connection closed while requests were under way."""


class RequestTimedOut(NetworkError, TimeoutError):
    """A broker did not answer a request in time; the connection was closed, because later answers would queue behind it."""


class TlsFailed(NetworkError):
    """The two ends do not agree on TLS: one speaks it and the other does not, or the certificate is not trusted."""

    retriable = False


class NotKafka(NetworkError):
    """Something answers at that address that does not speak the Kafka protocol."""

    retriable = False


class NoBrokerAvailable(NetworkError):
    """None of the bootstrap servers could be used; `causes` says why for each."""

    def __init__(self, message: str, causes: Mapping[str, OttlaError]) -> None:
        super().__init__(message)
        self.causes = dict(causes)


class VersionUnsupported(ApiError):
    """The broker has no version of this request that we speak too."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message)


class WaitTimedOut(OttlaError, TimeoutError):
    """A documented time-out of the client passed (`max_block_ms`, `delivery_timeout_ms`, `default_api_timeout_ms`, …)."""

    retriable = True


class SettingError(OttlaError, ValueError):
    """A setting that does not exist, or a value it cannot take."""


class ClientClosed(OttlaError, RuntimeError):
    """The object was used after `close`, or before `start`."""


class ConcurrentUse(OttlaError, RuntimeError):
    """A consumer belongs to one task at a time; another task is inside it."""


class SerializationFailed(OttlaError):
    """A serializer raised; its exception is the cause. Nothing was sent."""


class DeserializationFailed(SerializationFailed):
    """A deserializer raised; its exception is the cause. `seek(error.partition, error.next_offset)` leaves the record out."""

    def __init__(self, message: str, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.next_offset = offset + 1


class UnreadableRecords(ApiError):
    """A batch that was fetched cannot be read: its checksum is wrong, or its bytes are no records. It is fetched again, because the
    damage may have happened on the way; if it stays, `seek(error.partition, error.next_offset)` leaves it out."""

    def __init__(self, cause: ApiError, partition: TopicPartition, offset: int, next_offset: int) -> None:
        why = cause.message or cause.code.meaning
        super().__init__(cause.code, f"{partition} at offset {offset}: {why}; if it stays so, seek past it, to {next_offset}")
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset


class UnknownPartition(OttlaError, ValueError):
    """The topic has no such partition, nor did it get one within a second."""


class IllegalState(OttlaError, RuntimeError):
    """The call makes no sense now: a commit without a group, a transaction that was never begun, …"""


class NoOffsetForPartition(OttlaError):
    """There is no committed offset, and `auto_offset_reset` is `none`."""


class PartialFailure(OttlaError):
    """Some parts of one admin request succeeded and some failed."""

    def __init__(self, errors: Mapping[Any, ApiError], results: Mapping[Any, Any]) -> None:
        super().__init__("; ".join(f"{name}: {error}" for name, error in errors.items()))
        self.errors = dict(errors)
        self.results = dict(results)
