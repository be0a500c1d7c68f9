"""A producer that stood still while another took its name: whatever the client, it may not finish what it began.

The Python clients do it in one process; Kafka's own TransactionalMessageCopier is really stopped and woken by signals.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from tests.compatibility import process
from tests.compatibility.kafka import QUICK_TOOL, java, run_tool
from tests.compatibility.test_transactions import LIMIT_S, System, create, producer, read_all
from tests.compatibility.wire import wait_until

RECORDS = 2000
PER_TRANSACTION = 20  # a hundred transactions: enough to be stopped in the middle
# Kafka's copier batches 512 bytes and lingers for 5 ms. A transaction of several batches has sent some of them before it aborts; one of
# a single batch has often sent nothing by then, and an abort of nothing cannot be seen.
SEVERAL_BATCHES = 100


def of_librdkafka(system: System, topic: str) -> None:
    zombie = producer(system, f"zombie-{topic}")
    zombie.begin_transaction()
    zombie.produce(topic, "of the zombie", partition=0)
    zombie.flush(LIMIT_S)
    heir = producer(system, f"zombie-{topic}")
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(LIMIT_S)
    assert fenced.value.args[0].fatal()
    heir.begin_transaction()
    heir.produce(topic, "of the heir", partition=0)
    heir.commit_transaction(LIMIT_S)


def of_kafka_python(system: System, topic: str) -> None:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    def made() -> Any:
        new = KafkaProducer(bootstrap_servers=system.bootstrap, transactional_id=f"zombie-{topic}")
        new.init_transactions()
        new.begin_transaction()
        return new

    zombie = made()
    zombie.send(topic, b"of the zombie", partition=0).get(LIMIT_S)
    heir = made()
    with pytest.raises(KafkaError):
        zombie.commit_transaction()
    heir.send(topic, b"of the heir", partition=0).get(LIMIT_S)
    heir.commit_transaction()
    heir.close()
    zombie.close(timeout=1)


def of_aiokafka(system: System, topic: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import ProducerFenced

    async def story() -> None:
        zombie = AIOKafkaProducer(bootstrap_servers=system.bootstrap, transactional_id=f"zombie-{topic}")
        heir = AIOKafkaProducer(bootstrap_servers=system.bootstrap, transactional_id=f"zombie-{topic}")
        await zombie.start()
        await zombie.begin_transaction()
        await zombie.send_and_wait(topic, b"of the zombie", partition=0)
        await heir.start()
        with pytest.raises(ProducerFenced):
            await zombie.commit_transaction()
        await heir.begin_transaction()
        await heir.send_and_wait(topic, b"of the heir", partition=0)
        await heir.commit_transaction()
        await heir.stop()
        await zombie.stop()

    asyncio.run(asyncio.wait_for(story(), LIMIT_S))


@pytest.mark.parametrize("story", [of_librdkafka, of_kafka_python, of_aiokafka], ids=lambda story: story.__name__[3:])
def test_a_zombie_is_fenced(system: System, topic: str, story: Callable[[System, str], None]) -> None:
    create(system, topic)
    story(system, topic)
    assert read_all(system, topic) == ["of the heir"]


# Kafka's own copier -------------------------------------------------------------------------------------------------------


def copier(system: System, topic: str, *more: str, per_transaction: int = PER_TRANSACTION) -> list[str]:
    """Copies `topic` to its copy until the end that it had at the start."""
    arguments = ["--broker-list", system.bootstrap, "--input-topic", topic, "--input-partition", "0"]
    arguments += ["--output-topic", f"{topic}-copy", "--consumer-group", topic, "--transactional-id", f"copier-{topic}"]
    # One that is stopped in the middle of a transaction leaves offsets that nobody may read before its time is over.
    arguments += ["--transaction-size", str(per_transaction), "--transaction-timeout", "5000", "--use-group-metadata", *more]
    return java("TransactionalMessageCopier", arguments, QUICK_TOOL)


def fill(system: System, topic: str) -> list[str]:
    for name in (topic, f"{topic}-copy"):
        create(system, name, 1)
    values = [str(number) for number in range(RECORDS)]
    done = run_tool("ConsoleProducer", "--bootstrap-server", system.bootstrap, "--topic", topic, stdin="\n".join(values) + "\n")
    assert done.returncode == 0, done.stderr
    return sorted(values)


@pytest.mark.kafka
@pytest.mark.slow
def test_kafkas_copier_in_a_group_aborts_at_random_and_copies_everything_once(system: System, topic: str) -> None:
    values = fill(system, topic)
    command = copier(system, topic, "--group-mode", "--enable-random-aborts", per_transaction=SEVERAL_BATCHES)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert read_all(system, f"{topic}-copy", 1) == values
    assert len(read_all(system, f"{topic}-copy", 1, "read_uncommitted")) > RECORDS, "some were aborted"


@pytest.mark.kafka
@pytest.mark.slow
def test_kafkas_copier_that_was_stopped_is_fenced_by_the_next(system: System, topic: str, tmp_path: Path) -> None:
    values = fill(system, topic)
    zombie = process.start(copier(system, topic), tmp_path / "zombie.log")
    try:
        wait_until("a copier in the middle", lambda: copied(tmp_path / "zombie.log") > 0, alive=lambda: zombie.poll() is None)
        zombie.send_signal(signal.SIGSTOP)
        heir = subprocess.run(copier(system, topic), capture_output=True, text=True, timeout=120, check=False)
        assert heir.returncode == 0, heir.stdout[-2000:] + heir.stderr
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(LIMIT_S) == 1, (tmp_path / "zombie.log").read_text()[-2000:]
    finally:
        zombie.kill()
    said = (tmp_path / "zombie.log").read_text()
    assert 0 < copied(tmp_path / "zombie.log") < RECORDS
    assert "unexpected error" in said
    assert read_all(system, f"{topic}-copy", 1) == values


def copied(log: Path) -> int:
    lines = [line for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    return max((int(json.loads(line)["totalProcessed"]) for line in lines), default=0)
