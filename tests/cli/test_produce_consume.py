"""`ottla produce`, `consume`, `offsets`, `configs`, `records` and `perf` against a running broker."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.embedded.cluster import EmbeddedCluster
from tests.cli.processes import environment
from tests.cli.processes import here as ottla


@pytest.fixture(scope="module")
def bootstrap() -> Any:
    with EmbeddedCluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture
def topic(bootstrap: str, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", request.node.name)[:100]
    assert ottla("topics", "create", name, "-p", "2", bootstrap=bootstrap).returncode == 0
    return str(name)


def test_lines_come_back_with_keys_headers_and_places(bootstrap: str, topic: str) -> None:
    sent = ottla("produce", topic, "-K", ":", "-H", "from=test", "-p", "1", stdin="a:1\nb:two words\n", bootstrap=bootstrap)
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, "", f"produced 2 records to {topic}\n")
    plain = ottla("consume", topic, bootstrap=bootstrap)
    assert plain.stdout == "1\ntwo words\n"
    full = ottla("consume", topic, "-k", "--headers", "--offsets", "--partitions", bootstrap=bootstrap)
    assert full.stdout == f"{topic}-1\t0\tfrom:test\ta\t1\n{topic}-1\t1\tfrom:test\tb\ttwo words\n"


def test_json_goes_round(bootstrap: str, topic: str) -> None:
    lines = [
        {"key": "k", "value": "v", "headers": [{"key": "h", "value": None}], "partition": 0, "timestamp": 1700000000000},
        {"key": None, "value": {"base64": "/wA="}, "partition": 0, "timestamp": 1700000000001},
        {"key": "k", "value": None, "partition": 0, "timestamp": 1700000000002},
    ]
    stdin = "".join(json.dumps(line) + "\n" for line in lines)
    assert ottla("produce", topic, "--json", stdin=stdin, bootstrap=bootstrap).returncode == 0
    read = [json.loads(line) for line in ottla("consume", topic, "--json", bootstrap=bootstrap).stdout.splitlines()]
    assert [row["offset"] for row in read] == [0, 1, 2]
    for line, row in zip(lines, read, strict=True):
        assert {name: row[name] for name in line} == line


def test_files_are_read_by_line_or_whole(bootstrap: str, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.bin").write_bytes(b"\x00\xff\n\x01")
    assert ottla("produce", topic, str(tmp_path / "a.txt"), "-p", "0", bootstrap=bootstrap).returncode == 0
    assert ottla("produce", topic, "--whole", str(tmp_path / "b.bin"), "-p", "0", bootstrap=bootstrap).returncode == 0
    values = [json.loads(line)["value"] for line in ottla("consume", topic, "--json", bootstrap=bootstrap).stdout.splitlines()]
    assert values == ["one", "two", {"base64": "AP8KAQ=="}]


def test_where_to_begin_and_when_to_stop(bootstrap: str, topic: str) -> None:
    stdin = "".join(json.dumps({"value": str(n), "partition": n % 2, "timestamp": 1700000000000 + n}) + "\n" for n in range(10))
    assert ottla("produce", topic, "--json", stdin=stdin, bootstrap=bootstrap).returncode == 0

    def read(*options: str) -> list[str]:
        done = ottla("consume", topic, *options, bootstrap=bootstrap)
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.split())

    assert read() == [str(n) for n in range(10)]
    assert read("-p", "1", "-o", "3") == ["7", "9"]
    assert len(read("--max", "4")) == 4
    assert read("--from", "1700000000007") == ["7", "8", "9"]
    assert read("--from", "2023-11-14T22:13:20.008+00:00") == ["8", "9"]
    assert read("--from", "latest") == []


def test_a_group_goes_on_where_it_left_off(bootstrap: str, topic: str) -> None:
    ottla("produce", topic, stdin="one\ntwo\n", bootstrap=bootstrap)
    assert sorted(ottla("consume", topic, "--group", "g", bootstrap=bootstrap).stdout.split()) == ["one", "two"]
    ottla("produce", topic, stdin="three\n", bootstrap=bootstrap)
    assert ottla("consume", topic, "--group", "g", bootstrap=bootstrap).stdout == "three\n"


@pytest.mark.parametrize(
    ("arguments", "stdin", "why"),
    [
        (["produce", "{topic}", "-K", ":"], "nokey\n", "standard input, line 1: no ':' between key and value"),
        (["produce", "{topic}", "-p", "7"], "x\n", "there is no partition 7"),
        (["produce", "{topic}", "--set", "lingerms=5"], "x\n", "did you mean linger_ms"),
        (["consume", "{topic}", "-p", "7"], "", "there is no partition 7"),
        (["topics", "describe", "nosuch"], "", "UNKNOWN_TOPIC_OR_PARTITION"),
        (["topics", "create", "{topic}"], "", "TOPIC_ALREADY_EXISTS"),
        (["topics", "create", "a/b"], "", "INVALID_TOPIC_EXCEPTION"),
        (["topics", "alter", "{topic}", "-p", "1"], "", "INVALID_PARTITIONS"),
        (["configs", "alter", "topic", "{topic}", "--set", "retention.ms=soon"], "", "retention.ms"),
    ],
)
def test_a_failure_is_one_sentence_and_one(bootstrap: str, topic: str, arguments: list[str], stdin: str, why: str) -> None:
    done = ottla(*(argument.format(topic=topic) for argument in arguments), stdin=stdin, bootstrap=bootstrap)
    assert done.returncode == 1
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_mistyped_topic_is_told_in_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedCluster(settings={"auto.create.topics.enable": "false"}) as cluster:
        for module, command in (("consume", ["consume"]), ("produce", ["produce"]), ("perf", ["perf", "produce"])):
            monkeypatch.setattr(f"ottla.cli.{module}.TOPIC_WAIT_MS", 100.0)
            done = ottla(*command, "nosuch", stdin="x\n", bootstrap=cluster.bootstrap)
            assert done.returncode == 1
            assert "topic nosuch does not exist" in done.stderr
            assert len(done.stderr.splitlines()) == 1


def test_no_broker_is_one_sentence() -> None:
    done = ottla("topics", "list", bootstrap="127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("ottla: 127.0.0.1:1: nothing listens there")


def test_offsets_and_deleted_records(bootstrap: str, topic: str) -> None:
    ottla("produce", topic, "-p", "0", stdin="a\nb\nc\n", bootstrap=bootstrap)

    def offsets() -> list[tuple[int, int, int]]:
        rows = json.loads(ottla("offsets", topic, "--json", bootstrap=bootstrap).stdout)
        return [(row["partition"], row["earliest"], row["latest"]) for row in rows]

    assert offsets() == [(0, 0, 3), (1, 0, 0)]
    assert ottla("records", "delete", topic, "-p", "0", "--before", "2", "--yes", bootstrap=bootstrap).returncode == 0
    assert offsets() == [(0, 2, 3), (1, 0, 0)]
    assert ottla("consume", topic, bootstrap=bootstrap).stdout == "c\n"


def test_settings_are_changed_and_given_back(bootstrap: str, topic: str) -> None:
    def settings() -> dict[str, str]:
        rows = json.loads(ottla("configs", "describe", "topic", topic, "--json", bootstrap=bootstrap).stdout)
        return {row["name"]: row["value"] for row in rows if row["source"] == "dynamic-topic-config"}

    assert settings() == {}
    assert ottla("configs", "alter", "topic", topic, "--set", "retention.ms=5000", bootstrap=bootstrap).returncode == 0
    assert ottla("topics", "alter", topic, "--set", "cleanup.policy=compact", "-p", "3", bootstrap=bootstrap).returncode == 0
    assert settings() == {"retention.ms": "5000", "cleanup.policy": "compact"}
    described = json.loads(ottla("topics", "describe", topic, "--json", bootstrap=bootstrap).stdout)[0]
    assert len(described["partitions"]) == 3
    assert ottla("configs", "alter", "topic", topic, "--unset", "retention.ms", bootstrap=bootstrap).returncode == 0
    assert settings() == {"cleanup.policy": "compact"}


def test_perf_measures_what_it_did(bootstrap: str, topic: str) -> None:
    made = json.loads(ottla("perf", "produce", topic, "-n", "2000", "-s", "10", "--json", bootstrap=bootstrap).stdout)
    assert made["records"] == 2000
    assert 0 < made["p50_ms"] <= made["p99_ms"] <= made["max_ms"]
    for options in ([], ["--arrow"]):
        read = json.loads(ottla("perf", "consume", topic, "--json", *options, bootstrap=bootstrap).stdout)
        assert read["records"] == 2000
    there = json.loads(ottla("perf", "latency", topic, "-n", "20", "--json", bootstrap=bootstrap).stdout)
    assert there["acknowledged"]["p50_ms"] <= there["received"]["p50_ms"]
    drawn = ottla("perf", "produce", topic, "-n", "100", bootstrap=bootstrap).stdout
    assert drawn.startswith("100 records in ")
    assert "█" in drawn


def test_ctrl_c_ends_a_follower_cleanly_and_commits(bootstrap: str, topic: str) -> None:
    ottla("produce", topic, stdin="one\n", bootstrap=bootstrap)
    command = [sys.executable, "-m", "ottla", "consume", topic, "--follow", "--group", "followers"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(bootstrap),
        # A suite that runs in the background of a shell is deaf to Ctrl-C, and so would its children be.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "one\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, errors.strip()) == (130, "")
    assert ottla("consume", topic, "--group", "followers", "--timeout", "1", bootstrap=bootstrap).stdout == ""


def test_a_reader_that_goes_away_is_no_failure(bootstrap: str, topic: str) -> None:
    ottla("produce", topic, stdin="line\n" * 20_000, bootstrap=bootstrap)
    command = f"{sys.executable} -m ottla consume {topic} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False, env=environment(bootstrap)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "line\n", "")
