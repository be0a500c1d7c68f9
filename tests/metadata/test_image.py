"""The image: what records add up to, whatever the batches they come in, and what a snapshot of it brings back."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.metadata import records as frames
from ottla.metadata import snapshot
from ottla.metadata.delta import apply_batch
from ottla.metadata.image import ClusterImage
from ottla.metadata.loader import Loader
from ottla.metadata.records import MetadataRecord, OpaqueRecord
from ottla.metadata.snapshot import SnapshotPolicy
from ottla.model.errors import ProtocolError
from ottla.protocol.messages import metadata_records as m
from tests.metadata.strategies import histories, single

EXAMPLES = settings(max_examples=150, deadline=None)


def image_of(records: list[MetadataRecord]) -> ClusterImage:
    return apply_batch(ClusterImage(), records)[0]


@EXAMPLES
@given(histories())
def test_a_snapshot_brings_back_an_equal_image(history: list[MetadataRecord]) -> None:
    image = image_of(history)
    written = [frames.encode(record, 30) for record in snapshot.to_records(image)]
    assert snapshot.load([frames.decode(value) for value in written], -1, -1) == image


@EXAMPLES
@given(histories(), st.integers(1, 7))
def test_the_size_of_batches_does_not_matter(history: list[MetadataRecord], size: int) -> None:
    image = ClusterImage()
    for start in range(0, len(history), size):
        image, _ = apply_batch(image, history[start : start + size])
    assert image == image_of(history)


@EXAMPLES
@given(histories(), st.integers(1, 7))
def test_portions_are_small_and_together_the_whole(history: list[MetadataRecord], most: int) -> None:
    _, changes = apply_batch(ClusterImage(), history)
    first, *more = changes.portions(most)
    assert replace(first, partitions=changes.partitions) == changes
    assert not any(replace(portion, partitions={}) for portion in more)
    rows = [(topic_id, index) for each in (first, *more) for topic_id, found in each.partitions.items() for index in found]
    assert sorted(rows) == sorted((topic_id, index) for topic_id, found in changes.partitions.items() for index in found)
    assert all(sum(map(len, each.partitions.values())) <= most for each in (first, *more))


@EXAMPLES
@given(histories(), st.lists(single, min_size=1, max_size=5))
def test_an_image_never_changes_and_changes_name_all_that_did(history: list[MetadataRecord], batch: list[MetadataRecord]) -> None:
    before = image_of(history)
    kept = copy.deepcopy(before)
    after, changes = apply_batch(before, batch)
    assert before == kept
    for topic_id in before.topics.keys() | after.topics.keys():
        old, new = before.topics.get(topic_id), after.topics.get(topic_id)
        if old is not None and new is None:
            assert changes.deleted_topics[topic_id] == old
        elif old is None and new is not None:
            assert topic_id in changes.created_topics
        elif old is not None and new is not None:
            moved = {index for index, partition in new.partitions.items() if old.partitions.get(index) != partition}
            assert moved <= changes.partitions.get(topic_id, set())
    for table in ("brokers", "controllers", "configs", "quotas", "features", "scram", "acls", "tokens"):
        old_rows, new_rows = getattr(before, table), getattr(after, table)
        differing = {key for key in old_rows.keys() | new_rows.keys() if old_rows.get(key) != new_rows.get(key)}
        assert differing <= getattr(changes, table)
    if not changes:
        assert replace(after, opaque=()) == replace(before, opaque=())


@EXAMPLES
@given(single)
def test_every_record_survives_its_frame(record: MetadataRecord) -> None:
    value = frames.encode(record, 30)
    assert frames.encode(frames.decode(value), 30) == value


def test_a_record_is_framed_as_kafka_frames_it() -> None:
    record = m.FeatureLevelRecord(name="metadata.version", feature_level=30)
    assert frames.encode(record, 30) == bytes([1, 12, 0, 17]) + b"metadata.version" + bytes([0, 30, 0])


def test_an_unknown_type_or_version_is_kept_as_it_was() -> None:
    assert frames.decode(b"\x01\x63\x02body") == OpaqueRecord(99, 2, b"body")
    assert frames.decode(b"\x01\x02\x07body") == OpaqueRecord(2, 7, b"body")
    assert image_of([OpaqueRecord(99, 2, b"body")]).opaque == (OpaqueRecord(99, 2, b"body"),)


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x00\x02\x00", b"\x02\x02\x00abc", b"\x01\x02\x00\xff"])
def test_a_broken_frame_is_a_protocol_error(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.decode(value)


def test_one_change_among_ten_thousand_partitions_shares_the_rest() -> None:
    history: list[MetadataRecord] = []
    for number in range(1, 101):
        topic_id = number.to_bytes(16, "big")
        history.append(m.TopicRecord(name=f"t{number}", topic_id=topic_id))
        history += [
            m.PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1) for index in range(100)
        ]
    before = image_of(history)
    changed = (7).to_bytes(16, "big")
    after, changes = apply_batch(before, [m.PartitionChangeRecord(partition_id=3, topic_id=changed, leader=-1)])
    assert changes.partitions == {changed: {3}}
    assert [key for key in after.topics if after.topics[key] is not before.topics[key]] == [changed]
    others = {
        index
        for index, partition in after.topics[changed].partitions.items()
        if partition is not before.topics[changed].partitions[index]
    }
    assert others == {3}
    assert after.configs is before.configs


def test_the_records_of_a_transaction_become_visible_together_or_never() -> None:
    loader = Loader()
    topic = m.TopicRecord(name="a", topic_id=b"a" * 16)
    other = m.TopicRecord(name="b", topic_id=b"b" * 16)
    image, changes = loader.apply_batch([topic, m.BeginTransactionRecord(name="x"), other], 2, 1)
    assert set(image.topic_ids) == {"a"}
    assert image.offset == 0  # a snapshot of this image must not claim to contain the open transaction
    image, changes = loader.apply_batch([m.NoOpRecord()], 3, 1)
    assert not changes
    assert image.offset == 0
    image, changes = loader.apply_batch([m.EndTransactionRecord()], 4, 1)
    assert set(image.topic_ids) == {"a", "b"}
    assert changes.created_topics == {b"b" * 16}
    assert image.offset == 4
    loader.apply_batch([m.BeginTransactionRecord(), m.RemoveTopicRecord(topic_id=b"a" * 16)], 6, 1)
    image, changes = loader.apply_batch([m.AbortTransactionRecord()], 7, 1)
    assert set(image.topic_ids) == {"a", "b"}
    assert not changes
    assert image.offset == 7


def test_a_snapshot_is_due_after_enough_log_or_enough_time_with_any() -> None:
    policy = SnapshotPolicy(max_new_record_bytes=1000, max_interval_ms=60)
    assert not policy.is_due(0, 10**9)
    assert not policy.is_due(999, 59)
    assert policy.is_due(1000, 0)
    assert policy.is_due(1, 60)
    assert not SnapshotPolicy(1000, 0).is_due(1, 10**9)
