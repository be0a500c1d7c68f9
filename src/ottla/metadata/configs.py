"""Settings of topics, brokers, groups and client metrics altered.

IncrementalAlterConfigs (SET, DELETE, APPEND, SUBTRACT) and the older AlterConfigs, which replaces everything that was set. What
a value may be is the business of the `SettingsRules`; what a resource may be is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

from ottla.metadata.image import BROKER, CLIENT_METRICS, GROUP, TOPIC
from ottla.metadata.records import MetadataRecord
from ottla.metadata.state import Context, ControllerState, Outcome
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.names import check_topic_name
from ottla.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.metadata_records import ClearElrRecord, ConfigRecord, PartitionChangeRecord

MIN_INSYNC_REPLICAS = "min.insync.replicas"
BROKER_LOGGER = 8
_RESOURCE_NAMES = {
    0: "UNKNOWN",
    TOPIC: "TOPIC",
    BROKER: "BROKER",
    8: "BROKER_LOGGER",
    CLIENT_METRICS: "CLIENT_METRICS",
    GROUP: "GROUP",
}


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def config_records(resource_type: int, resource_name: str, values: Mapping[str, str | None]) -> list[MetadataRecord]:
    return [
        ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
        for name, value in values.items()
    ]


def refuse_bad_configs(state: ControllerState, resource_type: int, resource_name: str, values: Mapping[str, str]) -> None:
    """Raise for a resource that cannot be configured or values that it must not have."""
    if resource_type == BROKER:
        _check_broker_name(resource_name)
    elif resource_type == TOPIC and not resource_name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    elif resource_type == GROUP and not resource_name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    elif resource_type not in (TOPIC, GROUP, CLIENT_METRICS):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {_RESOURCE_NAMES.get(resource_type, 'UNKNOWN')}")
    elif resource_type == TOPIC:
        check_topic_name(resource_name)
    state.rules.check(resource_type, resource_name, values)


def _check_broker_name(name: str) -> None:
    if not name:
        return  # the default of all brokers
    try:
        broker_id = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.") from None
    if broker_id < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")


def _check_exists(state: ControllerState, resource_type: int, resource_name: str) -> None:
    if resource_type == TOPIC and resource_name not in state.image.topic_ids:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource_name}' does not exist.")
    if resource_type == BROKER and resource_name:
        broker_id = int(resource_name)
        if broker_id not in state.image.brokers and broker_id not in state.image.controllers:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {broker_id} found.")


Altered = Mapping[str, str | None]  # the new value of each setting that was named; None takes it back


def incremental_alter_configs(state: ControllerState, request: IncrementalAlterConfigsRequest, context: Context) -> Outcome:
    return _alter_each(state, request, IncrementalAlterConfigsResponse, _incremental)


def _alter_each(state: ControllerState, request: Any, response: Any, altered: Callable[..., Altered]) -> Outcome:
    """Both requests name resources alike, and a resource that is refused leaves the others as they are."""
    row = response.AlterConfigsResourceResponse
    times_named = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    records: list[MetadataRecord] = []
    rows = []
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        try:
            if times_named[kind, name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Each resource must appear at most once; {name} appears more often.")
            records += _alter(state, kind, name, altered(state, kind, name, resource.configs))
            rows.append(row(resource_type=kind, resource_name=name, error_message=None))
        except ApiError as error:
            rows.append(row(resource_type=kind, resource_name=name, error_code=error.code, error_message=error.message))
    return Outcome([] if request.validate_only else records, response(responses=rows))


def _incremental(
    state: ControllerState,
    kind: int,
    name: str,
    operations: Iterable[IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig],
) -> Altered:
    present = state.image.config(kind, name)
    operations = list(operations)
    named = [operation.name for operation in operations]
    if len(set(named)) < len(named):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [op.name for op in operations if op.value is None and op.config_operation != Operation.DELETE]
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    return {op.name: _new_value(state, kind, op.name, op.config_operation, op.value, present.get(op.name)) for op in operations}


def _new_value(
    state: ControllerState, kind: int, name: str, operation: int, value: str | None, present: str | None
) -> str | None:
    if operation == Operation.SET:
        return value
    if operation == Operation.DELETE:
        return None
    if operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation}")
    if not state.rules.is_list(kind, name):
        verb = Operation(operation).name
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {name} because its type is not LIST.")
    started_from = state.rules.default_value(kind, name) if present is None else present
    items = [item for item in (started_from or "").split(",") if item]
    for item in (value or "").split(","):
        if operation == Operation.SUBTRACT:
            items = [kept for kept in items if kept != item]
        elif item not in items:
            items.append(item)
    return ",".join(items)


def _alter(state: ControllerState, kind: int, name: str, altered: Altered) -> list[MetadataRecord]:
    """The records for what differs. Brokers are told again even of what does not: it makes them reload files (KAFKA-14136)."""
    present = state.image.config(kind, name)
    changed = {key: value for key, value in altered.items() if value != present.get(key) or kind == BROKER}
    after = {key: value for key, value in {**present, **changed}.items() if value is not None}
    if kind == BROKER and MIN_INSYNC_REPLICAS in changed and state.image.eligible_leaders_enabled:
        _refuse_min_insync(name, changed[MIN_INSYNC_REPLICAS])
    refuse_bad_configs(state, kind, name, after)
    _check_exists(state, kind, name)
    records = config_records(kind, name, changed)
    if MIN_INSYNC_REPLICAS in changed and kind in (TOPIC, BROKER) and state.image.eligible_leaders_enabled:
        # Who was eligible under the old minimum need not have everything under the new one.
        records.append(ClearElrRecord(topic_name=name if kind == TOPIC else ""))
        records += _still_eligible(state, name if kind == TOPIC else None)
    return records


def _still_eligible(state: ControllerState, topic_name: str | None) -> list[MetadataRecord]:
    """Where nobody leads, nothing was committed since, whatever the minimum: who was eligible still has everything. To forget them, as
    Kafka 4.3 does, would leave the partition without anybody who may ever lead it."""
    return [
        PartitionChangeRecord(
            partition_id=index,
            topic_id=topic.topic_id,
            eligible_leader_replicas=list(partition.eligible_leaders),
            last_known_elr=list(partition.last_known_eligible),
        )
        for topic in state.image.topics.values()
        if topic_name in (None, topic.name)
        for index, partition in topic.partitions.items()
        if partition.eligible_leaders and not partition.isr
    ]


def _refuse_min_insync(broker: str, value: str | None) -> None:
    """With eligible leaders the minimum must be the same for all brokers, so it is set for the cluster only, and always set."""
    if broker:
        message = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
        raise ApiError(ErrorCode.INVALID_CONFIG, message)
    if value is None:
        message = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
        raise ApiError(ErrorCode.INVALID_CONFIG, message)


def alter_configs(state: ControllerState, request: AlterConfigsRequest, context: Context) -> Outcome:
    return _alter_each(state, request, AlterConfigsResponse, _replacement)


def _replacement(
    state: ControllerState, kind: int, name: str, configs: Iterable[AlterConfigsRequest.AlterConfigsResource.AlterableConfig]
) -> Altered:
    """What was set and is not named again goes."""
    wanted: dict[str, str | None] = {}
    for config in configs:
        if config.name in wanted:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        if config.value is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
        wanted[config.name] = config.value
    gone: dict[str, str | None] = {key: None for key in state.image.config(kind, name) if key not in wanted}
    return wanted | gone
