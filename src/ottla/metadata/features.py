"""Feature levels: what this build supports, what a new cluster starts with, and UpdateFeatures; and blocks of producer ids.

UpdateFeatures: 1 upgrade types and validate-only, 2 all or nothing. Only levels that are served are advertised (design.md §1):
share groups and streams groups are not.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.metadata.image import BROKER, METADATA_VERSION, LevelRange
from ottla.metadata.records import LATEST_LEVEL, LEVEL_3_3_IV3, LEVEL_4_0_IV1, MetadataRecord
from ottla.metadata.state import Context, ControllerState, Outcome
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.controller import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.messages.metadata_records import (
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
)

ELIGIBLE_LEADERS = "eligible.leader.replicas.version"
KRAFT_VERSION = "kraft.version"
PRODUCER_ID_BLOCK = 1000
MAX_PRODUCER_ID = 2**63 - 1

# What a node of this build can live with, and tells of itself when it registers.
SUPPORTED_LEVELS: Mapping[str, LevelRange] = {
    METADATA_VERSION: LevelRange(LEVEL_3_3_IV3, LATEST_LEVEL),
    "transaction.version": LevelRange(0, 2),
    "group.version": LevelRange(0, 1),
    ELIGIBLE_LEADERS: LevelRange(0, 1),
    KRAFT_VERSION: LevelRange(0, 1),
}

# What a cluster of this build's own controllers may be raised to: their quorum's voters are those of the properties file, while a broker
# may well belong to a quorum whose voters change.
SERVED_LEVELS: Mapping[str, LevelRange] = {name: levels for name, levels in SUPPORTED_LEVELS.items() if name != KRAFT_VERSION}

# What a new cluster starts with: the levels of a Kafka 4.3 release, without those that are not served.
BOOTSTRAP_LEVELS: Mapping[str, int] = {
    METADATA_VERSION: LATEST_LEVEL,
    "transaction.version": 2,
    "group.version": 1,
    ELIGIBLE_LEADERS: 1,
}

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def bootstrap_records(state: ControllerState) -> list[MetadataRecord]:
    """The first records of a log, in one transaction, as Kafka writes them."""
    levels = state.settings.bootstrap_features
    records: list[MetadataRecord] = [BeginTransactionRecord(name="Bootstrap records")]
    records += [FeatureLevelRecord(name=name, feature_level=level) for name, level in in_order(levels)]
    if levels.get(ELIGIBLE_LEADERS, 0) > 0:
        records.append(_cluster_min_insync(state))
    records.append(EndTransactionRecord())
    return records


def in_order(levels: Mapping[str, int]) -> list[tuple[str, int]]:
    """As Kafka writes them: the version of the metadata first; a feature at level 0 is one that is not there."""
    rows = [(name, level) for name, level in levels.items() if level > 0]
    return sorted(rows, key=lambda row: (row[0] != METADATA_VERSION, row[0]))


def _cluster_min_insync(state: ControllerState) -> ConfigRecord:
    """Eligible leaders need one minimum for the whole cluster, whatever each broker's own properties say (KIP-966)."""
    value = state.rules.default_value(BROKER, "min.insync.replicas") or "1"
    return ConfigRecord(resource_type=BROKER, resource_name="", name="min.insync.replicas", value=value)


def give_up_records(state: ControllerState) -> list[MetadataRecord]:
    """A node that is alone in a cluster which Kafka began gives up the features that it does not have at all (share groups, streams
    groups): Kafka turns them on in every new cluster, and nobody is left whom they could serve. What they kept stays in its topics.

    With other nodes there it is not for this one to decide: then it cannot register, as it could not with Kafka's controllers.
    """
    nodes = {*state.image.brokers, *state.image.controllers, *state.settings.quorum_ids}
    if nodes - {state.settings.node_id}:
        return []
    foreign = sorted(state.image.features.keys() - state.settings.supported_features.keys())
    return [FeatureLevelRecord(name=name, feature_level=0) for name in foreign]


def update_features(state: ControllerState, request: UpdateFeaturesRequest, context: Context) -> Outcome:
    records: list[MetadataRecord] = []
    response = UpdateFeaturesResponse(error_message=None)
    row = UpdateFeaturesResponse.UpdatableFeatureResult
    names = [update.feature for update in request.feature_updates]
    try:
        if len(set(names)) < len(names):
            raise ApiError(ErrorCode.INVALID_REQUEST, "Found duplicate FeatureUpdates.")
        for update in request.feature_updates:
            records += _update(state, update, context.version)
    except ApiError as error:
        if context.version > 1:
            message = f"The update failed for all features since the following feature had an error: {error.message}"
            return Outcome(reply=UpdateFeaturesResponse(error_code=error.code, error_message=message))
        return Outcome(reply=UpdateFeaturesResponse(error_code=error.code, error_message=error.message))
    if context.version <= 1:
        response.results = [row(feature=name, error_message=None) for name in names]
    return Outcome([] if request.validate_only else records, response)


def _update(state: ControllerState, update: UpdateFeaturesRequest.FeatureUpdateKey, version: int) -> list[MetadataRecord]:
    name, level = update.feature, update.max_version_level
    kind = update.upgrade_type if version >= 1 else SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(name, level, "The controller does not support the given upgrade type.")
    present = state.image.features.get(name, 0)
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    reason = _why_not_supported(state, name, level)
    if reason:
        raise _invalid(name, level, reason)
    if level < present and kind == UPGRADE:
        raise _invalid(
            name,
            level,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
        )
    if level > present and kind != UPGRADE:
        raise _invalid(name, level, "Can't downgrade to a newer version.")
    if name == METADATA_VERSION and level < present:
        _refuse_metadata_downgrade(present, level, kind)
    if name == KRAFT_VERSION and level == present:
        return []  # a record of the quorum's own would say it, not one of the metadata
    return _level_records(state, name, level, present)


def _refuse_metadata_downgrade(present: int, level: int, kind: int) -> None:
    reason = (
        "Unsafe metadata downgrade is not supported in this version."
        if kind == UNSAFE_DOWNGRADE
        else "Refusing to perform the requested downgrade because it might delete metadata information."
    )
    raise ApiError(
        ErrorCode.INVALID_UPDATE_VERSION, f"Unsupported metadata.version downgrade from {present} to {level}. {reason}"
    )


def _level_records(state: ControllerState, name: str, level: int, present: int) -> list[MetadataRecord]:
    records: list[MetadataRecord] = [FeatureLevelRecord(name=name, feature_level=level)]
    if name != ELIGIBLE_LEADERS or level == present:
        return records
    if level > 0 and state.image.metadata_version < LEVEL_4_0_IV1:
        raise _invalid(
            name, level, f"{name} could not be set to {level} because it depends on {METADATA_VERSION} level {LEVEL_4_0_IV1}"
        )
    if level == 0:
        return records
    for (kind, resource), values in state.image.configs.items():
        if kind == BROKER and resource and "min.insync.replicas" in values:
            records.append(ConfigRecord(resource_type=BROKER, resource_name=resource, name="min.insync.replicas", value=None))
    if "min.insync.replicas" not in state.image.config(BROKER, ""):
        records.append(_cluster_min_insync(state))
    return records


def _why_not_supported(state: ControllerState, name: str, level: int) -> str | None:
    nodes: list[tuple[str, Mapping[str, LevelRange]]] = [
        (f"Local controller {state.settings.node_id}", state.settings.supported_features)
    ]
    nodes += [(f"Broker {broker.broker_id}", broker.features) for broker in state.image.brokers.values()]
    registered = state.image.controllers
    nodes += [
        (f"Controller {node_id}", node.features) for node_id, node in registered.items() if node_id != state.settings.node_id
    ]
    if level == 0 and name not in SUPPORTED_LEVELS.keys() | state.image.features.keys():
        return f"Feature {name} not found."
    for who, supported in nodes:
        levels = supported.get(name, LevelRange(0, 0))
        if level == 0 and name != METADATA_VERSION:
            continue
        if levels.highest == 0:
            return f"{who} does not support this feature."
        if not levels.lowest <= level <= levels.highest:
            return f"{who} only supports versions {levels.lowest}-{levels.highest}"
    for node_id in sorted(state.settings.quorum_ids - registered.keys() - {state.settings.node_id}):
        return f"controller {node_id} has not registered, and may not support this feature"
    return None


def _invalid(name: str, level: int, reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {reason}")


def allocate_producer_ids(state: ControllerState, request: AllocateProducerIdsRequest, context: Context) -> Outcome:
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    first = max(0, state.image.next_producer_id)
    if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit",
        )
    record = ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK
    )
    return Outcome([record], AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK))
