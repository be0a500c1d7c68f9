"""Start a node from a properties file and run it until it is told to stop: `python -m ottla.broker.main FILE.properties`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ottla.broker.config import ConfigError, NodeConfig, read_properties
from ottla.broker.node import Node
from ottla.host import World
from ottla.host.attention import Attention
from ottla.host.clock import RealClock, RealRandomness
from ottla.host.disk import RealDisk
from ottla.host.limits import process_id, raise_open_files
from ottla.host.network import RealNetwork
from ottla.host.workers import RealWorkers
from ottla.model.errors import ApiError, OttlaError

YOUNG_OBJECTS = 20_000  # made between two looks for garbage; what requests make is nearly all freed without one
PID_FILE = "node.pid"  # beside the logs, for as long as the node runs


def real_world() -> World:
    raise_open_files()
    return World(RealClock(), RealRandomness(), RealNetwork(), RealDisk(), RealWorkers())


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """On uvloop where it exists; nothing depends on it but speed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return int(uvloop.run(main))


async def serve(properties: Mapping[str, str], ready: Callable[[Node], None]) -> int:
    """Run a node until SIGTERM or SIGINT, which may come while it starts. A failure to start is one sentence on standard error and 1."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.set)
    try:
        node = Node(real_world(), NodeConfig.from_properties(properties))
        if not await _started(node, stopping):
            return 0
    except (OttlaError, OSError) as error:
        sys.stderr.write(f"ottla: {explain(error)}\n")
        return 1
    # What lives from here on lives until the end: looking at it again and again would only cost pauses.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    node.server.on_answer = Attention().answered
    node.follower_attention = Attention()
    node.on_failure = stopping.set
    ready(node)
    await stopping.wait()
    node.world.disk.remove(_pid_file(node))
    return await end(node)


async def _started(node: Node, stopping: asyncio.Event) -> bool:
    """False when it was told to stop before it served: a node may wait for its quorum for ever."""
    pid_file = _pid_file(node)
    node.world.disk.replace(pid_file, f"{process_id()}\n".encode(), sync=False)
    starting = asyncio.ensure_future(node.start())
    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not starting.done():
        starting.cancel()
    try:
        await starting
    except BaseException as error:
        with contextlib.suppress(OSError):
            node.world.disk.remove(pid_file)
        if isinstance(error, asyncio.CancelledError) and stopping.is_set():
            return False
        raise
    return True


def _pid_file(node: Node) -> str:
    return f"{node.config.directory}/{PID_FILE}"


async def end(node: Node) -> int:
    """0 if the node stopped as it should. One that failed stops like one that was killed: its logs are scanned at the next start."""
    if node.failure is not None:
        sys.stderr.write(f"ottla: {node.failure}\n")
        return 1
    try:
        await node.stop()
    except (OSError, ApiError) as error:
        sys.stderr.write(
            f"ottla: the node could not stop cleanly, so its logs will be scanned at the next start: {explain(error)}\n"
        )
        return 1
    return 0


def explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (98, 48):
        return f"the port is already in use ({error.strerror or error}); choose another with --port or in listeners"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m ottla.broker.main FILE.properties\n")
        return 1
    try:
        properties = read_properties(RealDisk(), sys.argv[1])
    except ConfigError as error:
        sys.stderr.write(f"ottla: {error}\n")
        return 1
    return run_loop(serve(properties, say_ready))


def say_ready(node: Node) -> None:
    """Where clients find it, or, of a node that is a controller only, where brokers do."""
    serves_clients = "broker" in node.config.roles
    endpoint = (node.advertised if serves_clients else node.controller_bound)[0]
    sys.stdout.write(f"ready {'bootstrap' if serves_clients else 'controller'}={endpoint.host}:{endpoint.port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
