"""`python -m bench.answering`: how long a client waits for a server that only answers, on this machine.

A bound for synchronous produce. The client of that benchmark asks a server that has no loop, no protocol and no log: it looks at its
socket without ever sleeping, works for so many microseconds, and answers. Above a few of them the client's core has gone to sleep
meanwhile, and waking it is waited for as well.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from bench.clients import percentile

WORK_US = (0, 5, 10, 15, 20, 30)
ROUNDS = 3
REQUESTS = 6_000
REQUEST, ANSWER = bytes(220), bytes(60)  # as large as a produce request of 100 B and what is answered to it


def serve(listener: socket.socket, work_us: float) -> None:
    """Until the client closes."""
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    room = bytearray(4096)
    while True:
        try:
            size = connection.recv_into(room)
        except BlockingIOError:
            continue
        if not size:
            return
        until = time.perf_counter() + work_us / 1e6
        while time.perf_counter() < until:
            pass
        connection.send(ANSWER)


def waited_us(work_us: float) -> float:
    """The median of what a client waits."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = os.fork()
        if not server:
            serve(listener, work_us)
            os._exit(0)
        with socket.create_connection(listener.getsockname()) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            waits = []
            for _ in range(REQUESTS):
                asked = time.perf_counter()
                client.sendall(REQUEST)
                client.recv(len(ANSWER))
                waits.append((time.perf_counter() - asked) * 1e6)
        os.waitpid(server, 0)
    return percentile(waits, 0.5)


def main() -> int:
    rows: dict[int, list[float]] = {work: [] for work in WORK_US}
    for _ in range(ROUNDS):
        for work, found in rows.items():
            found.append(waited_us(work))
    table = Table("the server works for", "the client waits (p50)", title=f"medians of {ROUNDS} rounds on {os.cpu_count()} cores")
    for work, found in rows.items():
        table.add_row(f"{work} µs", f"{statistics.median(found):.1f} µs")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
