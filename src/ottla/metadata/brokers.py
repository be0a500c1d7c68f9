"""Brokers and controllers: registered, heard of, fenced, shut down, forgotten.

A broker's life, in the words of its heartbeat (KIP-631, KIP-841):

| it is | and asks | it becomes |
|---|---|---|
| fenced | to shut down | told to go at once |
| fenced | to serve, having read its own registration | unfenced, and elected where nobody leads |
| unfenced | to be fenced | fenced: it leads nothing and is in sync nowhere |
| unfenced | to shut down, leading something | in controlled shutdown: leadership moves away |
| unfenced | to shut down, leading nothing | fenced, and told to go |
| in controlled shutdown | and leads nothing, and all others have read that | fenced, and told to go |

Fencing follows the session time-out, or at once `BrokerUnreachable`. A session is known only to this activation of the
controller: a new one gives every unfenced broker a full session again.

A broker may hold more partitions than should change in one decision: everything else would wait. Then the decision that fences it
moves the first of them and sets a timer of no time for the next, and so on until nothing is left; a new activation goes on with it.
A partition that is still to be moved meanwhile shows a fenced leader, which clients are told is not available.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from ottla.metadata.elections import eligible_on, in_sync_on, leaderless, leadership_records, leads_any, leaving
from ottla.metadata.image import METADATA_VERSION, Broker
from ottla.metadata.records import LEVEL_3_7_IV2, LEVEL_4_3_IV0, MetadataRecord
from ottla.metadata.state import BrokerUnreachable, Context, ControllerState, Outcome, Session, SessionChange
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import uuid_text
from ottla.model.machine import Timer
from ottla.protocol.messages.controller import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from ottla.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)

FENCE, UNFENCE, SHUTTING_DOWN = 1, -1, 1
RESERVED_DIRECTORIES = 100  # ids that, read as numbers, are below this have a meaning of their own


LEADERLESS_TIMER = "leaderless"


def session_key(broker_id: int) -> tuple[str, int]:
    return ("session", broker_id)


def leaving_key(broker_id: int) -> tuple[str, int]:
    return ("leaving", broker_id)


# Registration -----------------------------------------------------------------------------------------------------------


def register_broker(state: ControllerState, request: BrokerRegistrationRequest, context: Context) -> Outcome:
    _check_cluster(state, request.cluster_id)
    existing = state.image.brokers.get(request.broker_id)
    _refuse_duplicate(state, request, existing, context.now_ms)
    _check_directories(state, request)
    _check_features(state, request)
    same = existing is not None and existing.incarnation_id == request.incarnation_id
    record = _registration(request, state.image.metadata_version >= LEVEL_3_7_IV2)
    records: list[MetadataRecord] = []
    if existing is not None and same:
        record.broker_epoch, record.fenced = existing.epoch, existing.fenced
        record.in_controlled_shutdown = existing.in_controlled_shutdown
    else:
        record.broker_epoch = context.next_offset
        records += _clean_up(state, request, existing)
    records.append(record)
    outcome = Outcome(records, BrokerRegistrationResponse(broker_epoch=record.broker_epoch))
    if not same:
        _end_session(outcome, request.broker_id)  # the new life's session begins with its first heartbeat
    return outcome


def _check_cluster(state: ControllerState, cluster_id: str) -> None:
    expected = state.settings.cluster_id
    if cluster_id != expected:
        raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"Expected cluster ID {expected}, but got cluster ID {cluster_id}")


def _refuse_duplicate(state: ControllerState, request: BrokerRegistrationRequest, existing: Broker | None, now_ms: int) -> None:
    session = state.sessions.get(request.broker_id)
    alive = session is not None and now_ms < session.last_seen_ms + state.settings.session_timeout_ms
    if session is not None and session.metadata_offset < 0 and request.broker_id == state.settings.node_id:
        alive = False  # the life before ended with the process that is now this controller: nobody is left to be displaced
    if existing is not None and alive and existing.incarnation_id != request.incarnation_id:
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session.",
        )
    if request.is_migrating_zk_broker:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers.")


def _check_directories(state: ControllerState, request: BrokerRegistrationRequest) -> None:
    if state.image.metadata_version < LEVEL_3_7_IV2:
        return
    wanted = request.log_dirs
    if not wanted:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "No directories specified in request")
    if any(int.from_bytes(directory, "big") < RESERVED_DIRECTORIES for directory in wanted):
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request")
    if len(set(wanted)) < len(wanted):
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request")
    for other in state.image.brokers.values():
        for directory in wanted:
            if other.broker_id != request.broker_id and directory in other.directories:
                raise ApiError(
                    ErrorCode.INVALID_REGISTRATION,
                    f"Broker {other.broker_id} is already registered with directory {uuid_text(directory)}",
                )


def _check_features(state: ControllerState, request: BrokerRegistrationRequest) -> None:
    """The broker must support every level that is finalized; one that it does not name it supports at 0 only."""
    supported = {row.name: (row.min_supported_version, row.max_supported_version) for row in request.features}
    if METADATA_VERSION not in supported:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Request features do not contain 'metadata.version'")
    for name, (lowest, highest) in supported.items():
        _check_level(name, state.image.features.get(name, 0), lowest, highest)
    for name, level in state.image.features.items():
        if name not in supported:
            _check_level(name, level, 0, 0)


def _check_level(name: str, level: int, lowest: int, highest: int) -> None:
    if not lowest <= level <= highest:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Unable to register because the broker does not support finalized version {level} of {name}. "
            f"The broker wants a version between {lowest} and {highest}, inclusive.",
        )


def _clean_up(state: ControllerState, request: BrokerRegistrationRequest, existing: Broker | None) -> list[MetadataRecord]:
    """A former life of this broker id ends: cleanly only if the broker knows the epoch of that life (KIP-966)."""
    broker_id = request.broker_id
    clean = request.previous_broker_epoch == (existing.epoch if existing is not None else -2)
    if state.image.eligible_leaders_enabled and not clean:
        former = [*in_sync_on(state, broker_id), *eligible_on(state, broker_id)]
        return leadership_records(state, former, unclean=broker_id)
    return leadership_records(state, in_sync_on(state, broker_id), gone=broker_id)


def _registration(request: BrokerRegistrationRequest, with_directories: bool) -> RegisterBrokerRecord:
    record = RegisterBrokerRecord
    return record(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        end_points=[
            record.BrokerEndpoint(name=end.name, host=end.host, port=end.port, security_protocol=end.security_protocol)
            for end in request.listeners
        ],
        features=[
            record.BrokerFeature(
                name=row.name,
                min_supported_version=row.min_supported_version,
                max_supported_version=row.max_supported_version,
            )
            for row in request.features
        ],
        rack=request.rack,
        log_dirs=list(request.log_dirs) if with_directories else [],
    )


def register_controller(state: ControllerState, request: ControllerRegistrationRequest, context: Context) -> Outcome:
    record = RegisterControllerRecord
    made = record(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        end_points=[
            record.ControllerEndpoint(name=end.name, host=end.host, port=end.port, security_protocol=end.security_protocol)
            for end in request.listeners
        ],
        features=[
            record.ControllerFeature(
                name=row.name,
                min_supported_version=row.min_supported_version,
                max_supported_version=row.max_supported_version,
            )
            for row in request.features
        ],
    )
    return Outcome([made], ControllerRegistrationResponse(error_message=None))


def unregister_broker(state: ControllerState, request: UnregisterBrokerRequest, context: Context) -> Outcome:
    broker = state.image.brokers.get(request.broker_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {request.broker_id} is not currently registered")
    former = [*in_sync_on(state, broker.broker_id), *eligible_on(state, broker.broker_id)]
    records = leadership_records(state, former, gone=broker.broker_id)
    records.append(UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch))
    outcome = Outcome(records, UnregisterBrokerResponse())
    _end_session(outcome, broker.broker_id)
    return outcome


# Heartbeats -------------------------------------------------------------------------------------------------------------


class _Next(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    SHUTTING_DOWN = "in controlled shutdown"
    GONE = "told to go"


def heartbeat(state: ControllerState, request: BrokerHeartbeatRequest, context: Context) -> Outcome:
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    broker = state.image.brokers[request.broker_id]
    session = state.sessions.get(broker.broker_id)
    registered_at = state.registered_at.get(broker.broker_id, -1)
    caught_up = request.current_metadata_offset >= registered_at
    is_shutting_down = session is not None and session.shutdown_offset is not None
    next_ = _next(state, broker, session, request, caught_up)
    fenced = next_ in (_Next.FENCED, _Next.GONE)
    outcome = Outcome()
    if fenced and not broker.fenced:
        _fence(state, broker, outcome)
    elif next_ is _Next.UNFENCED and broker.fenced:
        _unfence(state, broker, outcome)
    elif next_ is _Next.SHUTTING_DOWN and not is_shutting_down:
        _begin_shutdown(state, broker, outcome)
    if not fenced:
        outcome.records += _offline_directories(state, broker, request.offline_log_dirs)
    outcome.records += _cordoned_directories(state, broker, request.cordoned_log_dirs)
    shutdown_offset = session.shutdown_offset if session is not None else None
    if next_ is _Next.SHUTTING_DOWN and outcome.records:
        shutdown_offset = context.next_offset + len(outcome.records) - 1
    if next_ is _Next.GONE:
        _end_session(outcome, broker.broker_id)  # its successor need not wait for a session that nobody keeps up
    else:
        _extend_session(state, outcome, broker.broker_id, context.now_ms, request.current_metadata_offset, shutdown_offset)
    outcome.reply = BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=fenced, should_shut_down=next_ is _Next.GONE)
    return outcome


def _next(
    state: ControllerState, broker: Broker, session: Session | None, request: BrokerHeartbeatRequest, caught_up: bool
) -> _Next:
    if broker.fenced:
        if request.want_shut_down:
            return _Next.GONE
        may_serve = caught_up and not request.want_fence and not broker.in_controlled_shutdown
        return _Next.UNFENCED if may_serve else _Next.FENCED
    if session is not None and session.shutdown_offset is not None:
        done = not leads_any(state, broker.broker_id) and session.shutdown_offset <= _lowest_active_offset(state)
        return _Next.GONE if done else _Next.SHUTTING_DOWN
    if request.want_fence:
        return _Next.GONE if request.want_shut_down else _Next.FENCED
    if request.want_shut_down:
        return _Next.SHUTTING_DOWN if leads_any(state, broker.broker_id) else _Next.GONE
    return _Next.UNFENCED


def _lowest_active_offset(state: ControllerState) -> int:
    """How far all active brokers have read the log; no limit when there is none."""
    offsets = [session.metadata_offset for broker_id, session in state.sessions.items() if state.is_active(broker_id)]
    return min(offsets, default=2**63 - 1)


def _fence(state: ControllerState, broker: Broker, outcome: Outcome) -> None:
    _leave(state, broker.broker_id, outcome)
    outcome.records.append(_change(broker, fenced=FENCE))


def _unfence(state: ControllerState, broker: Broker, outcome: Outcome) -> None:
    outcome.records.append(_change(broker, fenced=UNFENCE))
    _lead_again(state, outcome, come=broker.broker_id)


def _begin_shutdown(state: ControllerState, broker: Broker, outcome: Outcome) -> None:
    if not broker.in_controlled_shutdown:
        outcome.records.append(_change(broker, in_controlled_shutdown=SHUTTING_DOWN))
    _leave(state, broker.broker_id, outcome)


def _leave(state: ControllerState, broker_id: int, outcome: Outcome) -> None:
    """Out of the in-sync sets and leaderships, as many as one decision may change."""
    limit = state.settings.max_moves_per_decision
    moved = leadership_records(state, leaving(state, broker_id), gone=broker_id, limit=limit)
    outcome.records += moved
    if len(moved) == limit:
        outcome.timers.append(Timer(leaving_key(broker_id), 0))


def leave_on(state: ControllerState, broker_id: int, context: Context) -> Outcome:
    """Go on where `_leave` stopped, unless the broker is back."""
    outcome = Outcome()
    broker = state.image.brokers.get(broker_id)
    if broker is not None and not broker.is_active:
        _leave(state, broker_id, outcome)
        session = state.sessions.get(broker_id)
        if outcome.records and session is not None and session.shutdown_offset is not None:
            read_by_all = context.next_offset + len(outcome.records) - 1
            outcome.changes.append(SessionChange(broker_id, replace(session, shutdown_offset=read_by_all)))
    return outcome


def _lead_again(state: ControllerState, outcome: Outcome, come: int | None = None) -> None:
    limit = state.settings.max_moves_per_decision
    elected = leadership_records(state, leaderless(state), come=come, limit=limit)
    outcome.records += elected
    if len(elected) == limit:
        outcome.timers.append(Timer(LEADERLESS_TIMER, 0))


def lead_again_on(state: ControllerState) -> Outcome:
    outcome = Outcome()
    _lead_again(state, outcome)
    return outcome


def _change(broker: Broker, *, fenced: int = 0, in_controlled_shutdown: int = 0) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )


def _offline_directories(state: ControllerState, broker: Broker, offline: Iterable[bytes]) -> list[MetadataRecord]:
    """Directories that failed take their replicas out of sync (KIP-858)."""
    failed = set(offline) & set(broker.directories)
    if not failed or state.image.metadata_version < LEVEL_3_7_IV2:
        return []
    lost = [located for located in state.image.each_partition() if located[2].directory_of(broker.broker_id) in failed]
    records = leadership_records(state, lost, gone=broker.broker_id)
    change = _change(broker)
    change.log_dirs = [directory for directory in broker.directories if directory not in failed]
    return [*records, change]


def _cordoned_directories(state: ControllerState, broker: Broker, cordoned: list[bytes] | None) -> list[MetadataRecord]:
    """Directories that take no new replicas (KIP-1066); None says nothing about them."""
    if cordoned is None or state.image.metadata_version < LEVEL_4_3_IV0 or set(cordoned) == set(broker.cordoned or ()):
        return []
    change = _change(broker)
    change.cordoned_log_dirs = list(cordoned)
    return [change]


# Sessions ---------------------------------------------------------------------------------------------------------------


def _extend_session(
    state: ControllerState, outcome: Outcome, broker_id: int, now_ms: int, offset: int, shutdown_offset: int | None = None
) -> None:
    outcome.changes.append(SessionChange(broker_id, Session(now_ms, offset, shutdown_offset)))
    outcome.timers.append(Timer(session_key(broker_id), state.settings.session_timeout_ms))


def _end_session(outcome: Outcome, broker_id: int) -> None:
    outcome.changes.append(SessionChange(broker_id, None))
    outcome.timers.append(Timer(session_key(broker_id), None))


def resume_sessions(state: ControllerState, context: Context) -> Outcome:
    """A new activation has heard of nobody: every unfenced broker gets a whole session to speak up. What the last one may have
    left half done is gone on with."""
    outcome = Outcome(timers=[Timer(LEADERLESS_TIMER, 0)])
    for broker in state.image.brokers.values():
        if not broker.fenced:
            _extend_session(state, outcome, broker.broker_id, context.now_ms, -1)
        if not broker.is_active:
            outcome.timers.append(Timer(leaving_key(broker.broker_id), 0))
    return outcome


def session_timed_out(state: ControllerState, broker_id: int, context: Context) -> Outcome:
    session = state.sessions.get(broker_id)
    if session is None:
        return Outcome()
    left_ms = session.last_seen_ms + state.settings.session_timeout_ms - context.now_ms
    if left_ms > 0:
        return Outcome(timers=[Timer(session_key(broker_id), left_ms)])
    return _expire(state, broker_id)


def broker_unreachable(state: ControllerState, event: BrokerUnreachable, context: Context) -> Outcome:
    broker = state.image.brokers.get(event.broker_id)
    if broker is None or broker.epoch != event.broker_epoch:
        return Outcome()  # it has come back in a new life meanwhile
    return _expire(state, event.broker_id)


def _expire(state: ControllerState, broker_id: int) -> Outcome:
    outcome = Outcome()
    broker = state.image.brokers.get(broker_id)
    if broker is not None and not broker.fenced:
        _fence(state, broker, outcome)
    _end_session(outcome, broker_id)
    return outcome
