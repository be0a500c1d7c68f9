"""Who may do what, and how fast: the seams for ACLs and quotas. Until an authoriser is configured everybody may do everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.protocol.apis import Operation, Resource

if TYPE_CHECKING:
    from ottla.broker.dispatch import RequestContext

_TOPIC_OPERATIONS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_CLUSTER_OPERATIONS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
_GROUP_OPERATIONS = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)


def is_allowed(context: RequestContext, operation: Operation, resource: Resource, name: str) -> bool:
    return True


def throttle_time_ms(context: RequestContext) -> int | None:
    """How long the sender should wait before its next request; None for whom nothing limits, and who may be answered the short way.

    The dispatcher asks this for every answer that is a message, and once for all requests of a connection that begin alike, whether
    they may take a shortcut: who sets a limit for somebody must clear the `routes` of his connections."""
    return None


def topic_operations(context: RequestContext, topic: str | None) -> int:
    return _bits(_TOPIC_OPERATIONS)


def cluster_operations(context: RequestContext) -> int:
    return _bits(_CLUSTER_OPERATIONS)


def group_operations(context: RequestContext, group: str) -> int:
    return _bits(_GROUP_OPERATIONS)


def _bits(operations: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in operations)
