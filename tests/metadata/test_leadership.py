"""Who leads: when brokers die, return, shut down, and when nobody surely has everything."""

from __future__ import annotations

from ottla.metadata.records import LATEST_LEVEL
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.topics import ElectLeadersRequest
from tests.metadata.driver import Driver


def three_brokers(**settings: object) -> Driver:
    cluster = Driver(**settings)
    cluster.start(1, 2, 3)
    return cluster


def test_a_broker_is_unfenced_only_once_it_has_read_its_own_registration() -> None:
    cluster = Driver()
    cluster.register(1)
    reply = cluster.beat(1, current_metadata_offset=len(cluster.log) - 2)
    assert (reply.is_caught_up, reply.is_fenced) == (False, True)
    reply = cluster.beat(1)
    assert (reply.is_caught_up, reply.is_fenced) == (True, False)


def test_leadership_moves_to_the_next_in_sync_replica_when_the_leader_dies() -> None:
    cluster = three_brokers()
    cluster.create("t", [[1, 2, 3]])
    assert cluster.show("t") == "leader=1/0 isr=1,2,3 replicas=1,2,3"
    cluster.kill(1)
    assert cluster.show("t") == "leader=2/1 isr=2,3 replicas=1,2,3"
    assert cluster.image.brokers[1].fenced


def test_a_silent_broker_is_fenced_when_its_session_ends_and_not_before() -> None:
    cluster = three_brokers()
    cluster.create("t", [[1, 2, 3]])
    for _ in range(8):
        cluster.sleep(1_000)
        cluster.beat(2)
        cluster.beat(3)
    assert not cluster.image.brokers[1].fenced
    cluster.sleep(1_000)
    assert cluster.image.brokers[1].fenced
    assert not cluster.image.brokers[2].fenced
    assert cluster.show("t") == "leader=2/1 isr=2,3 replicas=1,2,3"


def test_the_last_in_sync_replica_that_dies_stays_eligible_and_leads_when_it_returns() -> None:
    cluster = three_brokers()
    cluster.create("t", [[1, 2]])
    cluster.kill(1)
    cluster.kill(2)
    assert cluster.show("t") == "leader=-1/2 isr=none replicas=1,2 eligible=2 last=2"
    cluster.beat(1)
    assert cluster.show("t") == "leader=-1/2 isr=none replicas=1,2 eligible=2 last=2"
    cluster.beat(2)
    assert cluster.show("t") == "leader=2/3 isr=2 replicas=1,2"


def test_below_the_minimum_in_sync_those_who_left_may_still_lead() -> None:
    cluster = three_brokers()
    cluster.create("t", [[1, 2, 3]], min_insync_replicas="2")
    cluster.kill(3)
    assert cluster.show("t") == "leader=1/0 isr=1,2 replicas=1,2,3"
    cluster.kill(2)
    assert cluster.show("t") == "leader=1/0 isr=1 replicas=1,2,3 eligible=2"
    cluster.kill(1)
    assert cluster.show("t") == "leader=-1/1 isr=none replicas=1,2,3 eligible=1,2 last=1"
    cluster.beat(2)
    assert cluster.show("t") == "leader=2/2 isr=2 replicas=1,2,3 eligible=1"


def test_a_broker_that_lost_its_memory_uncleanly_is_no_longer_eligible_but_may_lead_as_last_known() -> None:
    cluster = Driver()
    cluster.start(1)
    cluster.create("t", [[1]])
    cluster.kill(1)
    assert cluster.show("t") == "leader=-1/1 isr=none replicas=1 eligible=1 last=1"
    cluster.register(1, life=2)
    assert cluster.show("t") == "leader=-1/1 isr=none replicas=1 last=1"
    cluster.beat(1)
    assert cluster.show("t") == "leader=1/2 isr=1 replicas=1 recovering"


def test_a_broker_that_knows_its_former_epoch_comes_back_as_in_sync_as_it_went() -> None:
    cluster = Driver()
    cluster.start(1)
    cluster.create("t", [[1]])
    epoch = cluster.image.brokers[1].epoch
    assert cluster.beat(1, want_shut_down=True).should_shut_down is False
    assert cluster.beat(1, want_shut_down=True).should_shut_down
    assert cluster.register(1, life=2, previous_epoch=epoch).error_code == 0
    cluster.beat(1)
    assert cluster.show("t") == "leader=1/2 isr=1 replicas=1"


def test_controlled_shutdown_moves_leadership_then_waits_for_the_others_to_have_read_it() -> None:
    cluster = three_brokers()
    cluster.create("t", [[1, 2, 3]])
    for broker_id in (2, 3):
        cluster.beat(broker_id)
    assert not cluster.beat(1, want_shut_down=True).should_shut_down
    assert cluster.show("t") == "leader=2/1 isr=2,3 replicas=1,2,3"
    assert not cluster.beat(1, want_shut_down=True).should_shut_down
    cluster.beat(2)
    assert not cluster.beat(1, want_shut_down=True).should_shut_down
    cluster.beat(3)
    reply = cluster.beat(1, want_shut_down=True)
    assert reply.should_shut_down
    assert reply.is_fenced


def test_without_eligible_leaders_the_last_in_sync_set_is_kept_and_waited_for() -> None:
    cluster = Driver(bootstrap_features={"metadata.version": 30})
    cluster.start(1, 2)
    cluster.create("t", [[1, 2]])
    cluster.kill(1)
    cluster.kill(2)
    assert cluster.show("t") == "leader=-1/2 isr=2 replicas=1,2"
    cluster.beat(1)
    assert cluster.show("t") == "leader=-1/2 isr=2 replicas=1,2"
    cluster.beat(2)
    assert cluster.show("t") == "leader=2/3 isr=2 replicas=1,2"


def test_unclean_election_where_allowed_takes_the_first_live_replica() -> None:
    cluster = Driver(bootstrap_features={"metadata.version": 30})
    cluster.start(1, 2)
    cluster.create("t", [[1, 2]], unclean_leader_election_enable="true")
    cluster.kill(1)
    cluster.kill(2)
    cluster.beat(1)
    assert cluster.show("t") == "leader=1/3 isr=1 replicas=1,2 recovering"


def elect(cluster: Driver, kind: int, *indexes: int) -> list[tuple[int, int]]:
    wanted = ElectLeadersRequest.TopicPartitions(topic="t", partitions=list(indexes))
    reply = cluster.ask(ElectLeadersRequest(election_type=kind, topic_partitions=[wanted]))
    return [(row.partition_id, row.error_code) for row in reply.replica_election_results[0].partition_result]


def test_preferred_election_on_request_says_per_partition_what_came_of_it() -> None:
    cluster = three_brokers()
    cluster.create("t", [[1, 2], [2, 1]])
    cluster.kill(1)
    assert elect(cluster, 0, 0, 1, 7) == [
        (0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (1, ErrorCode.ELECTION_NOT_NEEDED),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    cluster.beat(1)
    assert cluster.alter_isr("t", 0, [2, 1]).error_code == 0
    assert elect(cluster, 0, 0) == [(0, 0)]
    assert cluster.show("t") == "leader=1/2 isr=2,1 replicas=1,2"


def test_leadership_drifts_back_to_preferred_replicas_by_itself() -> None:
    cluster = three_brokers(imbalance_check_interval_ms=5_000)
    cluster.create("t", [[1, 2]])
    cluster.kill(1)
    cluster.beat(1)
    cluster.alter_isr("t", 0, [1, 2])
    assert cluster.show("t").startswith("leader=2/1")
    for broker_id in (1, 2, 3):
        cluster.beat(broker_id)
    cluster.sleep(5_000)
    assert cluster.show("t").startswith("leader=1/2")


def test_an_unregistered_broker_leads_nothing_and_is_in_sync_nowhere() -> None:
    from ottla.protocol.messages.controller import UnregisterBrokerRequest

    cluster = three_brokers()
    cluster.create("t", [[1, 2, 3]])
    assert cluster.ask(UnregisterBrokerRequest(broker_id=1)).error_code == 0
    assert cluster.show("t") == "leader=2/1 isr=2,3 replicas=1,2,3"
    assert 1 not in cluster.image.brokers
    assert cluster.ask(UnregisterBrokerRequest(broker_id=1)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


# Many partitions ---------------------------------------------------------------------------------------------------------

MANY, AT_ONCE = 35, 10


def many_partitions(**settings: object) -> Driver:
    cluster = three_brokers(max_moves_per_decision=AT_ONCE, **settings)
    cluster.create("t", [[1 + index % 3, 1 + (index + 1) % 3, 1 + (index + 2) % 3] for index in range(MANY)])
    return cluster


def held_by(cluster: Driver, broker_id: int) -> int:
    """Partitions that this broker leads or is in sync with."""
    return sum(broker_id in (partition.leader, *partition.isr) for _, _, partition in cluster.image.each_partition())


def test_a_broker_with_many_partitions_leaves_them_in_several_decisions() -> None:
    cluster = many_partitions()
    cluster.kill(1)
    assert cluster.image.brokers[1].fenced
    assert len(cluster.last_records) == AT_ONCE + 1
    assert held_by(cluster, 1) == MANY - AT_ONCE
    cluster.sleep(0)
    assert held_by(cluster, 1) == 0
    assert all(partition.leader in (2, 3) for _, _, partition in cluster.image.each_partition())


def test_a_new_controller_goes_on_with_what_the_last_had_begun() -> None:
    cluster = many_partitions()
    cluster.kill(1)
    successor = Driver(cluster.image, max_moves_per_decision=AT_ONCE)
    successor.log = list(cluster.log)
    successor.sleep(0)
    assert held_by(successor, 1) == 0


def test_a_broker_that_is_back_before_all_was_moved_keeps_the_rest() -> None:
    cluster = many_partitions()
    cluster.beat(1, want_fence=True)
    cluster.beat(1)
    cluster.sleep(0)
    assert held_by(cluster, 1) == MANY - AT_ONCE


def test_a_broker_that_stops_goes_only_when_it_leads_nothing_and_all_have_read_so() -> None:
    cluster = many_partitions()
    assert not cluster.beat(1, want_shut_down=True).should_shut_down
    first = len(cluster.log) - 1
    cluster.sleep(0)
    assert held_by(cluster, 1) == 0
    cluster.beat(2, current_metadata_offset=first)
    cluster.beat(3)
    assert not cluster.beat(1, want_shut_down=True).should_shut_down
    cluster.beat(2)
    assert cluster.beat(1, want_shut_down=True).should_shut_down


def test_many_partitions_without_a_leader_are_led_by_the_first_that_returns() -> None:
    cluster = many_partitions(bootstrap_features={"metadata.version": LATEST_LEVEL})  # without eligible leaders
    for broker_id in (3, 2, 1):
        cluster.kill(broker_id)
        cluster.sleep(0)
    assert all(partition.leader == -1 for _, _, partition in cluster.image.each_partition())
    cluster.beat(1)
    assert len(cluster.last_records) == AT_ONCE + 1
    cluster.sleep(0)
    assert all(partition.leader == 1 for _, _, partition in cluster.image.each_partition())


def test_the_last_in_sync_replicas_of_a_dead_broker_are_not_looked_at_again_and_again() -> None:
    cluster = three_brokers(max_moves_per_decision=AT_ONCE, bootstrap_features={"metadata.version": LATEST_LEVEL})
    cluster.create("t", [[1]] * MANY)
    cluster.kill(1)
    cluster.sleep(0)
    end = len(cluster.log)
    cluster.sleep(0)
    assert len(cluster.log) == end
    assert ("leaving", 1) not in cluster.timers
    assert cluster.show("t") == "leader=-1/1 isr=1 replicas=1"
