"""Topics made, deleted and widened.

CreateTopics: 2 throttle time, 4 default counts (-1), 5 settings in the reply, 7 topic ids. DeleteTopics: 5 messages, 6 by id.
CreatePartitions: 0-3. Checks, their order and their sentences are Kafka's, because tools print them.
"""

from __future__ import annotations

from collections import Counter

from ottla.metadata import placement
from ottla.metadata.configs import config_records, refuse_bad_configs
from ottla.metadata.image import BROKER, RECOVERED, TOPIC, Partition, Topic
from ottla.metadata.records import MetadataRecord
from ottla.metadata.snapshot import partition_record
from ottla.metadata.state import MAX_RECORDS_PER_REQUEST, Context, ControllerState, Outcome
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import METADATA_TOPIC, ZERO_UUID
from ottla.model.names import check_topic_name
from ottla.protocol.messages.metadata_records import RemoveTopicRecord, TopicRecord
from ottla.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

DEFAULT = -1  # a count of -1 asks for the cluster's default

CreatableTopic = CreateTopicsRequest.CreatableTopic
Result = CreateTopicsResponse.CreatableTopicResult


def collision_form(name: str) -> str | None:
    """Metric names cannot tell '.' from '_': names that differ only there collide. None if a name has neither."""
    return name.replace(".", "_") if "." in name or "_" in name else None


# CreateTopics -----------------------------------------------------------------------------------------------------------


def create_topics(state: ControllerState, request: CreateTopicsRequest, context: Context) -> Outcome:
    times_named = Counter(topic.name for topic in request.topics)
    records: list[MetadataRecord] = []
    results: list[Result] = []
    for topic in request.topics:
        if times_named[topic.name] > 1 or topic.name == METADATA_TOPIC:
            continue
        try:
            made = _create_topic(state, topic, context)
            _check_batch_size(len(records) + len(made[0]))
            records += made[0]
            results.append(made[1])
        except ApiError as error:
            results.append(Result(name=topic.name, error_code=error.code, error_message=error.message))
    for name, times in times_named.items():
        if times > 1:
            results.append(_refused(name, "Duplicate topic name."))
        elif name == METADATA_TOPIC:
            results.append(_refused(name, f"Creation of internal topic {METADATA_TOPIC} is prohibited."))
    return Outcome([] if request.validate_only else records, CreateTopicsResponse(topics=results))


def _refused(name: str, message: str) -> Result:
    return Result(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message=message)


def _check_batch_size(record_count: int) -> None:
    if record_count > MAX_RECORDS_PER_REQUEST:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _create_topic(state: ControllerState, topic: CreatableTopic, context: Context) -> tuple[list[MetadataRecord], Result]:
    check_topic_name(topic.name)
    _check_collision(state, topic.name)
    if topic.name in state.image.topic_ids:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    overrides = _overrides(topic)
    refuse_bad_configs(state, TOPIC, topic.name, overrides)
    partitions = _manual_partitions(state, topic) if topic.assignments else _placed_partitions(state, topic, context)
    topic_id = context.new_uuid()
    records: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic_id)]
    # Settings come before partitions, so that whoever applies a partition already knows its topic's settings.
    records += config_records(TOPIC, topic.name, overrides)
    level = state.image.metadata_version
    records += [partition_record(topic_id, index, partition, level) for index, partition in partitions.items()]
    return records, _created(state, topic.name, topic_id, partitions, overrides, context)


def _check_collision(state: ControllerState, name: str) -> None:
    form = collision_form(name)
    existing = state.colliding.get(form) if form else None
    if existing and name not in existing:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {next(iter(sorted(existing)))}"
        )


def _overrides(topic: CreatableTopic) -> dict[str, str]:
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    return {config.name: config.value for config in topic.configs if config.value is not None}


def _created(
    state: ControllerState,
    name: str,
    topic_id: bytes,
    partitions: dict[int, Partition],
    overrides: dict[str, str],
    context: Context,
) -> Result:
    result = Result(name=name, topic_id=topic_id, error_message=None, configs=[])
    if not context.may_describe_configs(name):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return result
    result.num_partitions = len(partitions)
    result.replication_factor = len(partitions[0].replicas)
    node = state.image.config(BROKER, str(state.settings.node_id))
    result.configs = [
        Result.CreatableTopicConfigs(
            name=row.name,
            value=None if row.is_sensitive else row.value,
            read_only=row.read_only,
            config_source=row.source,
            is_sensitive=row.is_sensitive,
        )
        for row in sorted(state.rules.effective_topic_configs(overrides, node, state.image.config(BROKER, "")))
    ]
    return result


def _placed_partitions(state: ControllerState, topic: CreatableTopic, context: Context) -> dict[int, Partition]:
    if topic.replication_factor < DEFAULT or topic.replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if topic.num_partitions < DEFAULT or topic.num_partitions == 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    settings = state.settings
    count = settings.default_partition_count if topic.num_partitions == DEFAULT else topic.num_partitions
    factor = settings.default_replication_factor if topic.replication_factor == DEFAULT else topic.replication_factor
    _check_batch_size(count)
    return dict(enumerate(_place(state, count, factor, context)))


def _place(state: ControllerState, count: int, factor: int, context: Context) -> list[Partition]:
    try:
        assignments = placement.place(state.usable_brokers(), count, factor, context.random_index)
    except ApiError as error:
        raise ApiError(error.code, f"Unable to replicate the partition {factor} time(s): {error.message}") from None
    return [_new_partition(state, replicas, factor) for replicas in assignments]


def _new_partition(state: ControllerState, replicas: list[int], factor: int) -> Partition:
    partition = make_partition(state, replicas)
    if not partition.isr:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): All brokers are currently fenced or in controlled shutdown.",
        )
    return partition


def make_partition(state: ControllerState, replicas: list[int]) -> Partition:
    """A new partition: all live replicas are in sync, for there is nothing to copy yet, and the first of them leads."""
    isr = tuple(replica for replica in replicas if state.is_active(replica))
    return Partition(
        replicas=tuple(replicas),
        isr=isr,
        leader=isr[0] if isr else -1,
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(state.default_directory(replica) for replica in replicas),
        recovery_state=RECOVERED,
    )


def _manual_partitions(state: ControllerState, topic: CreatableTopic) -> dict[int, Partition]:
    if topic.replication_factor != DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "A manual partition assignment was specified, but replication factor was not set to -1."
        )
    if topic.num_partitions != DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "A manual partition assignment was specified, but numPartitions was not set to -1."
        )
    partitions: dict[int, Partition] = {}
    factor: int | None = None
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in partitions:
            raise _bad_assignment(f"Found multiple manual partition assignments for partition {index}")
        check_manual_assignment(state, assignment.broker_ids, factor)
        factor = len(assignment.broker_ids)
        partitions[index] = _manual_partition(state, index, assignment.broker_ids)
    if set(partitions) != set(range(len(partitions))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return dict(sorted(partitions.items()))


def _manual_partition(state: ControllerState, index: int, replicas: list[int]) -> Partition:
    partition = make_partition(state, replicas)
    if not partition.isr:
        raise _bad_assignment(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in controlled shutdown."
        )
    return partition


def _bad_assignment(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def check_manual_assignment(state: ControllerState, replicas: list[int], factor: int | None) -> None:
    """Registered brokers, each once, as many as in the partitions before."""
    if not replicas:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker_id in sorted(replicas):
        if broker_id not in state.image.brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if broker_id == previous:
            raise _bad_assignment(f"The manual partition assignment includes the broker {broker_id} more than once.")
        previous = broker_id
    if factor is not None and len(replicas) != factor:
        raise _bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )


# DeleteTopics -----------------------------------------------------------------------------------------------------------


def delete_topics(state: ControllerState, request: DeleteTopicsRequest, context: Context) -> Outcome:
    row = DeleteTopicsResponse.DeletableTopicResult
    if not state.settings.topic_deletion_enabled:
        code = ErrorCode.INVALID_REQUEST if context.version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        named = [(name, ZERO_UUID) for name in request.topic_names] + [(topic.name, topic.topic_id) for topic in request.topics]
        return Outcome(
            reply=DeleteTopicsResponse(
                responses=[
                    row(name=name, topic_id=topic_id, error_code=code, error_message="Topic deletion is disabled.")
                    for name, topic_id in named
                ]
            )
        )
    records: list[MetadataRecord] = []
    results = []
    for name, topic_id, error in _named_for_deletion(state, request):
        if error is None:
            records.append(RemoveTopicRecord(topic_id=topic_id))
            results.append(row(name=name, topic_id=topic_id))
        else:
            results.append(row(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message))
    return Outcome(records, DeleteTopicsResponse(responses=results))


_Named = tuple[str | None, bytes, ApiError | None]


def _named_for_deletion(state: ControllerState, request: DeleteTopicsRequest) -> list[_Named]:
    """Each topic once: with its id if it may go, with an error if not."""
    rows: list[_Named] = []
    names = Counter(request.topic_names)
    ids: Counter[bytes] = Counter()
    for topic in request.topics:
        if topic.name is None and topic.topic_id == ZERO_UUID:
            rows.append((None, ZERO_UUID, _invalid("Neither topic name nor id were specified.")))
        elif topic.name is not None and topic.topic_id != ZERO_UUID:
            rows.append((topic.name, topic.topic_id, _invalid("You may not specify both topic name and topic id.")))
        elif topic.name is None:
            ids[topic.topic_id] += 1
        else:
            names[topic.name] += 1
    rows += [(name, ZERO_UUID, _invalid("Duplicate topic name.")) for name, times in names.items() if times > 1]
    rows += [(None, topic_id, _invalid("Duplicate topic id.")) for topic_id, times in ids.items() if times > 1]
    single = {topic_id for topic_id, times in ids.items() if times == 1}
    by_name = {name: state.image.topic_ids.get(name) for name, times in names.items() if times == 1}
    twice = {topic_id for topic_id in by_name.values() if topic_id is not None and topic_id in ids}
    rows += [_by_id(state, topic_id) for topic_id in single - twice]
    rows += [_by_name(name, topic_id, twice) for name, topic_id in by_name.items()]
    return rows


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def _by_id(state: ControllerState, topic_id: bytes) -> _Named:
    topic = state.image.topics.get(topic_id)
    if topic is None:
        return None, topic_id, ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    return topic.name, topic_id, None


def _by_name(name: str, topic_id: bytes | None, twice: set[bytes]) -> _Named:
    if topic_id is None:
        message = "This server does not host this topic-partition."
        return name, ZERO_UUID, ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if topic_id in twice:
        return name, topic_id, _invalid("The provided topic name maps to an ID that was already supplied.")
    return name, topic_id, None


# CreatePartitions -------------------------------------------------------------------------------------------------------


def create_partitions(state: ControllerState, request: CreatePartitionsRequest, context: Context) -> Outcome:
    row = CreatePartitionsResponse.CreatePartitionsTopicResult
    times_named = Counter(topic.name for topic in request.topics)
    results = [
        row(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name.")
        for name, times in times_named.items()
        if times > 1
    ]
    records: list[MetadataRecord] = []
    for topic in request.topics:
        if times_named[topic.name] > 1:
            continue
        try:
            made = _more_partitions(state, topic, context)
            _check_batch_size(len(records) + len(made))
            records += made
            results.append(row(name=topic.name))
        except ApiError as error:
            results.append(row(name=topic.name, error_code=error.code, error_message=error.message))
    return Outcome([] if request.validate_only else records, CreatePartitionsResponse(results=results))


def _more_partitions(
    state: ControllerState, wanted: CreatePartitionsRequest.CreatePartitionsTopic, context: Context
) -> list[MetadataRecord]:
    topic = state.topic_or_error(wanted.name)
    present = len(topic.partitions)
    additional = wanted.count - present
    if additional == 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if additional < 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {wanted.name} currently has {present} partition(s); {wanted.count} would not be an increase.",
        )
    if wanted.assignments is not None and len(wanted.assignments) != additional:
        raise _bad_assignment(
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified."
        )
    _check_batch_size(additional)
    partitions = _additional(state, topic, wanted, additional, context)
    level = state.image.metadata_version
    return [
        partition_record(topic.topic_id, index, partition, level) for index, partition in enumerate(partitions, start=present)
    ]


def _additional(
    state: ControllerState,
    topic: Topic,
    wanted: CreatePartitionsRequest.CreatePartitionsTopic,
    additional: int,
    context: Context,
) -> list[Partition]:
    factor = len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        assignments = placement.place(state.usable_brokers(), additional, factor, context.random_index)
        return [_new_partition(state, replicas, factor) for replicas in assignments]
    partitions = []
    for index, assignment in enumerate(wanted.assignments, start=len(topic.partitions)):
        check_manual_assignment(state, assignment.broker_ids, factor)
        partitions.append(_manual_partition(state, index, assignment.broker_ids))
    return partitions
