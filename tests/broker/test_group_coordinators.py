"""The topics of the cluster as groups see them: a new version only when an assignor could see the difference."""

from __future__ import annotations

from ottla.broker.group_coordinators import TopicsView
from ottla.metadata.delta import Changes
from ottla.metadata.image import Broker, ClusterImage, Partition, Topic

ID = b"t" * 16


def broker(broker_id: int, rack: str | None) -> Broker:
    return Broker(broker_id, 1, bytes(16), (), {}, rack, False, False, ())


def image(partitions: int, racks: dict[int, str | None], leader: int = 1) -> ClusterImage:
    parts = {n: Partition((1, 2), (1, 2), leader, 0, 0) for n in range(partitions)}
    return ClusterImage(
        topics={ID: Topic("t", ID, parts)}, topic_ids={"t": ID}, brokers={n: broker(n, rack) for n, rack in racks.items()}
    )


def test_a_change_of_leader_is_nothing_to_groups_and_a_new_partition_is():
    view = TopicsView()
    view.load(image(2, {1: None, 2: None}))
    version = view.topics.version
    view.follow(image(2, {1: None, 2: None}, leader=2), Changes(partitions={ID: {0, 1}}))
    assert view.topics.version == version
    view.follow(image(3, {1: None, 2: None}), Changes(partitions={ID: {2}}))
    assert view.topics.version == version + 1
    assert view.topics.by_name["t"].partition_count == 3


def test_racks_are_those_of_the_replicas_and_follow_the_brokers():
    view = TopicsView()
    view.load(image(1, {1: "x", 2: "y"}))
    assert view.topics.by_id[ID].racks == (frozenset({"x", "y"}),)
    view.follow(image(1, {1: "x", 2: "z"}), Changes(brokers={2}))
    assert view.topics.by_id[ID].racks == (frozenset({"x", "z"}),)


def test_a_deleted_topic_is_gone_and_a_namesake_is_another():
    view = TopicsView()
    before = image(1, {1: None})
    view.load(before)
    other = b"u" * 16
    after = ClusterImage(topics={other: Topic("t", other, before.topics[ID].partitions)}, topic_ids={"t": other})
    view.follow(after, Changes(deleted_topics={ID: before.topics[ID]}, created_topics={other}, partitions={other: {0}}))
    assert set(view.topics.by_id) == {other}
    assert view.topics.by_name["t"].topic_id == other
