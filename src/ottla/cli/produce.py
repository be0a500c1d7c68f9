"""`ottla produce`: lines of standard input or of files become records."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import click

from ottla.cli.lines import BadLine, Headers, LineFormat, Outgoing, parse_header, parse_line
from ottla.cli.running import TOPIC_WAIT_MS, bootstrap_option, client_settings, parse_pairs, run

if TYPE_CHECKING:
    from ottla.client.delivery import Delivery
    from ottla.client.producer import Producer

CHUNK_SIZE = 1 << 16
MAX_UNDER_WAY = 10_000  # deliveries not yet looked at; the oldest is waited for before the next record is sent


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--key", help="The key of every record.")
@click.option("--key-separator", "-K", metavar="TEXT", help="What stands between key and value in a line; \\t is a tab.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record.")
@click.option("--headers-separator", metavar="TEXT", help="What stands behind the headers (NAME:VALUE,…) that begin a line.")
@click.option("--null-marker", metavar="TEXT", help="A key or value that is this text is null: a tombstone.")
@click.option(
    "--json", "is_json", is_flag=True, help="A line is an object: value, and as wanted key, headers, partition, timestamp."
)
@click.option("--partition", "-p", type=click.IntRange(0), help="The partition of every record.")
@click.option("--whole", is_flag=True, help="Each file is one record instead of one a line.")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option("--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none", show_default=True)
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=parse_pairs,
    metavar="NAME=VALUE",
    help="A setting of the producer, by Kafka's name.",
)
@click.option("--quiet", "-q", is_flag=True, help="Do not tell how many records were produced.")
@bootstrap_option
def command(
    topic: str,
    files: tuple[Path, ...],
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    headers_separator: str | None,
    null_marker: str | None,
    is_json: bool,
    partition: int | None,
    whole: bool,
    acks: str,
    compression: str,
    settings: dict[str, str],
    quiet: bool,
    bootstrap: str,
) -> None:
    """Send lines of standard input, or of FILES, to TOPIC, each as a record."""
    form = LineFormat(_unescape(key_separator), _unescape(headers_separator), null_marker, is_json)
    every = _Every(key.encode() if key is not None else None, _headers(headers), partition)
    own = client_settings({"acks": acks, "compression.type": compression, **settings}, bootstrap)
    if whole and not files:
        raise click.UsageError("--whole needs FILES")
    count = run(_produce(topic, own, every, _whole(files) if whole else _lines(files, form)))
    if not quiet:
        click.echo(f"produced {count} record{'' if count == 1 else 's'} to {topic}", err=True)


class _Every:
    """What all records of one command have; what a line says itself comes first."""

    def __init__(self, key: bytes | None, headers: Headers, partition: int | None) -> None:
        self.key, self.headers, self.partition = key, headers, partition


def _unescape(text: str | None) -> str | None:
    return text.replace("\\t", "\t") if text else text


def _headers(texts: tuple[str, ...]) -> Headers:
    try:
        return [parse_header(text, "=") for text in texts]
    except BadLine as error:
        raise click.UsageError(str(error)) from None


async def _produce(topic: str, settings: dict[str, object], every: _Every, records: AsyncIterator[Outgoing]) -> int:
    from ottla.client.producer import Producer

    count = 0
    under_way: list[Delivery] = []
    async with Producer(**settings) as producer:  # type: ignore[arg-type]
        async for record in records:
            if not count:
                await producer.partitions_for(topic, timeout_ms=TOPIC_WAIT_MS)
            under_way.append(await _send(producer, topic, record, every))
            count += 1
            if len(under_way) >= MAX_UNDER_WAY:
                for delivery in under_way[: MAX_UNDER_WAY // 2]:
                    await delivery
                del under_way[: MAX_UNDER_WAY // 2]
        await producer.flush()
        for delivery in under_way:
            await delivery
    return count


async def _send(producer: Producer, topic: str, record: Outgoing, every: _Every) -> Delivery:
    return await producer.send(
        topic,
        record.value,
        key=record.key if record.key is not None else every.key,
        headers=[*every.headers, *record.headers],
        partition=record.partition if record.partition is not None else every.partition,
        timestamp_ms=record.timestamp,
    )


async def _whole(files: tuple[Path, ...]) -> AsyncIterator[Outgoing]:
    for file in files:
        yield Outgoing(file.read_bytes())


async def _lines(files: tuple[Path, ...], form: LineFormat) -> AsyncIterator[Outgoing]:
    """Standard input is read on a thread: a line may be long in coming, and records already sent must not wait for it."""
    with ExitStack() as opened:
        if not files:
            async for name, number, line in _standard_input():
                yield _parsed(name, number, line, form)
            return
        for file in files:
            stream = opened.enter_context(file.open(encoding="utf-8", errors="surrogateescape", newline="\n"))
            for number, line in _numbered(stream):
                yield _parsed(str(file), number, line, form)


def _parsed(name: str, number: int, line: str, form: LineFormat) -> Outgoing:
    try:
        return parse_line(line, form)
    except BadLine as error:
        raise click.ClickException(f"{name}, line {number}: {error}") from None


def _numbered(stream: IO[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(stream, 1):
        yield number, line.rstrip("\n").rstrip("\r")


async def _standard_input() -> AsyncIterator[tuple[str, int, str]]:
    prompt = "> " if sys.stdin.isatty() else ""
    number, rest = 0, b""
    read = cast(BufferedReader, sys.stdin.buffer).read1  # returns what is there, so that a person's line is sent at once
    while True:
        if prompt:
            click.echo(prompt, nl=False, err=True)
        chunk = await asyncio.to_thread(read, CHUNK_SIZE)
        *whole, rest = (rest + chunk).split(b"\n")
        if not chunk and rest:
            whole, rest = [rest], b""
        for line in whole:
            number += 1
            yield "standard input", number, line.rstrip(b"\r").decode("utf-8", "surrogateescape")
        if not chunk:
            return
