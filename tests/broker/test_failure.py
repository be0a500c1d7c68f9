"""A disk that fails to sync: the node can promise nothing more, and ends."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from pathlib import Path

import pytest

from ottla.broker.main import serve
from ottla.broker.node import Node
from ottla.client.connection import connect
from ottla.embedded.formatting import format_node, new_id
from ottla.embedded.properties import plan, properties
from ottla.host.network import RealNetwork
from ottla.protocol.messages.topics import CreateTopicsRequest

LIMIT_S = 60.0


def test_a_node_whose_metadata_cannot_be_synced_acknowledges_nothing_and_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [planned] = plan(1, str(tmp_path))
    format_node(planned.directory, new_id(), planned.node_id)

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def scenario() -> tuple[int, bool]:
        started: asyncio.Future[Node] = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(serve(properties(planned, [planned], {}), started.set_result))
        endpoint = (await asyncio.wait_for(started, LIMIT_S)).advertised[0]
        connection = await connect(RealNetwork(), endpoint.host, endpoint.port)
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, fails)
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        asking = asyncio.ensure_future(connection.request(CreateTopicsRequest(topics=[topic])))
        code = await asyncio.wait_for(serving, LIMIT_S)
        acknowledged = asking.done() and asking.exception() is None
        asking.cancel()
        return code, acknowledged

    try:
        assert asyncio.run(scenario()) == (1, False)
    finally:
        gc.unfreeze()
    assert "the metadata log could not be synced" in capsys.readouterr().err
