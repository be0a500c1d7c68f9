"""Every command of docs/kafka-tools.md is run, in the order of the page, against three brokers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.embedded.cluster import EmbeddedCluster
from ottla.embedded.properties import free_ports
from tests.cli.processes import here, running

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka-tools.md"
LINES = "a:1\nb:2\nc:3\n"


def commands() -> list[list[str]]:
    rows = re.findall(r"^\| .+ \| `ottla (.+)` \|$", PAGE.read_text(), re.MULTILINE)
    return [shlex.split(row) for row in rows]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, settings={"offsets.topic.num.partitions": "3"}) as made:
        yield made


def test_the_page_maps_what_the_notes_on_kafka_use() -> None:
    text = PAGE.read_text()
    scripts = [
        "kafka-topics",
        "kafka-console-producer",
        "kafka-console-consumer",
        "kafka-get-offsets",
        "kafka-producer-perf-test",
    ]
    scripts += ["kafka-server-start", "kafka-server-stop", "zookeeper-shell", "zookeeper-server-start", "docker-compose"]
    assert [script for script in scripts if script not in text] == []
    assert len(commands()) >= 35


def test_every_command_on_the_page_works(cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (server,) = free_ports(1)
    (tmp_path / "server0.properties").write_text(
        f"node.id=0\nprocess.roles=broker,controller\nlisteners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{server}\n"
        f"controller.listener.names=CONTROLLER\ncontroller.quorum.voters=0@127.0.0.1:{server}\nlog.dirs={tmp_path}/logs-0\n"
    )
    for command in commands():
        if command[0] == "up":
            with running(*command, "--port", "0", "--ephemeral") as (_, bootstrap):
                assert bootstrap
        elif command[0] == "server":
            with running(*command) as (_, bootstrap):
                assert bootstrap
        else:
            done = here(*prepared(command, cluster), stdin=LINES, bootstrap=cluster.bootstrap)
            assert done.returncode == 0, (command, done.stdout, done.stderr)


def prepared(command: list[str], cluster: EmbeddedCluster) -> list[str]:
    """Words that stand for something, and an end for what would go on for ever."""
    if command[:2] == ["log", "dump"]:
        node = cluster.node(next(node.node_id for node in cluster.nodes if (Path(node.directory) / "my_topic-0").exists()))
        return ["log", "dump", str(Path(node.directory) / "my_topic-0" / "00000000000000000000.log")]
    return [*command, "--timeout", "1"] if "--follow" in command else command
