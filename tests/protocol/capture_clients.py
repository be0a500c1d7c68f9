"""What each foreign client is made to say while `capture` listens: as many kinds of requests as it knows.

Refusals are welcome (they are frames too), so nothing here is asserted.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from typing import Any

from tests.compatibility.kafka import run_tool

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def _try(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # a refusal by the broker is as good a frame as a success
        print(f"  refused: {type(error).__name__}: {str(error)[:100]}")
        return None


def librdkafka(bootstrap: str) -> None:
    from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
    from confluent_kafka import admin as ck

    common = {"bootstrap.servers": bootstrap}
    admin = ck.AdminClient(common)

    def each(futures: Any) -> None:
        for future in futures.values() if isinstance(futures, dict) else [futures]:
            _try(lambda future=future: future.result(10))

    each(admin.create_topics([ck.NewTopic("rd", 2, 1, config={"retention.ms": "86400000"}), ck.NewTopic("bad/name", 1, 1)]))
    for codec in CODECS:
        producer = Producer(common | {"compression.type": codec, "enable.idempotence": codec == "lz4"})
        producer.produce("rd", b"value" * 20, b"key", headers={"a": b"1"})
        producer.flush()
    producer = Producer(common | {"transactional.id": "rd-txn"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("rd", b"in a transaction")
    consumer = Consumer(common | {"group.id": "rd-classic", "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    consumer.subscribe(["rd"])
    consumer.consume(3, 10)
    producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), consumer.consumer_group_metadata())
    producer.commit_transaction()
    consumer.commit(asynchronous=False)
    _try(lambda: consumer.offsets_for_times([TopicPartition("rd", 0, 0)]))
    each(admin.describe_consumer_groups(["rd-classic"]))
    consumer.close()
    consumer = Consumer(common | {"group.id": "rd-next", "group.protocol": "consumer", "auto.offset.reset": "earliest"})
    consumer.subscribe(["rd"])
    consumer.consume(3, 10)
    consumer.commit(asynchronous=False)
    each(admin.describe_consumer_groups(["rd-next"]))
    consumer.close()
    topic = ck.ConfigResource("topic", "rd")
    each(admin.describe_configs([topic]))
    change = ck.ConfigEntry("retention.bytes", "1000000", incremental_operation=ck.AlterConfigOpType.SET)
    each(admin.incremental_alter_configs([ck.ConfigResource("topic", "rd", incremental_configs=[change])]))
    each(admin.alter_configs([ck.ConfigResource("topic", "rd", set_config={"retention.ms": "1000000"})]))
    each(admin.create_partitions([ck.NewPartitions("rd", 3)]))
    each(admin.list_offsets({TopicPartition("rd", 0): ck.OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED))
    each(admin.delete_records([TopicPartition("rd", 0, 1)]))
    each(admin.list_consumer_groups())
    from confluent_kafka import ConsumerGroupTopicPartitions, ElectionType

    each(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("rd-classic")]))
    each(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("rd-classic", [TopicPartition("rd", 0, 1)])]))
    each(admin.describe_cluster(include_authorized_operations=True))
    from confluent_kafka import TopicCollection

    each(admin.describe_topics(TopicCollection(["rd", "absent"])))
    each(admin.describe_user_scram_credentials())
    secret = ck.ScramCredentialInfo(ck.ScramMechanism.SCRAM_SHA_256, 4096)
    each(admin.alter_user_scram_credentials([ck.UserScramCredentialUpsertion("someone", secret, b"password")]))
    each(admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("rd", 0)]))
    any_acl = (ck.ResourceType.ANY, None, ck.ResourcePatternType.ANY, None, None, ck.AclOperation.ANY, ck.AclPermissionType.ANY)
    each(admin.describe_acls(ck.AclBindingFilter(*any_acl)))
    each(admin.delete_acls([ck.AclBindingFilter(*any_acl)]))
    pattern = (ck.ResourceType.TOPIC, "rd", ck.ResourcePatternType.LITERAL, "User:a", "*")
    each(admin.create_acls([ck.AclBinding(*pattern, ck.AclOperation.READ, ck.AclPermissionType.ALLOW)]))
    each(admin.delete_consumer_groups(["rd-classic", "rd-next"]))
    each(admin.delete_topics(["rd"]))


def kafka_python(bootstrap: str) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka import admin as kp
    from kafka.structs import OffsetAndMetadata

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    partition = TopicPartition("kp", 0)
    _try(lambda: admin.create_topics([kp.NewTopic("kp", 2, 1, topic_configs={"retention.ms": "86400000"})]))
    _try(lambda: admin.create_topics([kp.NewTopic("bad/name", 1, 1)]))
    for codec in CODECS:
        producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec)
        _try(lambda producer=producer: producer.send("kp", b"value" * 20, b"key", headers=[("a", b"1")]).get(10))
        producer.close()
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="kp-txn")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("kp", b"in a transaction", partition=0)
    producer.send_offsets_to_transaction({partition: OffsetAndMetadata(0, "", -1)}, "kp-other")
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send("kp", b"aborted", partition=0)
    _try(lambda: admin.describe_transactions(["kp-txn"]))
    producer.abort_transaction()
    producer.close()
    consumer = KafkaConsumer("kp", bootstrap_servers=bootstrap, group_id="kp-group", auto_offset_reset="earliest")
    for _ in range(20):
        if consumer.poll(500):
            break
    consumer.commit()
    _try(lambda: consumer.offsets_for_times({partition: 0}))
    _try(lambda: consumer.end_offsets([partition]))
    _try(lambda: admin.describe_groups(["kp-group"]))
    consumer.close()
    resource = kp.ConfigResource(kp.ConfigResourceType.TOPIC, "kp")
    for call in (
        lambda: admin.describe_configs([resource], include_synonyms=True),
        lambda: admin.alter_configs([kp.ConfigResource(kp.ConfigResourceType.TOPIC, "kp", {"retention.bytes": "1000000"})]),
        lambda: admin.create_partitions({"kp": kp.NewPartitions(3)}),
        lambda: admin.list_partition_offsets({partition: kp.OffsetSpec.MAX_TIMESTAMP}),
        lambda: admin.delete_records({partition: 1}),
        admin.list_groups,
        lambda: admin.list_group_offsets({"kp-group": None}),
        lambda: admin.alter_group_offsets("kp-group", {partition: OffsetAndMetadata(1, "", -1)}),
        lambda: admin.delete_group_offsets("kp-group", [partition]),
        admin.describe_cluster,
        admin.describe_features,
        admin.describe_log_dirs,
        admin.describe_metadata_quorum,
        lambda: admin.describe_producers([partition]),
        lambda: admin.describe_topic_partitions(["kp", "absent"]),
        lambda: admin.describe_topics(["kp"]),
        admin.describe_user_scram_credentials,
        lambda: admin.elect_leaders("PREFERRED", [partition]),
        admin.list_config_resources,
        admin.list_partition_reassignments,
        lambda: admin.alter_partition_reassignments({partition: None}),
        admin.list_topics,
        admin.list_transactions,
        lambda: admin.delete_groups(["kp-group"]),
        lambda: admin.delete_topics(["kp"]),
    ):
        _try(call)
    admin.close()


def aiokafka(bootstrap: str) -> None:
    asyncio.run(_aiokafka(bootstrap))


async def _aiokafka(bootstrap: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    partition = TopicPartition("aio", 0)
    await admin.create_topics([NewTopic("aio", 2, 1, topic_configs={"retention.ms": "86400000"})])
    for codec in CODECS:
        kind = None if codec == "none" else codec
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=kind, enable_idempotence=codec == "lz4")
        await producer.start()
        await producer.send_and_wait("aio", b"value" * 20, b"key", headers=[("a", b"1")])
        await producer.stop()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aio-txn")
    await producer.start()
    async with producer.transaction():
        await producer.send_and_wait("aio", b"in a transaction")
        await producer.send_offsets_to_transaction({partition: 1}, "aio-other")
    await producer.stop()
    consumer = AIOKafkaConsumer("aio", bootstrap_servers=bootstrap, group_id="aio-group", auto_offset_reset="earliest")
    await consumer.start()
    await asyncio.wait_for(consumer.getone(), 20)
    await consumer.commit()
    await consumer.offsets_for_times({partition: 0})
    await consumer.end_offsets([partition])
    await admin.describe_consumer_groups(["aio-group"])
    await consumer.stop()
    resource = ConfigResource(ConfigResourceType.TOPIC, "aio", {"retention.ms": "1000000"})
    for call in (
        admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "aio")]),
        admin.alter_configs([resource]),
        admin.create_partitions({"aio": NewPartitions(3)}),
        admin.delete_records({partition: RecordsToDelete(before_offset=1)}),
        admin.list_consumer_groups(),
        admin.list_consumer_group_offsets("aio-group"),
        admin.describe_cluster(),
        admin.describe_topics(["aio"]),
        admin.list_topics(),
        admin.delete_topics(["aio"]),
    ):
        try:
            await call
        except Exception as error:
            print(f"  refused: {error}")
    await admin.close()


def java(bootstrap: str) -> None:
    server = ("--bootstrap-server", bootstrap)

    def tool(name: str, *arguments: str, stdin: str = "") -> None:
        done = run_tool(name, *server, *arguments, stdin=stdin)
        if done.returncode:
            print(f"  {name} {arguments}: {(done.stdout + done.stderr).strip()[:200]}")

    tool("TopicCommand", "--create", "--topic", "jv", "--partitions", "2", "--config", "retention.ms=86400000")
    tool("TopicCommand", "--alter", "--topic", "jv", "--partitions", "3")
    tool("ConsoleProducer", "--topic", "jv", "--property", "parse.key=true", stdin="k\tv\nk2\tv2\n")
    tool("ConsoleProducer", "--topic", "jv", "--compression-codec", "zstd", stdin="one\ntwo\n")
    consume = ("--topic", "jv", "--from-beginning", "--max-messages", "2", "--timeout-ms", "15000")
    tool("ConsoleConsumer", *consume, "--group", "jv-classic")
    tool("ConsoleConsumer", *consume, "--group", "jv-next", "--consumer-property", "group.protocol=consumer")
    tool("ConsoleConsumer", *consume, "--partition", "0", "--offset", "earliest")
    perf = ("--topic", "jv", "--num-records", "50", "--record-size", "100", "--throughput", "-1")
    properties = ("--producer-props", f"bootstrap.servers={bootstrap}", "transactional.id=jv-txn")
    print(run_tool("ProducerPerformance", *perf, *properties, "--transaction-duration-ms", "5").returncode)
    tool("GetOffsetShell", "--topic", "jv", "--time", "-3")
    tool("GetOffsetShell", "--topic", "jv", "--time", "-1")
    tool("TopicCommand", "--describe", "--topic", "jv")
    tool("TopicCommand", "--list")
    for entity in (("topics", "jv"), ("brokers", "0"), ("groups", "jv-classic"), ("client-metrics", "cm")):
        tool("ConfigCommand", "--describe", "--entity-type", entity[0], "--entity-name", entity[1], "--all")
    topic = ("--alter", "--entity-type", "topics", "--entity-name", "jv")
    tool("ConfigCommand", *topic, "--add-config", "segment.bytes=2000000,retention.bytes=-1")
    tool("ConfigCommand", *topic, "--delete-config", "retention.bytes")
    client = ("--entity-type", "clients", "--entity-name", "someone")
    tool("ConfigCommand", "--alter", *client, "--add-config", "producer_byte_rate=1000000")
    tool("ConfigCommand", "--describe", *client)
    user = ("--entity-type", "users", "--entity-name", "alice")
    tool("ConfigCommand", "--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    tool("ConfigCommand", "--describe", *user)
    for group in (
        "--list",
        "--describe --group jv-classic",
        "--describe --group jv-next --members --verbose",
        "--describe --all-groups --state",
    ):
        tool("ConsumerGroupCommand", *group.split())
    tool("ConsumerGroupCommand", "--group", "jv-classic", "--reset-offsets", "--to-earliest", "--topic", "jv", "--execute")
    tool("ConsumerGroupCommand", "--group", "jv-next", "--delete-offsets", "--topic", "jv")
    tool("ConsumerGroupCommand", "--delete", "--group", "jv-next")
    print(run_tool("VerifiableProducer", *server, "--topic", "jv", "--max-messages", "5").returncode)
    partition = {"topic": "jv", "partition": 0}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"version": 1, "partitions": [partition | {"offset": 1}]}, file)
        file.flush()
        tool("DeleteRecordsCommand", "--offset-json-file", file.name)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"version": 1, "partitions": [partition | {"replicas": [0]}]}, file)
        file.flush()
        tool("reassign.ReassignPartitionsCommand", "--reassignment-json-file", file.name, "--execute")
        tool("reassign.ReassignPartitionsCommand", "--reassignment-json-file", file.name, "--verify")
        tool("reassign.ReassignPartitionsCommand", "--list")
    tool("LogDirsCommand", "--describe", "--topic-list", "jv")
    tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    tool("AclCommand", "--list")
    tool("AclCommand", "--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", "jv")
    tool("TransactionsCommand", "list")
    tool("TransactionsCommand", "describe", "--transactional-id", "jv-txn")
    tool("TransactionsCommand", "describe-producers", "--topic", "jv", "--partition", "0")
    tool("MetadataQuorumCommand", "describe", "--status")
    tool("MetadataQuorumCommand", "describe", "--replication")
    tool("FeatureCommand", "describe")
    tool("FeatureCommand", "upgrade", "--feature", "transaction.version=2", "--dry-run")
    tool("GroupsCommand", "--list")
    tool("ClientMetricsCommand", "--alter", "--name", "cm", "--metrics", "org.apache.kafka.", "--interval", "1000")
    tool("ClientMetricsCommand", "--list")
    tool("BrokerApiVersionsCommand")
    print(
        run_tool("ClusterTool", "cluster-id", *server).returncode, run_tool("ClusterTool", "list-endpoints", *server).returncode
    )
    tool("TopicCommand", "--delete", "--topic", "jv")


CLIENTS: dict[str, Callable[[str], None]] = {
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "java": java,
}
