"""What nobody should send to a running node. It answers with a Kafka error code or closes that one connection with one line in
its log, goes on serving all others, prints no traceback and stays small."""

from __future__ import annotations

import random
import resource
import socket
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ottla.broker.handlers.offsets import MAX_TIMESTAMP
from ottla.model.errors import ErrorCode
from ottla.protocol.apis import APIS
from ottla.protocol.codec import decode
from ottla.protocol.framing import request_frame
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offsets import ListOffsetsRequest
from ottla.protocol.messages.versions import ApiVersionsResponse
from ottla.records.builder import assemble, attributes_of
from ottla.records.compression import GZIP, LZ4, SNAPPY, ZSTD, compress
from ottla.records.varint import varint
from tests.compatibility.load import create_topic, produce_request, read_all
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import Closed, Wire, ask, serves, wait_until

MB = 1_000_000
MAX_FRAME = 104_857_600  # socket.request.max.bytes


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("bad-input")) as running:
        yield running
        assert serves(running.address)
    assert not running.tracebacks(), running.tracebacks()[0]


def resident(node: OttlaNode) -> int:
    process = psutil.Process(node.pid)
    return int(sum(each.memory_info().rss for each in [process, *process.children(recursive=True)]))


def peak(node: OttlaNode) -> int:
    """The most that the broker's process has ever held."""
    [line] = [line for line in Path(f"/proc/{node.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def sends(node: OttlaNode, data: bytes) -> bytes:
    """What comes back on a connection of its own before the node closes it."""
    with socket.create_connection(node.address, timeout=20) as connection:
        received = b""
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                received += part
        except (ConnectionResetError, BrokenPipeError):
            pass
        return received


def refusals(node: OttlaNode) -> int:
    return node.log_text().count("connection refused")


@pytest.mark.parametrize("size", [-1, -(2**31), MAX_FRAME + 1, 2**31 - 1])
def test_a_frame_size_that_cannot_be_closes_the_connection_with_one_line(node: OttlaNode, size: int) -> None:
    before = refusals(node)
    assert sends(node, struct.pack(">i", size) + b"x" * 100) == b""
    wait_until("one line in the log", lambda: refusals(node) == before + 1)
    assert serves(node.address)


def test_unknown_requests_and_versions_close_the_connection(node: OttlaNode) -> None:
    for api_key, version in ((999, 0), (-1, 0), (4, 0), (3, 99), (3, -1), (1, 3), (52, 0), (62, 0)):
        assert sends(node, struct.pack(">ihhih", 10, api_key, version, 1, -1)) == b"", (api_key, version)
    assert serves(node.address)


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest_form(node: OttlaNode) -> None:
    with Wire(node.address) as wire:
        wire.send_raw(struct.pack(">ihhih", 10, 18, 99, 7, -1))
        frame = wire.read_frame()
        answer = decode(ApiVersionsResponse, 0, frame, 4)
        assert (frame[:4], answer.error_code) == (struct.pack(">i", 7), ErrorCode.UNSUPPORTED_VERSION)
        assert len(answer.api_keys) > 20
        assert wire.ask(MetadataRequest(topics=[]), 4).brokers  # the connection goes on


def test_random_and_truncated_frames_hurt_nobody_else(node: OttlaNode) -> None:
    chance = random.Random(5)
    bystander = Wire(node.address)
    for _ in range(150):
        body = bytes(chance.randrange(256) for _ in range(chance.randrange(40)))
        api_key = chance.choice([key for key in APIS if "broker" in APIS[key].listeners and key != 0])
        head = struct.pack(">hhih", api_key, chance.randrange(8), 1, -1)
        frame = chance.choice([body, head + body, head])
        whole = struct.pack(">i", len(frame)) + frame
        with socket.create_connection(node.address, timeout=20) as connection:
            connection.sendall(whole[: chance.randrange(1, len(whole) + 1)] if chance.random() < 0.3 else whole)
            connection.shutdown(socket.SHUT_WR)
            try:
                while connection.recv(65536):
                    pass
            except ConnectionResetError:
                pass
    assert bystander.ask(MetadataRequest(topics=[]), 4).brokers
    bystander.close()


def test_frames_that_never_end_cost_nothing(node: OttlaNode) -> None:
    before = resident(node)
    held = [socket.create_connection(node.address) for _ in range(50)]
    for connection in held:
        connection.sendall(struct.pack(">i", MAX_FRAME) + b"x" * 1000)
    assert serves(node.address)
    assert resident(node) - before < 20 * MB
    for connection in held:
        connection.close()


def test_an_array_that_claims_a_billion_members_costs_nothing(node: OttlaNode) -> None:
    before = resident(node)
    for version, count in ((1, struct.pack(">i", 2**30)), (12, b"\xff\xff\xff\xff\x07")):
        head = struct.pack(">hhih", 3, version, 1, -1) + (b"\x00" if version >= 9 else b"")
        frame = head + count + b"\0" * 1000
        assert sends(node, struct.pack(">i", len(frame)) + frame) == b""
    assert resident(node) - before < 20 * MB


def test_a_thousand_idle_connections_cost_less_than_50_mb(node: OttlaNode) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    serves(node.address)
    before = resident(node)
    wires = [Wire(node.address) for _ in range(1000)]
    for wire in wires:
        assert wire.ask(MetadataRequest(topics=[]), 4).brokers  # each has been served once
    grown = resident(node) - before
    for wire in wires:
        wire.close()
    assert grown < 50 * MB, f"{grown / MB:.1f} MB"


def _bomb(codec: int, size: int) -> bytes:
    """A batch of one record whose value is `size` zeros, a few kilobytes on the wire."""
    value = varint(size)
    start = varint(5 + len(value) + size) + bytes(3) + varint(-1) + value
    if codec == GZIP:  # without holding it whole
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        data = packer.compress(start) + b"".join(packer.compress(bytes(MB)) for _ in range(size // MB))
        data += packer.compress(b"\0") + packer.flush()
    else:
        data = compress(codec, start + bytes(size) + b"\0")
    return assemble(data, record_count=1, last_offset_delta=0, base_timestamp=1, max_timestamp=1, attributes=attributes_of(codec))


@pytest.mark.parametrize("codec", [GZIP, ZSTD, LZ4, SNAPPY])
@pytest.mark.parametrize("reason", ["compacted", "recompressed"])
def test_a_decompression_bomb_is_refused_where_it_must_be_unpacked(node: OttlaNode, codec: int, reason: str) -> None:
    topic = f"bomb-{codec}-{reason}"
    config = {"cleanup_policy": "compact"} if reason == "compacted" else {"compression_type": "gzip" if codec != GZIP else "zstd"}
    assert create_topic(node.address, topic, **config) == ErrorCode.NONE
    request = produce_request(topic, 0, (b"x",))
    request.topic_data[0].partition_data[0].records = _bomb(codec, 100 * MB if codec != SNAPPY else 12 * MB)
    before = resident(node)
    code = ask(node.address, request, 8).responses[0].partition_responses[0].error_code
    assert ErrorCode(code) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)
    assert resident(node) - before < 60 * MB
    assert read_all(node.address, topic, 0) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs the peak of the resident size")
@pytest.mark.parametrize("codec", [GZIP, ZSTD, LZ4, SNAPPY])
def test_a_decompression_bomb_is_not_unpacked_to_look_up_a_time(tmp_path: Path, codec: int) -> None:
    """Where nothing else must be unpacked it is taken as it came, and the lookup answers from what its header says."""
    with OttlaNode(tmp_path) as node:
        create_topic(node.address, "bombs")
        request = produce_request("bombs", 0, (b"x",))
        for _ in range(3):
            request.topic_data[0].partition_data[0].records = _bomb(codec, 100 * MB if codec != SNAPPY else 12 * MB)
            assert ask(node.address, request, 8).responses[0].partition_responses[0].error_code == ErrorCode.NONE
        before = peak(node)
        for timestamp, expected in ((0, (1, 0)), (1, (1, 0)), (MAX_TIMESTAMP, (1, 0)), (2, (-1, -1))):
            row = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topics = [ListOffsetsRequest.ListOffsetsTopic(name="bombs", partitions=[row])]
            answer = ask(node.address, ListOffsetsRequest(replica_id=-1, topics=topics), 7).topics[0].partitions[0]
            assert (answer.error_code, answer.timestamp, answer.offset) == (ErrorCode.NONE, *expected)
        assert peak(node) - before < 10 * MB
        assert not node.tracebacks()


def test_a_producer_without_answers_is_cut_off_at_its_first_mistake(node: OttlaNode) -> None:
    """acks=0: closing the connection is the only way to tell it."""
    with Wire(node.address) as wire:
        wire.tell(produce_request("no-such-topic", 0, (b"x",), acks=0), 8)
        with pytest.raises(Closed):
            wire.read_frame()


def test_replies_leave_in_the_order_of_their_requests(node: OttlaNode) -> None:
    create_topic(node.address, "ordered")
    requests = [produce_request("ordered", 0, (b"%d" % index,)) for index in range(200)]
    with Wire(node.address) as wire:
        sent = b"".join(
            b"".join(bytes(part) for part in request_frame(each, 8, index, None)) for index, each in enumerate(requests)
        )
        wire.send_raw(sent)
        seen = [struct.unpack_from(">i", wire.read_frame())[0] for _ in requests]
    assert seen == list(range(200))
    assert [record.value for record in read_all(node.address, "ordered", 0)] == [b"%d" % index for index in range(200)]


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_a_disk_that_takes_no_more_is_a_storage_error_until_it_does_again(tmp_path: Path) -> None:
    """The limit on the size of a file stands in for a full disk: writes fail half-way, as they do there."""
    with OttlaNode(tmp_path) as node:
        create_topic(node.address, "full")
        large = (b"x" * 100_000,) * 5

        def send() -> int:
            return int(ask(node.address, produce_request("full", 0, large), 8).responses[0].partition_responses[0].error_code)

        for _ in range(4):
            assert send() == ErrorCode.NONE
        _, hard = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (2_300_000, hard))
        codes = [ErrorCode(send()) for _ in range(3)]
        assert set(codes) == {ErrorCode.KAFKA_STORAGE_ERROR}, codes
        assert len(read_all(node.address, "full", 0)) == 20
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert send() == ErrorCode.NONE
        assert [len(record.value or b"") for record in read_all(node.address, "full", 0)] == [100_000] * 25
        assert not node.tracebacks()


def test_a_second_node_on_the_same_data_is_refused(node: OttlaNode, tmp_path: Path) -> None:
    second = OttlaNode(tmp_path)
    second.folder = node.folder
    second.output = tmp_path / "second.log"
    with pytest.raises(AssertionError, match="ended while waiting"):
        second.start()
    assert second.stop() == 1
    assert len([line for line in second.log_text().splitlines() if line.startswith("ottla: ")]) == 1


def test_a_port_in_use_is_one_sentence(node: OttlaNode, tmp_path: Path) -> None:
    other = OttlaNode(tmp_path, port=node.port)
    with pytest.raises(AssertionError, match="ended while waiting"):
        other.start()
    assert other.stop() == 1
    lines = [line for line in other.log_text().splitlines() if line.startswith("ottla: ")]
    assert len(lines) == 1
    assert "in use" in lines[0]
