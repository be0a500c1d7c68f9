"""Registration, levels and producer ids: who may take part, and with what."""

from __future__ import annotations

import pytest

from ottla.metadata.features import BOOTSTRAP_LEVELS, KRAFT_VERSION
from ottla.metadata.image import BROKER
from ottla.metadata.records import LATEST_LEVEL
from ottla.metadata.state import BrokerUnreachable
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.controller import (
    AllocateProducerIdsRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    UpdateFeaturesRequest,
)
from ottla.protocol.messages.metadata_records import BeginTransactionRecord, EndTransactionRecord, NoOpRecord
from tests.metadata.driver import Driver


def test_the_first_activation_writes_the_levels_and_a_later_one_nothing() -> None:
    cluster = Driver()
    assert isinstance(cluster.log[0], BeginTransactionRecord)
    assert isinstance(cluster.log[-1], EndTransactionRecord)
    assert cluster.image.features == BOOTSTRAP_LEVELS
    assert cluster.image.metadata_version == LATEST_LEVEL
    assert cluster.image.config(BROKER, "") == {"min.insync.replicas": "1"}
    again = Driver(cluster.image)
    assert again.log == []


def test_a_brokers_epoch_is_the_offset_of_its_registration() -> None:
    cluster = Driver()
    end = len(cluster.log)
    assert cluster.register(1).broker_epoch == end
    assert cluster.register(1).broker_epoch == end  # the same life says so again
    assert cluster.register(1, life=2).broker_epoch == end + 2


def test_a_second_process_with_the_id_of_a_living_broker_waits_for_its_session() -> None:
    cluster = Driver()
    cluster.start(1)
    assert cluster.register(1, life=2).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.sleep(9_000)
    assert cluster.image.brokers[1].fenced
    assert cluster.register(1, life=2).error_code == 0


def test_a_broker_that_is_surely_gone_may_be_replaced_at_once_but_only_in_that_life() -> None:
    cluster = Driver()
    cluster.start(1)
    former = cluster.image.brokers[1].epoch
    cluster.kill(1)
    assert cluster.register(1, life=2).error_code == 0
    cluster.beat(1)
    cluster.ask(BrokerUnreachable(1, former))
    assert not cluster.image.brokers[1].fenced


def test_a_stale_heartbeat_changes_nothing() -> None:
    cluster = Driver()
    cluster.start(1)
    reply = cluster.beat(1, broker_epoch=1, want_fence=True)
    assert reply.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert not cluster.image.brokers[1].fenced
    assert cluster.beat(9).error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [(10_001).to_bytes(16, "big")]}, ErrorCode.INVALID_REGISTRATION),
        ({"features": []}, ErrorCode.INVALID_REGISTRATION),
    ],
)
def test_a_node_that_does_not_belong_is_refused(fields: dict[str, object], code: ErrorCode) -> None:
    cluster = Driver()
    cluster.start(1)
    assert cluster.register(2, **fields).error_code == code
    assert 2 not in cluster.image.brokers


def test_a_new_controller_gives_living_brokers_a_whole_session() -> None:
    cluster = Driver()
    cluster.start(1, 2)
    cluster.kill(2)
    successor = Driver(cluster.image)
    successor.log = list(cluster.log)
    assert set(successor.timers) >= {("session", 1)}
    successor.sleep(8_999)
    assert not successor.image.brokers[1].fenced
    successor.sleep(1)
    assert successor.image.brokers[1].fenced


def test_producer_ids_come_in_blocks_that_never_overlap() -> None:
    cluster = Driver()
    cluster.start(1, 2)
    blocks = [
        cluster.ask(AllocateProducerIdsRequest(broker_id=broker, broker_epoch=cluster.image.brokers[broker].epoch))
        for broker in (1, 2, 1)
    ]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [(0, 1000), (1000, 1000), (2000, 1000)]


def update(cluster: Driver, name: str, level: int, kind: int = 1) -> int:
    row = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    code: int = cluster.ask(UpdateFeaturesRequest(feature_updates=[row])).error_code
    return code


def test_levels_rise_only_where_everybody_follows() -> None:
    cluster = Driver(bootstrap_features={"metadata.version": 25})
    cluster.start(1)
    assert update(cluster, "share.version", 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(cluster, "metadata.version", LATEST_LEVEL) == 0
    assert update(cluster, "metadata.version", 25, kind=2) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(cluster, "eligible.leader.replicas.version", 1) == 0
    assert cluster.image.eligible_leaders_enabled
    assert cluster.image.config(BROKER, "") == {"min.insync.replicas": "1"}
    waiting = Driver(quorum_ids=frozenset({1, 2}), bootstrap_features={"metadata.version": 25})
    assert update(waiting, "metadata.version", LATEST_LEVEL) == ErrorCode.INVALID_UPDATE_VERSION
    feature = ControllerRegistrationRequest.Feature(name="metadata.version", min_supported_version=7, max_supported_version=30)
    waiting.ask(ControllerRegistrationRequest(controller_id=2, incarnation_id=b"c" * 16, features=[feature]))
    assert update(waiting, "metadata.version", LATEST_LEVEL) == 0


def test_the_voters_of_a_quorum_of_ours_stay_static() -> None:
    """Kafka's controllers would write voter records (KIP-853); ours cannot, and say so as one of Kafka's does that is too old for it."""
    cluster = Driver()
    cluster.start(1)
    row = UpdateFeaturesRequest.FeatureUpdateKey(feature=KRAFT_VERSION, max_version_level=1)
    for validate_only in (True, False):
        refused = cluster.ask(UpdateFeaturesRequest(feature_updates=[row], validate_only=validate_only))
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert refused.error_message.endswith(
            "version 1 for feature kraft.version. Local controller 1 does not support this feature."
        )
    end = len(cluster.log)
    assert update(cluster, KRAFT_VERSION, 0) == 0
    assert KRAFT_VERSION not in cluster.image.features
    assert cluster.log[end:] == []


def test_a_broker_of_ours_may_join_a_quorum_whose_voters_change() -> None:
    cluster = Driver(bootstrap_features={"metadata.version": LATEST_LEVEL, KRAFT_VERSION: 1})
    cluster.start(1)
    assert not cluster.image.brokers[1].fenced


def test_a_node_that_is_alone_gives_up_the_features_it_does_not_have() -> None:
    """Kafka turns share groups and streams groups on in every new cluster."""
    kafkas = {**BOOTSTRAP_LEVELS, "share.version": 1, "streams.version": 1}
    before = Driver(bootstrap_features=kafkas)
    assert before.image.features == kafkas
    alone = Driver(before.image)
    assert alone.image.features == BOOTSTRAP_LEVELS
    assert alone.register(1).error_code == 0
    assert Driver(alone.image).last_records == ()


@pytest.mark.parametrize("other", ["broker", "controller", "voter"])
def test_with_others_there_a_node_gives_up_no_feature(other: str) -> None:
    kafkas = {**BOOTSTRAP_LEVELS, "share.version": 1}
    cluster = Driver(bootstrap_features=kafkas)
    theirs = [
        BrokerRegistrationRequest.Feature(name=name, min_supported_version=0, max_supported_version=level)
        for name, level in kafkas.items()
    ]
    if other == "broker":
        assert cluster.register(2, features=theirs).error_code == 0
    if other == "controller":
        cluster.ask(ControllerRegistrationRequest(controller_id=2, incarnation_id=b"c" * 16, features=[]))
    settings = {"quorum_ids": frozenset({1, 2})} if other == "voter" else {}
    one = Driver(cluster.image, **settings)
    assert one.image.features == kafkas
    assert one.register(1).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_idle_controller_says_so_in_the_log_where_it_is_asked_to() -> None:
    cluster = Driver(max_idle_interval_ms=500)
    end = len(cluster.log)
    cluster.sleep(1_600)
    assert cluster.log[end:] == [NoOpRecord()] * 3
