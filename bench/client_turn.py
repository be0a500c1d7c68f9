"""The turn `clients`: ottla's Python client beside the others, all against one ottla node, each in turn, round after round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import clients, python_clients
from bench.clients import PARTITIONS
from bench.python_clients import CONSUMERS, PRODUCERS
from bench.systems import running

SLOW = {"kafka-python": 5}  # gets so many times fewer records, so that a round stays short
ARROW_OVER_AIOKAFKA = 1.2 / 0.37  # 1.2 M records/s were asked for on a machine where aiokafka makes 0.37 M
# What is done, by which of our ways, beside whom → at least so many times as fast (None: only told).
COMPARED: dict[tuple[str, str, str], float | None] = {
    ("produce", "ottla", "aiokafka"): 1.5,
    ("produce", "ottla", "kafka-python"): 4.0,
    ("produce", "ottla", "confluent-kafka"): None,
    ("produce", "ottla.sync", "kafka-python"): None,
    ("produce", "ottla.sync", "confluent-kafka"): None,
    ("produce", "ottla, Arrow", "confluent-kafka"): None,
    ("consume", "ottla", "aiokafka"): 1.0,
    ("consume", "ottla", "confluent-kafka"): 2.0,
    ("consume", "ottla", "kafka-python"): None,
    ("consume", "ottla, poll", "aiokafka"): 1.0,
    ("consume", "ottla, poll", "confluent-kafka"): 2.0,
    ("consume", "ottla, poll", "confluent-kafka without its rests"): None,
    ("consume", "ottla, Arrow", "confluent-kafka"): 5.0,
    ("consume", "ottla, Arrow", "confluent-kafka without its rests"): None,
    ("consume", "ottla, Arrow", "aiokafka"): ARROW_OVER_AIOKAFKA,
}
IMPORT = "import of ottla"
IMPORT_CLIENTS = "import of all three clients"
IMPORTS = {
    IMPORT: ("import ottla", "import aiokafka"),
    IMPORT_CLIENTS: ("from ottla import Producer, Consumer, Admin", "from aiokafka import AIOKafkaProducer, AIOKafkaConsumer"),
}


def title(work: str, ours: str, theirs: str) -> str:
    way = {"ottla": "", "ottla.sync": " without asyncio", "ottla, poll": " by poll", "ottla, Arrow": " by Arrow"}[ours]
    return f"{work}{way}, beside {theirs}"


FIGURES: dict[str, tuple[str, float | None]] = {
    title(*compared): ("records/s", wanted) for compared, wanted in COMPARED.items()
} | dict.fromkeys(IMPORTS, ("s", None))


def take_turns(rounds: int, records: int, folder: Path, say: Callable[[str], None]) -> dict[str, dict[str, list[float]]]:
    """Figure → client → one value a round."""
    rates: dict[tuple[str, str], list[float]] = {}
    imports: dict[str, dict[str, list[float]]] = {}
    with running("ottla", folder / "clients") as node:
        clients.create(node.bootstrap, "read", PARTITIONS)
        # Twice what is read: at the end of a partition a consumer waits for more, and that is no part of its speed.
        clients.produce(node.bootstrap, "read", 2 * records, len(python_clients.VALUE), PARTITIONS)
        for number in range(rounds):
            say(f"clients, round {number + 1} of {rounds}")
            for work, table in (("consume", CONSUMERS), ("produce", PRODUCERS)):
                for client in list(table) if number % 2 == 0 else list(table)[::-1]:
                    topic = "read" if work == "consume" else f"written-{number}-{client}".replace(", ", "-")
                    if work == "produce":
                        clients.create(node.bootstrap, topic, PARTITIONS)
                    rate = python_clients.run(client, work, node.bootstrap, topic, records // SLOW.get(client, 1))
                    rates.setdefault((work, client), []).append(rate)
            for figure, statements in IMPORTS.items():
                for name, statement in zip(("ottla", "aiokafka"), statements, strict=True):
                    taken = python_clients.seconds_to_import(statement)
                    imports.setdefault(figure, {}).setdefault(name, []).append(taken)
    found = {title(*row): {"ottla": rates[row[0], row[1]], row[2]: rates[row[0], row[2]]} for row in COMPARED}
    return found | imports
