"""Scenarios about records: in, out, and questions about offsets."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

from ottla.records.batch import HEADER_SIZE, crc_of
from ottla.records.compression import GZIP, LZ4, SNAPPY, ZSTD
from tests.compatibility.differential.records import T0, batch, produce
from tests.compatibility.differential.talk import Talk
from tests.compatibility.wire import wait_until

FAR_FUTURE = 4_102_444_800_000  # the year 2100
CODECS = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}


def _patched(data: bytes, position: int, value: bytes) -> bytes:
    return data[:position] + value + data[position + len(value) :]


def _broken_batches() -> dict[str, bytes | None]:
    good = batch(b"a", b"b", b"c")
    return {
        "null": None,
        "empty": b"",
        "a wrong crc": _patched(good, 17, b"\0\0\0\0"),
        "magic 0": _patched(good, 16, b"\0"),
        "magic 1": _patched(good, 16, b"\1"),
        "magic 3": _patched(good, 16, b"\3"),
        "cut short": good[:-5],
        "cut within the header": good[:30],
        "a length of 0": _patched(good, 8, struct.pack(">i", 0)),
        "a negative length": _patched(good, 8, struct.pack(">i", -1)),
        "a huge length": _patched(good, 8, struct.pack(">i", 2**31 - 1)),
        "two batches": good + good,
        "garbage": b"\x00\x01garbage" * 20,
    }


def _data(talk: Talk, version: int, topic: str, records: bytes | None, partition: int = 0) -> list[dict[str, Any]]:
    where: dict[str, Any] = {"topic_id": talk.topic_id(topic)} if version >= 13 else {"name": topic}
    return [where | {"partition_data": [{"index": partition, "records": records}]}]


def produce_plain(talk: Talk) -> None:
    for version in talk.versions("Produce"):
        topic = talk.create(talk.topic("one", version), 2)

        def send(
            what: str, records: bytes | None, partition: int = 0, version: int = version, topic: str = topic, **more: Any
        ) -> None:
            fields = {"acks": -1, "timeout_ms": 30000} | more
            talk.ask(what, "Produce", version, topic_data=_data(talk, version, topic, records, partition), **fields)

        send("three records", batch(b"a", b"b", b"c"))
        send("three more, acks 1", batch(b"a", b"b", b"c"), acks=1)
        talk.tell("Produce", version, acks=0, timeout_ms=30000, topic_data=_data(talk, version, topic, batch(b"unanswered")))
        send("after one without an answer", batch(b"d"))
        send("a null value", batch(None))
        send("no key", batch(b"x", key=None))
        send("the other partition", batch(b"z"), 1)
        for what, codec in CODECS.items():
            send(what, batch(b"squeezed" * 20, b"again" * 20, codec=codec))
        for acks in (2, -2):
            send(f"acks {acks}", batch(b"a"), acks=acks)
        send("a strange partition", batch(b"a"), 9)
        send("a negative partition", batch(b"a"), -1)
        for what, records in _broken_batches().items():
            if records is not None or version == 9:  # Kafka leaves null without an answer, which takes time to see
                send(what, records)
        send("too large", batch(b"x" * 1_100_000))
        send("far in the future", batch(b"x", at=FAR_FUTURE))
        send("a timestamp of -1", batch(b"x", at=-1))
        if version < 13:
            send("an absent topic", batch(b"a"), topic=talk.topic("absent", version))
            send("a name that is none", batch(b"a"), topic="a/b")
        else:
            strange = [{"topic_id": b"no such topic id", "partition_data": [{"index": 0, "records": batch(b"a")}]}]
            talk.ask("a strange topic id", "Produce", version, acks=-1, timeout_ms=30000, topic_data=strange)
        talk.ask("nothing", "Produce", version, acks=-1, timeout_ms=30000, topic_data=[])


def produce_counts(talk: Talk) -> None:
    """The header says one thing and the records another."""
    topic = talk.create(talk.topic("one"))
    good = batch(b"a", b"b", b"c")

    def signed(data: bytes) -> bytes:
        return _patched(data, 17, struct.pack(">I", crc_of(data, 0, len(data))))

    for what, changed in {
        "more records than there are": _patched(good, 57, struct.pack(">i", 4)),
        "fewer records than there are": _patched(good, 57, struct.pack(">i", 2)),
        "a negative record count": _patched(good, 57, struct.pack(">i", -1)),
        "no records": _patched(good, 57, struct.pack(">i", 0)),
        "a last offset that does not fit": _patched(good, 23, struct.pack(">i", 7)),
        "a negative last offset": _patched(good, 23, struct.pack(">i", -1)),
        "a base offset": _patched(good, 0, struct.pack(">q", 77)),
        "a leader epoch": _patched(good, 12, struct.pack(">i", 7)),
        "a control batch": _patched(good, 21, struct.pack(">h", 32)),
        "LogAppendTime, claimed by a client": _patched(good, 21, struct.pack(">h", 8)),
        "a strange codec": _patched(good, 21, struct.pack(">h", 7)),
        "unused attributes": _patched(good, 21, struct.pack(">h", 1 << 10)),
    }.items():
        data = _data(talk, 10, topic, signed(changed))
        talk.ask(what, "Produce", 10, acks=-1, timeout_ms=30000, topic_data=data)
    whole = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    talk.ask("what was kept of these", "Fetch", 10, **_fetch(10, [{"topic": topic, "partitions": [whole]}]))


def produce_packed_badly(talk: Talk) -> None:
    """Records that claim a codec and cannot be unpacked: to a topic that takes them as they are, and to those that must look inside."""
    topics = {
        "as it is": talk.create(talk.topic("as-it-is")),
        "compacted": talk.create(talk.topic("compacted"), cleanup_policy="compact"),
        "stored plain": talk.create(talk.topic("stored-plain"), compression_type="uncompressed"),
    }
    for codec, number in CODECS.items():
        plain = batch(b"a", b"b", b"c")
        packed = batch(*[b"squeezed" * 9] * 9, codec=number)
        for what, changed in {
            f"{codec} that is none": _patched(plain, 21, struct.pack(">h", number)),
            f"{codec} with a byte changed in its middle": _patched(packed, len(packed) * 3 // 4, b"\xa5\x5a"),
            f"{codec} of nothing": _shortened(_patched(plain, 21, struct.pack(">h", number)), HEADER_SIZE),
            f"{codec} that ends early": _shortened(packed, len(packed) - 9),
        }.items():
            signed = _patched(changed, 17, struct.pack(">I", crc_of(changed, 0, len(changed))))
            for where, topic in topics.items():
                data = _data(talk, 10, topic, signed)
                talk.ask(f"{what}, {where}", "Produce", 10, acks=-1, timeout_ms=30000, topic_data=data)
    for where, topic in list(topics.items())[1:]:
        whole = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        talk.ask(f"what was kept of these, {where}", "Fetch", 10, **_fetch(10, [{"topic": topic, "partitions": [whole]}]))


def _shortened(data: bytes, size: int) -> bytes:
    return _patched(data[:size], 8, struct.pack(">i", size - 12))


def _new_producer(talk: Talk) -> Any:
    """The first producer id of a broker's life may have to wait for its controller to hand out a block of them."""
    fields = {"transactional_id": None, "transaction_timeout_ms": 60000}

    def made() -> Any:
        answer = talk.quietly("InitProducerId", 4, **fields)
        return None if answer.error_code else answer

    return wait_until("a producer id", made)


def produce_idempotent(talk: Talk) -> None:
    topic = talk.create(talk.topic("one"), 2)
    producer = _new_producer(talk)

    now = int(time.time() * 1000)  # Kafka forgets a producer whose last record is a day old

    def send(
        what: str,
        sequence: int,
        count: int = 1,
        epoch: int = 0,
        partition: int = 0,
        producer_id: int = producer.producer_id,
        at: int = now,
    ) -> None:
        records = batch(*[b"v"] * count, at=at, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        talk.ask(what, "Produce", 9, acks=-1, timeout_ms=30000, topic_data=_data(talk, 9, topic, records, partition))

    send("sequence 0", 0)
    send("sequence 1, two records", 1, 2)
    send("sequence 0 again", 0)
    send("sequence 1 again, two records", 1, 2)
    send("sequence 1 again, one record", 1)
    send("sequence 9, a gap", 9)
    for sequence in range(3, 9):
        send(f"sequence {sequence} in order", sequence)
    send("sequence 0, long ago", 0)
    send("sequence 5, still remembered", 5)
    send("a new epoch, not from 0", 3, epoch=1)
    send("a new epoch, from 0", 0, epoch=1)
    send("the old epoch", 9, epoch=0)
    send("another partition, not from 0", 5, partition=1)
    send("another partition, from 0", 0, partition=1)
    send("no sequence", -1)
    send("an unknown producer, not from 0", 5, producer_id=987654)
    send("a negative epoch", 0, epoch=-1)
    send("an old record", 0, producer_id=producer.producer_id + 100_000, partition=1, at=T0)
    send("an old record again", 0, producer_id=producer.producer_id + 100_000, partition=1, at=T0)
    partitions = [{"name": topic, "partition_indexes": [0, 1, 7]}, {"name": talk.topic("absent"), "partition_indexes": [0]}]
    talk.ask("who produces", "DescribeProducers", 0, topics=partitions)


def produce_rules(talk: Talk) -> None:
    """What a topic's settings ask of a batch."""
    compacted = talk.create(talk.topic("compacted"), cleanup_policy="compact")
    small = talk.create(talk.topic("small"), max_message_bytes="200")
    stamped = talk.create(talk.topic("stamped"), message_timestamp_type="LogAppendTime")
    strict = talk.create(talk.topic("strict"), message_timestamp_before_max_ms="1000")
    needy = talk.create(talk.topic("needy"), min_insync_replicas="1")
    gzipped = talk.create(talk.topic("gzipped"), compression_type="gzip")
    plain = talk.create(talk.topic("plain"), compression_type="uncompressed")
    squeezed = batch(*[b"squeezed" * 4] * 4, codec=LZ4)
    for version in (3, 7, 8, 9, 12):
        for what, topic, records in (
            ("compacted, with a key", compacted, batch(b"a")),
            ("compacted, without a key", compacted, batch(b"a", b"b", key=None)),
            ("compacted, gzip, without a key", compacted, batch(b"a", b"b", key=None, codec=GZIP)),
            ("small, a large one", small, batch(b"x" * 300)),
            ("small, one that unpacks large", small, batch(b"x" * 3000, codec=GZIP)),
            ("stamped on arrival", stamped, batch(b"a", b"b")),
            ("stamped on arrival, lz4", stamped, squeezed),
            ("too old", strict, batch(b"a")),
            ("enough in sync", needy, batch(b"a")),
            ("stored as gzip", gzipped, batch(b"a" * 50)),
            ("stored as gzip, sent as lz4", gzipped, squeezed),
            ("stored plain, sent as lz4", plain, squeezed),
        ):
            talk.ask(what, "Produce", version, acks=-1, timeout_ms=30000, topic_data=_data(talk, version, topic, records))
    whole = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": topic, "partitions": [whole]} for topic in (stamped, plain)]
    talk.ask("what was kept", "Fetch", 11, **_fetch(11, topics))


def _fetch(version: int, topics: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    fields = {"max_wait_ms": 0, "min_bytes": 0, "topics": topics} | more
    if version < 15:
        fields.setdefault("replica_id", -1)
    return fields


def _reader(talk: Talk, version: int) -> Callable[..., Any]:
    def read(
        what: str, topic: Any, partition: int = 0, offset: int = 0, size: int = 1 << 20, *, epoch: int = -1, **more: Any
    ) -> Any:
        rows: dict[str, Any] = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": size}
        if version >= 9:
            rows["current_leader_epoch"] = epoch
        rows |= more.pop("row", {})
        where = {"topic": topic} if version < 13 else {"topic_id": topic if isinstance(topic, bytes) else talk.topic_id(topic)}
        return talk.ask(what, "Fetch", version, **_fetch(version, [where | {"partitions": [rows]}], **more))

    return read


def fetch(talk: Talk) -> None:
    for version in talk.versions("Fetch"):
        topic = talk.create(talk.topic("one", version), 2)
        for index in range(3):
            produce(talk, topic, batch(b"a", b"b" * 100, at=T0 + index * 10_000))
        read = _reader(talk, version)
        for offset in (0, 1, 5, 6, 7, -1, 2**40):
            read(f"from {offset}", topic, offset=offset)
        read("an empty partition", topic, 1)
        for size in (0, 1, 250, 500):
            read(f"at most {size} bytes of the partition", topic, size=size)
            read(f"at most {size} bytes in all", topic, max_bytes=size)
        read("only committed", topic, isolation_level=1)
        read("a strange isolation level", topic, isolation_level=7)
        read("a strange partition", topic, 9)
        if version < 13:
            read("an absent topic", talk.topic("absent", version))
            read("a name that is none", "a/b")
        else:
            read("a strange topic id", b"no such topic id")
        read("not enough, not waited for", topic, offset=6, min_bytes=100)
        read("not enough, waited for", topic, offset=6, min_bytes=100, max_wait_ms=50)
        read("enough, at once", topic, min_bytes=1, max_wait_ms=20_000)
        read("no bytes are enough, at once", topic, offset=6, min_bytes=0, max_wait_ms=600_000)
        if version >= 9:
            for epoch in (0, 1, 7):
                read(f"leader epoch {epoch}", topic, epoch=epoch)
        if version >= 12:
            for epoch in (0, 5):
                read(f"last fetched epoch {epoch}", topic, row={"last_fetched_epoch": epoch})
        talk.ask("nothing", "Fetch", version, **_fetch(version, []))


def fetch_sessions(talk: Talk) -> None:
    for version in range(7, 19):
        one, two = talk.create(talk.topic("one", version), 2), talk.create(talk.topic("two", version))
        produce(talk, one, batch(b"a"))
        produce(talk, two, batch(b"b"))

        def where(topic: str, *partitions: int, offset: int = 0, version: int = version) -> dict[str, Any]:
            rows = [{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20} for index in partitions]
            return ({"topic": topic} if version < 13 else {"topic_id": talk.topic_id(topic)}) | {"partitions": rows}

        def read(what: str, session: int, epoch: int, *topics: dict[str, Any], version: int = version, **more: Any) -> Any:
            return talk.ask(
                what, "Fetch", version, **_fetch(version, list(topics), session_id=session, session_epoch=epoch, **more)
            )

        session = read("a new session", 0, 0, where(one, 0, 1), where(two, 0)).session_id
        read("nothing changed, offsets stay", session, 1)
        read("the same epoch again", session, 1)
        read("an epoch too far", session, 7)
        read("one moved on", session, 2, where(one, 0, offset=1))
        produce(talk, one, batch(b"c"))
        read("only what is new", session, 3, where(two, 0, offset=1))
        forgotten = ({"topic": one} if version < 13 else {"topic_id": talk.topic_id(one)}) | {"partitions": [0]}
        read("one forgotten", session, 4, forgotten_topics_data=[forgotten])
        read("a strange session", 123_456_789, 1)
        read("closed", session, -1)
        read("after it was closed", session, 5)
        read("an epoch without a session", 0, 1)
        read("no session", 0, -1, where(two, 0))


def fetch_followers(talk: Talk) -> None:
    """A follower that is none must not be let in."""
    topic = talk.create(talk.topic("one"))
    for version in (11, 12, 13, 14):
        _reader(talk, version)("replica id 5", topic, replica_id=5)
    for version in (15, 16, 17, 18):
        _reader(talk, version)("replica id 5", topic, replica_state={"replica_id": 5, "replica_epoch": 1})


def list_offsets(talk: Talk) -> None:
    for version in talk.versions("ListOffsets"):
        topic = talk.create(talk.topic("one", version), 2)
        for index in range(3):
            produce(talk, topic, batch(b"a", b"b", at=T0 + index * 10_000))

        def look(what: str, timestamp: int, partition: int = 0, version: int = version, topic: str = topic, **more: Any) -> None:
            row = {"partition_index": partition, "timestamp": timestamp} | more.pop("row", {})
            fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [row]}]} | more
            talk.ask(what, "ListOffsets", version, **fields)

        for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0):
            look(f"timestamp {timestamp}", timestamp)
            look(f"timestamp {timestamp}, empty", timestamp, 1)
        for delta in (0, 1, 1000, 9_999, 10_000, 20_500, 21_000, 21_001):
            look(f"{delta} ms after the first", T0 + delta)
        look("a strange partition", -1, 9)
        look("an absent topic", -1, topic=talk.topic("absent", version))
        look("a name that is none", -1, topic="a/b")
        look("a strange replica", -1, replica_id=7)
        look("a debugging consumer", -1, replica_id=-2)
        if version >= 2:
            look("only committed", -1, isolation_level=1)
        if version >= 4:
            for epoch in (0, 3):
                look(f"leader epoch {epoch}", -1, row={"current_leader_epoch": epoch})
        rows = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -2}]
        talk.ask("the same twice", "ListOffsets", version, replica_id=-1, topics=[{"name": topic, "partitions": rows}])
        talk.ask("nothing", "ListOffsets", version, replica_id=-1, topics=[])


def offset_for_leader_epoch(talk: Talk) -> None:
    api = "OffsetForLeaderEpoch"
    topic = talk.create(talk.topic("one"), 2)
    produce(talk, topic, batch(b"a", b"b"))
    for version in talk.versions(api):
        replica = {"replica_id": -1} if version >= 3 else {}
        for epoch in (-1, 0, 1, 7):
            for current in (-1, 0, 5):
                row = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": current}
                topics = [{"topic": topic, "partitions": [row]}]
                talk.ask(f"epoch {epoch}, current {current}", api, version, topics=topics, **replica)
        row = {"partition": 1, "leader_epoch": 0}
        talk.ask("an empty partition", api, version, topics=[{"topic": topic, "partitions": [row]}], **replica)
        row = {"partition": 9, "leader_epoch": 0}
        talk.ask("a strange partition", api, version, topics=[{"topic": topic, "partitions": [row]}], **replica)
        absent = talk.topic("absent", version)
        talk.ask("an absent topic", api, version, topics=[{"topic": absent, "partitions": [row]}], **replica)


def init_producer_id(talk: Talk) -> None:
    api = "InitProducerId"
    _new_producer(talk)
    for version in talk.versions(api):
        talk.ask("no transaction", api, version, transactional_id=None, transaction_timeout_ms=60000)
        talk.ask("no transaction, again", api, version, transactional_id=None, transaction_timeout_ms=60000)
        talk.ask("an empty transactional id", api, version, transactional_id="", transaction_timeout_ms=60000)
        if version >= 3:
            known = {"producer_id": 5, "producer_epoch": 3}
            talk.ask("no transaction, with an id", api, version, transactional_id=None, transaction_timeout_ms=60000, **known)
            half = {"producer_id": 5, "producer_epoch": -1}
            talk.ask("half an id", api, version, transactional_id=None, transaction_timeout_ms=60000, **half)


SCENARIOS = (
    produce_plain, produce_counts, produce_packed_badly, produce_idempotent, produce_rules, fetch, fetch_sessions, fetch_followers, list_offsets,
    offset_for_leader_epoch, init_producer_id,
)  # fmt: skip
