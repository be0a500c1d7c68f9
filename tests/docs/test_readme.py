"""What README.md shows is run: the tour of the command line, the Python, the test, the Spark line. The demo's proof: tests/demos."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.embedded.cluster import EmbeddedCluster
from tests.cli.processes import here, running
from tests.docs.runner import Block, blocks

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = blocks(ROOT / "README.md")
ADDRESS = "localhost:9092"
LIMIT_S = 60.0


def block(kind: str, word: str) -> Block:
    (found,) = [each for each in BLOCKS if each.kind == kind and word in each.text]
    return found


def commands(text: str) -> list[str]:
    return [line.split("#")[0].strip() for line in text.splitlines() if line.split("#")[0].strip()]


def test_every_block_is_one_that_a_test_here_runs() -> None:
    words = [("sh", "./ottla demo"), ("text", "The proof"), ("sh", "./ottla up")]
    words += [("python", "Producer"), ("python", "ottla_broker"), ("python", "spark")]
    assert [block(*each) for each in words] == BLOCKS


def test_the_two_commands_are_there_to_be_run() -> None:
    for command in commands(block("sh", "./ottla demo").text):
        assert os.access(ROOT / command.split()[0], os.X_OK), command


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("readme")
    with running("up", "--port", "0", "--data", str(folder / "ottla-data")) as (_, bootstrap):
        yield bootstrap, folder


def test_the_tour_of_the_command_line(broker: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap, folder = broker
    monkeypatch.chdir(folder)
    printed = {}
    for line in commands(block("sh", "./ottla up").text):
        before, _, command = line.rpartition("./ottla ")
        if command.startswith("up"):
            continue  # `broker` is one; three of them are tests/cli/test_up.py's
        stdin = re.match(r"printf '(.+)' \|", before)
        ending = ["--timeout", "2"] if "--follow" in command else ["--records", "100"] if "perf" in command else []
        text = stdin[1].replace("\\n", "\n") if stdin else ""
        done = here(*shlex.split(command), *ending, stdin=text, bootstrap=bootstrap)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        printed[command] = done.stdout
    assert "anna" in printed["consume orders --keys --follow"]
    assert "two apples" in printed["consume orders --group billing"]
    assert "billing" in printed["groups describe billing"]
    assert "two apples" in printed["log dump ottla-data/node-1/orders-1"]


class _Enough(Exception):
    """The loop of the page goes on for ever; its first record is enough."""


def test_the_clients_in_python(broker: tuple[str, Path]) -> None:
    printed: list[Any] = []

    def note(*words: Any) -> None:
        printed.extend(words)
        raise _Enough

    text = (
        block("python", "Producer").text.replace(ADDRESS, broker[0]).replace("orders", "python-orders").replace("billing", "py")
    )
    assert here("topics", "create", "python-orders", bootstrap=broker[0]).returncode == 0
    code = compile(text, "README", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            work = eval(code, {"print": note})
            assert inspect.iscoroutine(work)
            await work

    with pytest.raises(_Enough):
        asyncio.run(run())
    assert printed == [b"anna", b"two apples"]


def test_the_test_with_a_broker(ottla_broker: EmbeddedCluster) -> None:
    seen = []

    def my_service(bootstrap_servers: str) -> None:
        seen.append(here("cluster", "describe", bootstrap=bootstrap_servers).returncode)

    namespace: dict[str, Any] = {"my_service": my_service}
    exec(block("python", "ottla_broker").text, namespace)
    namespace["test_an_order_arrives"](ottla_broker)
    assert seen == [0]


@pytest.mark.slow
@pytest.mark.spark
def test_the_line_for_spark(broker: tuple[str, Path], tmp_path: Path) -> None:
    from ottla.spark.session import session

    assert here("topics", "create", "spark-orders", bootstrap=broker[0]).returncode == 0
    assert here("produce", "spark-orders", stdin="one\ntwo\n", bootstrap=broker[0]).returncode == 0
    spark = session("readme")
    namespace: dict[str, Any] = {"spark": spark}
    exec(block("python", "spark").text.replace(ADDRESS, broker[0]).replace('"orders"', '"spark-orders"'), namespace)
    query = (
        namespace["orders"]
        .writeStream.format("memory")
        .queryName("readme")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(LIMIT_S)
    assert spark.sql("SELECT topic FROM readme").count() == 0  # a stream starts at the end unless told otherwise
