"""Frames that real clients and a real Apache Kafka 4.3 sent each other (`capture.py`) are read, and written back byte for byte."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.apis import APIS
from ottla.protocol.codec import decode, read_from
from ottla.protocol.framing import read_request_head, request_frame, response_body_start, response_frame, skip_tags

# A client's bug that Kafka never notices, because it does not look at what follows a request: a broker must not either.
TRAILING_BYTE = {("librdkafka", "AlterUserScramCredentials")}
GOLDEN: list[dict[str, Any]] = json.loads(Path(__file__).with_name("golden.json").read_text())


def _name(row: dict[str, Any]) -> str:
    return f"{row['client']}-{APIS[row['api']].name}-v{row['version']}-{row['direction']}-{len(row['frame']) // 2}"


def test_the_frames_are_of_all_four_clients_and_most_apis() -> None:
    clients = Counter(row["client"] for row in GOLDEN)
    assert set(clients) == {"librdkafka", "kafka-python", "aiokafka", "java"}
    broker_apis = {key for key, api in APIS.items() if "broker" in api.listeners}
    assert len({row["api"] for row in GOLDEN} & broker_apis) >= 45


@pytest.mark.parametrize("row", GOLDEN, ids=_name)
def test_a_captured_frame_is_written_back_byte_for_byte(row: dict[str, Any]) -> None:
    api, version, frame = APIS[row["api"]], row["version"], bytes.fromhex(row["frame"])
    if row["direction"] == "request":
        head = read_request_head(frame)
        assert head[:2] == (api.key, version)
        start = skip_tags(frame, head.position) if version in api.request.FLEXIBLE else head.position
        request, end = read_from(api.request, version, frame, start)
        assert frame[end:] == (b"\x00" if (row["client"], api.name) in TRAILING_BYTE else b"")
        frame = frame[:end]
        written = request_frame(request, version, head.correlation_id, head.client_id)
    else:
        start = response_body_start(frame, version in api.response.FLEXIBLE and api.name != "ApiVersions")
        written = response_frame(decode(api.response, version, frame, start), version, struct.unpack_from(">i", frame)[0])
    assert b"".join(bytes(part) for part in written) == struct.pack(">i", len(frame)) + frame
