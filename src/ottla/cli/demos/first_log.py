"""`first-log`: one broker, four messages, and the file they are in."""

from __future__ import annotations

from pathlib import Path

from ottla.cli.demos.stage import Stage
from ottla.cli.dump import dump_file
from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.embedded.cluster import EmbeddedCluster

TOPIC = "my_topic"
MESSAGES = [f"MyMessage {number}" for number in range(1, 5)]


async def play(stage: Stage) -> None:
    await stage.scene(
        "One broker", why="A broker is a process that keeps logs. This one is real and lives inside this very command."
    )
    async with EmbeddedCluster(1) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        stage.command("ottla up")
        stage.say(
            f"It listens on {cluster.bootstrap}, where any Kafka client may talk to it, and writes below {cluster.directory}."
        )
        await stage.scene(
            "A topic is a folder", why="A topic with one partition is one log. Its folder has the log itself and its indexes."
        )
        await stage.create_topic(admin, TOPIC, 1)
        folder = Path(cluster.nodes[0].directory) / f"{TOPIC}-0"
        _show_files(stage, folder)
        log = folder / "00000000000000000000.log"
        stage.check("the log is empty", log.stat().st_size == 0, log.stat().st_size)
        await _produce(stage, cluster.bootstrap, log)
        _look_inside(stage, log)
        await _consume(stage, cluster.bootstrap)


def _show_files(stage: Stage, folder: Path) -> None:
    stage.table(["file", "bytes"], [{"file": file.name, "bytes": file.stat().st_size} for file in sorted(folder.iterdir())])


async def _produce(stage: Stage, bootstrap: str, log: Path) -> None:
    await stage.scene(
        "Producing appends", why="Every message goes to the end of the log and nowhere else. Nothing that is there ever changes."
    )
    stage.command(f"ottla produce {TOPIC}")
    before = b""
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for message in MESSAGES:
            metadata = await producer.send_and_wait(TOPIC, message.encode())
            content = _content(log)
            stage.lines([f"> {message}    offset {metadata.offset}, the log has {len(content)} bytes"])
            stage.check(
                f"the log grew, and what was there before {message!r} is untouched",
                len(content) > len(before) and content.startswith(before),
            )
            before = content


def _content(log: Path) -> bytes:
    return log.read_bytes()


def _look_inside(stage: Stage, log: Path) -> None:
    content = log.read_bytes()
    stage.check("the messages can be seen in the file", all(message.encode() in content for message in MESSAGES))
    stage.command(f"ottla log dump {log.name}")
    rows = list(dump_file(log, records=True, decoder=None))
    stage.lines(
        [f"batch {row['base_offset']}..{row['last_offset']} of {row['size']} bytes" for row in rows if row["kind"] == "batch"]
    )
    values = [row["value"].decode() for row in rows if row["kind"] == "record"]
    stage.check("read straight from the file, without a broker, they are the messages in order", values == MESSAGES, values)


async def _consume(stage: Stage, bootstrap: str) -> None:
    await stage.scene(
        "Consuming reads",
        why="A consumer asks for what lies behind an offset. Reading takes nothing away: a second one reads the same.",
    )
    stage.command(f"ottla consume {TOPIC}")
    for reader in ("the first", "the second"):
        async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(TOPIC, 0)])
            read: list[str] = []
            while len(read) < len(MESSAGES):
                records = await consumer.poll(5_000)
                if not records:
                    break
                read += [record.value.decode() for record in records]
        if reader == "the first":
            stage.lines(read)
        stage.check(f"{reader} consumer got every message in order", read == MESSAGES, read)
