"""Random histories of a cluster: records as some controller might have written them, and some that refer to nothing."""

from __future__ import annotations

from hypothesis import strategies as st

from ottla.metadata.records import MetadataRecord, OpaqueRecord
from ottla.protocol.messages import metadata_records as m

ids = st.integers(0, 5)
uuids = st.integers(1, 6).map(lambda number: number.to_bytes(16, "big"))
names = st.sampled_from(["a", "b", "c", "d"])
replicas = st.lists(ids, min_size=1, max_size=3, unique=True)
levels = st.integers(7, 30)


@st.composite
def topics(draw: st.DrawFn) -> list[MetadataRecord]:
    """A topic with its partitions. Name and id go together, as in any real log."""
    number = draw(st.integers(1, 6))
    topic_id = number.to_bytes(16, "big")
    made: list[MetadataRecord] = [m.RemoveTopicRecord(topic_id=topic_id), m.TopicRecord(name=f"t{number}", topic_id=topic_id)]
    for index in range(draw(st.integers(0, 3))):
        assigned = draw(replicas)
        made.append(
            m.PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=assigned,
                isr=assigned[: draw(st.integers(0, len(assigned)))],
                leader=draw(st.sampled_from([-1, *assigned])),
                leader_epoch=draw(st.integers(0, 9)),
                partition_epoch=draw(st.integers(0, 9)),
                leader_recovery_state=draw(st.integers(0, 1)),
                directories=draw(st.lists(uuids, min_size=len(assigned), max_size=len(assigned))),
                eligible_leader_replicas=draw(st.none() | replicas),
                last_known_elr=draw(st.none() | replicas),
            )
        )
    return made


partition_changes = st.builds(
    m.PartitionChangeRecord,
    partition_id=st.integers(0, 3),
    topic_id=uuids,
    isr=st.none() | replicas,
    leader=st.integers(-2, 5),
    replicas=st.none() | replicas,
    removing_replicas=st.none() | replicas,
    adding_replicas=st.none() | replicas,
    leader_recovery_state=st.integers(-1, 1),
    eligible_leader_replicas=st.none() | replicas,
    last_known_elr=st.none() | replicas,
)
endpoints = st.builds(m.RegisterBrokerRecord.BrokerEndpoint, name=names, host=names, port=st.integers(0, 65535))
features = st.builds(
    m.RegisterBrokerRecord.BrokerFeature, name=names, min_supported_version=st.just(0), max_supported_version=st.integers(0, 9)
)
registrations = st.builds(
    m.RegisterBrokerRecord,
    broker_id=ids,
    incarnation_id=uuids,
    broker_epoch=st.integers(0, 3),
    end_points=st.lists(endpoints, max_size=2),
    features=st.lists(features, max_size=2, unique_by=lambda row: row.name),
    rack=st.none() | names,
    fenced=st.booleans(),
    in_controlled_shutdown=st.booleans(),
    log_dirs=st.lists(uuids, max_size=2, unique=True),
    cordoned_log_dirs=st.none() | st.lists(uuids, max_size=1),
)
single = st.one_of(
    partition_changes,
    registrations,
    st.builds(m.UnregisterBrokerRecord, broker_id=ids),
    st.builds(
        m.BrokerRegistrationChangeRecord,
        broker_id=ids,
        broker_epoch=st.integers(0, 3),
        fenced=st.integers(-1, 1),
        in_controlled_shutdown=st.integers(0, 1),
        log_dirs=st.lists(uuids, max_size=2, unique=True),
    ),
    st.builds(m.FenceBrokerRecord, id=ids, epoch=st.integers(0, 3)),
    st.builds(m.UnfenceBrokerRecord, id=ids, epoch=st.integers(0, 3)),
    st.builds(m.RegisterControllerRecord, controller_id=ids, incarnation_id=uuids),
    st.builds(m.RemoveTopicRecord, topic_id=uuids),
    st.builds(m.ClearElrRecord, topic_name=st.sampled_from(["", "t1", "t2"])),
    st.builds(
        m.ConfigRecord,
        resource_type=st.sampled_from([2, 4, 32]),
        resource_name=st.sampled_from(["t1", "t2", ""]),
        name=names,
        value=st.none() | names,
    ),
    st.builds(m.FeatureLevelRecord, name=names, feature_level=st.integers(0, 3)),
    st.builds(
        m.ClientQuotaRecord,
        entity=st.lists(
            st.builds(m.ClientQuotaRecord.EntityData, entity_type=st.sampled_from(["user", "ip"]), entity_name=st.none() | names),
            min_size=1,
            max_size=2,
            unique_by=lambda row: row.entity_type,
        ),
        key=names,
        value=st.floats(1, 9),
        remove=st.booleans(),
    ),
    st.builds(m.ProducerIdsRecord, broker_id=ids, broker_epoch=st.integers(0, 3), next_producer_id=st.integers(0, 10**6)),
    st.builds(m.UserScramCredentialRecord, name=names, mechanism=st.integers(1, 2), salt=st.binary(max_size=4)),
    st.builds(m.RemoveUserScramCredentialRecord, name=names, mechanism=st.integers(1, 2)),
    st.builds(m.AccessControlEntryRecord, id=uuids, resource_name=names),
    st.builds(m.RemoveAccessControlEntryRecord, id=uuids),
    st.builds(m.DelegationTokenRecord, token_id=names, owner=names),
    st.builds(m.RemoveDelegationTokenRecord, token_id=names),
    st.builds(m.NoOpRecord),
    st.builds(OpaqueRecord, type_key=st.integers(100, 120), version=st.integers(0, 3), body=st.binary(max_size=4)),
)


@st.composite
def histories(draw: st.DrawFn) -> list[MetadataRecord]:
    """Begins with the level that everything is written at."""
    records: list[MetadataRecord] = [m.FeatureLevelRecord(name="metadata.version", feature_level=30)]
    for part in draw(st.lists(st.one_of(topics(), single.map(lambda record: [record])), max_size=25)):
        records += part
    return records
