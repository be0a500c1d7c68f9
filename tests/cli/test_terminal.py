"""What a terminal changes: colour, tables and moving bars there; the same facts as plain text in a pipe; Ctrl-C is clean."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from ottla.cli.main import COMMANDS, root
from ottla.embedded.cluster import EmbeddedCluster
from tests.cli.processes import LIMIT_S, environment, here

ESCAPE = b"\x1b["
LISTINGS = {"list", "describe", "offsets", "quorum", "features", "log-dirs", "dump", "brokers", "find-hanging"}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with EmbeddedCluster(1) as cluster:
        assert here("topics", "create", "orders", "--partitions", "3", bootstrap=cluster.bootstrap).returncode == 0
        yield cluster.bootstrap


def on_a_terminal(*arguments: str, bootstrap: str | None = None) -> tuple[int, bytes]:
    """Its exit code, and everything that it wrote to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(bootstrap) | {"TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := read(ours):
            written += chunk
        return process.wait(LIMIT_S), written
    finally:
        os.close(ours)
        process.kill()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError as error:
        if error.errno == errno.EIO:  # how Linux says that nobody holds the other end any more
            return b""
        raise


def test_a_table_has_colour_on_a_terminal_and_none_in_a_pipe(bootstrap: str) -> None:
    code, shown = on_a_terminal("topics", "describe", "orders", bootstrap=bootstrap)
    assert code == 0
    assert ESCAPE in shown
    assert "─".encode() in shown
    piped = here("topics", "describe", "orders", bootstrap=bootstrap).stdout
    assert "\x1b" not in piped
    assert "─" not in piped
    assert "LEADER" in piped


def test_long_work_has_a_moving_bar_on_a_terminal_only(bootstrap: str) -> None:
    code, shown = on_a_terminal("perf", "produce", "orders", "--records", "2000", "--throughput", "4000", bootstrap=bootstrap)
    assert code == 0, shown
    assert b"producing to orders" in shown
    assert b"2,000 records in" in shown
    piped = here("perf", "produce", "orders", "--records", "100", bootstrap=bootstrap)
    assert "producing to" not in piped.stdout + piped.stderr


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from every_command(found, (*path, name))
        else:
            yield (*path, name), found


def test_every_listing_can_be_had_as_json() -> None:
    listings = {path: found for path, found in every_command(root) if path[-1] in LISTINGS}  # type: ignore[arg-type]
    assert len(listings) >= 15
    without = [path for path, found in listings.items() if not any("--json" in option.opts for option in found.params)]
    assert without == []


@pytest.mark.parametrize(
    "command",
    [
        "topics list",
        "topics describe orders",
        "offsets orders",
        "groups list",
        "configs describe topic orders",
        "transactions list",
        "cluster describe",
        "cluster quorum",
        "cluster features",
        "cluster log-dirs",
        "brokers",
        "partitions list",
        "demo --list",
    ],
)
def test_json_is_what_json_reads(bootstrap: str, command: str) -> None:
    done = here(*command.split(), "--json", bootstrap=bootstrap)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)


@pytest.mark.parametrize("command", ["perf produce orders --records 100000000", "consume orders --follow", "demo failover"])
def test_ctrl_c_ends_it_without_a_word_of_complaint(bootstrap: str, command: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "ottla", *command.split()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(bootstrap),
        # A shell that puts this suite into the background makes its children deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        if command.startswith("demo"):
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
        else:
            _wait_until_connected(process, bootstrap)
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode in (0, 130)
    assert b"Traceback" not in complaints
    assert b"never retrieved" not in complaints


def _wait_until_connected(process: subprocess.Popen[bytes], bootstrap: str) -> None:
    import psutil

    from tests.compatibility.wire import wait_until

    port = int(bootstrap.rpartition(":")[2])

    def is_connected() -> bool:
        return any(each.raddr and each.raddr.port == port for each in psutil.Process(process.pid).net_connections("tcp"))

    wait_until("its connection", is_connected, limit_s=LIMIT_S, alive=lambda: process.poll() is None)


def test_every_command_of_the_table_is_there() -> None:
    assert {path[0] for path, _ in every_command(root)} == set(COMMANDS)  # type: ignore[arg-type]
