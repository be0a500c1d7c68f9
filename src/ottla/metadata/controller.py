"""The active controller: a machine that turns requests into metadata records and replies (design.md §3).

What the shell must do, on the node that leads the metadata quorum:

1. Make a `Controller` and `apply` every record of the log, or give it the image of a snapshot and apply the rest. Standby nodes
   may keep one warm in this way.
2. On becoming leader, once every record up to the end of the log is applied: `decide(Activated(), context)`. For an empty log
   this gives the bootstrap records; it also sets the timers. Only then serve requests.
3. For each request, time-out (`TimedOut(timer.key)`) and `BrokerUnreachable`: `decide(event, context)`, with `context.next_offset`
   the end of the log. Append the decision's records there as one batch, then `apply` each with its offset, `apply_change` each
   change, set the timers, and send the replies once the records are committed (see `model.machine`). Nothing else may be
   appended between `decide` and that append, because a broker's epoch is the offset of its registration.
4. On losing leadership drop all waiting replies (NOT_CONTROLLER) and timers, and `stand_down()`. If records that were applied
   have been truncated from the log, make a new controller from the image of what is committed.

Records are messages of `protocol.messages.metadata_records`; `metadata.records.encode(record, controller.image.metadata_version)`
gives their bytes. Requests not served here raise `KeyError`: the caller's table of APIs decides who serves what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ottla.metadata import brokers, configs, elections, features, isr, quotas, reassignment, topics
from ottla.metadata.delta import Changes, Delta
from ottla.metadata.image import METADATA_VERSION, ClusterImage
from ottla.metadata.records import MetadataRecord
from ottla.metadata.state import (
    Activated,
    BrokerUnreachable,
    Context,
    ControllerSettings,
    ControllerState,
    Outcome,
    SessionChange,
    SettingsRules,
    TimedOut,
)
from ottla.model.errors import ApiError
from ottla.model.machine import Decision, Reply, Timer
from ottla.protocol.messages import configs as config_messages
from ottla.protocol.messages import controller as messages
from ottla.protocol.messages import log_dirs as directory_messages
from ottla.protocol.messages import quotas as quota_messages
from ottla.protocol.messages import topics as topic_messages
from ottla.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
    RegisterBrokerRecord,
)

BALANCE_TIMER = "balance-leaders"
UNCLEAN_TIMER = "unclean-elections"
IDLE_TIMER = "idle"

Handler = Callable[[ControllerState, Any, Context], Outcome]

# Each request with who decides it and the message that tells of an error that concerns all of it.
_REQUESTS: dict[type[Any], tuple[Handler, type[Any] | None]] = {
    topic_messages.CreateTopicsRequest: (topics.create_topics, None),
    topic_messages.DeleteTopicsRequest: (topics.delete_topics, None),
    topic_messages.CreatePartitionsRequest: (topics.create_partitions, None),
    topic_messages.ElectLeadersRequest: (elections.elect_leaders, topic_messages.ElectLeadersResponse),
    topic_messages.AlterPartitionReassignmentsRequest: (
        reassignment.alter_partition_reassignments,
        topic_messages.AlterPartitionReassignmentsResponse,
    ),
    topic_messages.ListPartitionReassignmentsRequest: (
        reassignment.list_partition_reassignments,
        topic_messages.ListPartitionReassignmentsResponse,
    ),
    config_messages.IncrementalAlterConfigsRequest: (configs.incremental_alter_configs, None),
    config_messages.AlterConfigsRequest: (configs.alter_configs, None),
    quota_messages.AlterClientQuotasRequest: (quotas.alter_client_quotas, None),
    messages.BrokerRegistrationRequest: (brokers.register_broker, messages.BrokerRegistrationResponse),
    messages.BrokerHeartbeatRequest: (brokers.heartbeat, messages.BrokerHeartbeatResponse),
    messages.UnregisterBrokerRequest: (brokers.unregister_broker, messages.UnregisterBrokerResponse),
    messages.ControllerRegistrationRequest: (brokers.register_controller, messages.ControllerRegistrationResponse),
    messages.AlterPartitionRequest: (isr.alter_partition, messages.AlterPartitionResponse),
    directory_messages.AssignReplicasToDirsRequest: (
        isr.assign_replicas_to_dirs,
        directory_messages.AssignReplicasToDirsResponse,
    ),
    messages.AllocateProducerIdsRequest: (features.allocate_producer_ids, messages.AllocateProducerIdsResponse),
    messages.UpdateFeaturesRequest: (features.update_features, messages.UpdateFeaturesResponse),
    BrokerUnreachable: (brokers.broker_unreachable, None),
}

SERVED_REQUESTS = frozenset(_REQUESTS)


class Controller:
    def __init__(self, settings: ControllerSettings, rules: SettingsRules, image: ClusterImage | None = None) -> None:
        """`image` is where to start: the content of a snapshot, or nothing for an empty log."""
        self._state = ControllerState(settings, rules, image or ClusterImage())
        for name in self._state.image.topic_ids:
            self._note_name(name)
        for broker in self._state.image.brokers.values():
            # A snapshot does not tell where the registration was; the epoch is that offset, or before it.
            self._state.registered_at[broker.broker_id] = broker.epoch

    @property
    def image(self) -> ClusterImage:
        """Everything applied so far, committed or not. Answer reads from what is committed instead."""
        return self._state.image

    # Deciding: reads state and changes nothing ---------------------------------------------------------------------------

    def decide(self, event: Any, context: Context) -> Decision[MetadataRecord, SessionChange]:
        if isinstance(event, Activated):
            outcome = self._activate(context)
        elif isinstance(event, TimedOut):
            outcome = self._timed_out(event.key, context)
        else:
            outcome = self._answer(event, context)
        replies = () if outcome.reply is None else (Reply(context.ticket, outcome.reply),)
        return Decision(tuple(outcome.records), tuple(outcome.changes), replies, tuple(outcome.timers))

    def _answer(self, request: Any, context: Context) -> Outcome:
        handler, response = _REQUESTS[type(request)]
        try:
            return handler(self._state, request, context)
        except ApiError as error:
            assert response is not None, f"{type(request).__name__} has no place for an error of the whole request"
            reply = response(error_code=int(error.code))
            if hasattr(reply, "error_message"):
                reply.error_message = error.message
            return Outcome(reply=reply)

    def _activate(self, context: Context) -> Outcome:
        outcome = brokers.resume_sessions(self._state, context)
        if self._state.image_before_transaction is not None:
            outcome.records.append(AbortTransactionRecord(reason="Controller failover"))
        if METADATA_VERSION not in (self._state.image_before_transaction or self.image).features:
            outcome.records += features.bootstrap_records(self._state)
        else:
            outcome.records += features.give_up_records(self._state)
        settings = self._state.settings
        if settings.imbalance_check_interval_ms is not None:
            outcome.timers.append(Timer(BALANCE_TIMER, settings.imbalance_check_interval_ms))
        outcome.timers.append(Timer(UNCLEAN_TIMER, settings.unclean_check_interval_ms))
        if settings.max_idle_interval_ms:
            outcome.timers.append(Timer(IDLE_TIMER, settings.max_idle_interval_ms))
        return outcome

    def _timed_out(self, key: Any, context: Context) -> Outcome:
        settings = self._state.settings
        if key == BALANCE_TIMER and settings.imbalance_check_interval_ms is not None:
            return self._check(key, elections.balance_leaders(self._state), settings.imbalance_check_interval_ms)
        if key == UNCLEAN_TIMER:
            return self._check(key, elections.elect_unclean_leaders(self._state), settings.unclean_check_interval_ms)
        if key == IDLE_TIMER:
            return Outcome([NoOpRecord()], timers=[Timer(key, settings.max_idle_interval_ms)])
        if key == brokers.LEADERLESS_TIMER:
            return brokers.lead_again_on(self._state)
        if isinstance(key, tuple) and key[0] == "session":
            return brokers.session_timed_out(self._state, key[1], context)
        if isinstance(key, tuple) and key[0] == "leaving":
            return brokers.leave_on(self._state, key[1], context)
        return Outcome()

    def _check(self, key: str, records: list[MetadataRecord], interval_ms: int) -> Outcome:
        """Full batches mean that there is more to do at once."""
        delay_ms = 0 if len(records) >= self._state.settings.max_elections_per_check else interval_ms
        return Outcome(records, timers=[Timer(key, delay_ms)])

    # Applying: alone changes state, and cannot fail -----------------------------------------------------------------------

    def apply(self, record: MetadataRecord, offset: int, epoch: int = -1) -> None:
        self.apply_batch((record,), offset, epoch)

    def apply_batch(self, records: Sequence[MetadataRecord], first_offset: int, epoch: int = -1) -> None:
        """The same as applying one by one, but copies each table once."""
        state = self._state
        delta = Delta(state.image)
        for offset, record in enumerate(records, start=first_offset):
            if isinstance(record, BeginTransactionRecord):
                state.image = state.image_before_transaction = delta.finish(offset, epoch)
                self._index_names(delta.changes)
                delta = Delta(state.image)
            elif isinstance(record, EndTransactionRecord):
                state.image_before_transaction = None
            elif isinstance(record, AbortTransactionRecord):
                delta = Delta(state.image_before_transaction or state.image)
                state.image_before_transaction = None
            else:
                delta.apply(record)
                if isinstance(record, RegisterBrokerRecord):
                    state.registered_at[record.broker_id] = offset
        if records:
            state.image = delta.finish(first_offset + len(records) - 1, epoch)
            self._index_names(delta.changes)

    def _index_names(self, changes: Changes) -> None:
        for topic in changes.deleted_topics.values():
            self._forget_name(topic.name)
        for topic_id in changes.created_topics:
            self._note_name(self.image.topics[topic_id].name)

    def apply_change(self, change: SessionChange) -> None:
        if change.session is None:
            self._state.sessions.pop(change.broker_id, None)
        else:
            self._state.sessions[change.broker_id] = change.session

    def stand_down(self) -> None:
        """No longer leader: what was volatile is forgotten."""
        self._state.sessions.clear()

    def _note_name(self, name: str) -> None:
        form = topics.collision_form(name)
        if form is not None:
            self._state.colliding.setdefault(form, set()).add(name)

    def _forget_name(self, name: str) -> None:
        form = topics.collision_form(name)
        names = self._state.colliding.get(form or "")
        if form is not None and names is not None:
            names.discard(name)
            if not names:
                del self._state.colliding[form]
