"""Leaders chosen: when a broker goes or comes, when an operator asks, and when leadership has drifted from the preferred.

ElectLeaders: 1 unclean elections, 2 flexible. The choice for one partition is made in `changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum

from ottla.metadata.changes import Election, propose
from ottla.metadata.image import NO_LEADER, Partition, Topic
from ottla.metadata.records import MetadataRecord
from ottla.metadata.state import Context, ControllerState, Outcome
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.metadata_records import PartitionChangeRecord
from ottla.protocol.messages.topics import ElectLeadersRequest, ElectLeadersResponse

Located = tuple[Topic, int, Partition]


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


def in_sync_on(state: ControllerState, broker_id: int) -> list[Located]:
    """Partitions with this broker in their in-sync set; a scan, because brokers come and go seldom."""
    return [located for located in state.image.each_partition() if broker_id in located[2].isr]


def eligible_on(state: ControllerState, broker_id: int) -> list[Located]:
    return [located for located in state.image.each_partition() if broker_id in located[2].eligible_leaders]


def leaderless(state: ControllerState) -> Iterator[Located]:
    return (located for located in state.image.each_partition() if located[2].leader == NO_LEADER)


def leaving(state: ControllerState, broker_id: int) -> Iterator[Located]:
    """Partitions that have to do without this broker, and do not yet. Its last place in an in-sync set it may keep (KIP-966 has
    another place for it)."""
    keeps_last = not state.image.eligible_leaders_enabled
    for located in state.image.each_partition():
        partition = located[2]
        if broker_id in partition.isr and not (keeps_last and len(partition.isr) == 1 and partition.leader == NO_LEADER):
            yield located


def leads_any(state: ControllerState, broker_id: int) -> bool:
    return any(partition.leader == broker_id for _, _, partition in state.image.each_partition())


def leadership_records(
    state: ControllerState,
    partitions: Iterable[Located],
    *,
    gone: int | None = None,
    come: int | None = None,
    unclean: int | None = None,
    limit: int | None = None,
) -> list[MetadataRecord]:
    """What changes when a broker is gone, has come, or was shut down uncleanly and may have lost what it had; `limit` records of it."""

    def is_active(broker_id: int) -> bool:
        # The image does not yet show the broker as gone or come: that record is part of the same decision.
        if broker_id in (gone, unclean):
            return False
        return broker_id == come or state.is_active(broker_id)

    rules: dict[bytes, tuple[Election, int]] = {}
    records: list[MetadataRecord] = []
    for located in partitions:
        topic = located[0]
        if topic.topic_id not in rules:
            election = Election.UNCLEAN if state.may_elect_unclean(topic.name) else Election.ONLINE
            rules[topic.topic_id] = (election, state.min_insync_replicas(topic))
        record = _leadership_record(state, located, is_active, gone, unclean, rules[topic.topic_id])
        if record is not None:
            records.append(record)
            if len(records) == limit:
                break
    return records


def _leadership_record(
    state: ControllerState,
    located: Located,
    is_active: Callable[[int], bool],
    gone: int | None,
    unclean: int | None,
    rules: tuple[Election, int],
) -> PartitionChangeRecord | None:
    topic, index, partition = located
    change = propose(state, topic, index, partition, is_active)
    change.election, change.min_insync_replicas = rules
    if unclean is not None:
        change.unclean_replicas = frozenset({unclean})
    change.isr = [replica for replica in partition.isr if replica not in (gone, unclean)]
    return change.build()


def elect_leaders(state: ControllerState, request: ElectLeadersRequest, context: Context) -> Outcome:
    if request.topic_partitions is not None and not request.topic_partitions:
        return Outcome(reply=ElectLeadersResponse())  # whatever kind of election it is not
    if request.election_type not in tuple(ElectionType):
        return _no_such_election(request)
    election_type = ElectionType(request.election_type)
    records: list[MetadataRecord] = []
    results = []
    everything = request.topic_partitions is None
    for name, indexes in _asked_for(state, request):
        rows = []
        for index in indexes:
            error = _elect(state, name, index, election_type, records)
            # Asked for all, Kafka is silent about those that already have the leader they should.
            if not (everything and error is not None and error.code == ErrorCode.ELECTION_NOT_NEEDED):
                rows.append(_result(index, error))
        results.append(ElectLeadersResponse.ReplicaElectionResult(topic=name, partition_result=rows))
    return Outcome(records, ElectLeadersResponse(replica_election_results=results))


def _no_such_election(request: ElectLeadersRequest) -> Outcome:
    """Said of the request and of each of its partitions, as Kafka does."""
    error = ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    results = [
        ElectLeadersResponse.ReplicaElectionResult(
            topic=row.topic, partition_result=[_result(index, error) for index in row.partitions]
        )
        for row in request.topic_partitions or ()
    ]
    return Outcome([], ElectLeadersResponse(error_code=error.code, replica_election_results=results))


def _asked_for(state: ControllerState, request: ElectLeadersRequest) -> list[tuple[str, list[int]]]:
    if request.topic_partitions is None:
        return [(topic.name, list(topic.partitions)) for topic in state.image.topics.values()]
    return [(row.topic, row.partitions) for row in request.topic_partitions]


def _result(index: int, error: ApiError | None) -> ElectLeadersResponse.ReplicaElectionResult.PartitionResult:
    row = ElectLeadersResponse.ReplicaElectionResult.PartitionResult
    if error is None:
        return row(partition_id=index, error_message=None)
    return row(partition_id=index, error_code=error.code, error_message=error.message)


_NOT_NEEDED = ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
_NO_PREFERRED = ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
_NO_ELIGIBLE = ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")


def _elect(
    state: ControllerState, name: str, index: int, election_type: ElectionType, records: list[MetadataRecord]
) -> ApiError | None:
    topic = state.image.topic(name)
    if topic is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = topic.partitions.get(index)
    if partition is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    preferred = election_type is ElectionType.PREFERRED
    if partition.leader == partition.preferred_leader if preferred else partition.leader != NO_LEADER:
        return _NOT_NEEDED
    change = propose(state, topic, index, partition)
    change.election = Election.PREFERRED if preferred else Election.UNCLEAN
    record = change.build()
    if record is None:
        return _NO_PREFERRED if preferred else _NO_ELIGIBLE
    records.append(record)
    return None


def balance_leaders(state: ControllerState) -> list[MetadataRecord]:
    """Give leadership back to preferred replicas that can take it, as many as one check may."""
    records: list[MetadataRecord] = []
    for topic, index, partition in state.image.each_partition():
        if len(records) >= state.settings.max_elections_per_check:
            break
        if partition.leader == partition.preferred_leader:
            continue
        change = propose(state, topic, index, partition)
        change.election = Election.PREFERRED
        record = change.build()
        if record is not None:
            records.append(record)
    return records


def elect_unclean_leaders(state: ControllerState) -> list[MetadataRecord]:
    """Leaderless partitions of topics that allow it get any live replica as leader."""
    records: list[MetadataRecord] = []
    for topic, index, _ in leaderless(state):
        if len(records) >= state.settings.max_elections_per_check:
            break
        if state.may_elect_unclean(topic.name):
            _elect(state, topic.name, index, ElectionType.UNCLEAN, records)
    return records
