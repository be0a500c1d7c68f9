"""The network's twin: bytes in order, in pieces, late or not at all; and what each end hears when something breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.host import World
from ottla.host.network import NameNotFound
from tests.simulation.network import Link
from tests.simulation.simulation import Simulation


class Recorder(asyncio.Protocol):
    """Remembers everything; echoes if told to."""

    def __init__(self, echo: bool = False) -> None:
        self.received = bytearray()
        self.pieces = 0
        self.lost: list[Exception | None] = []
        self.paused = 0
        self.echo = echo
        self.transport: Any = None
        self.gone = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces += 1
        self.news.set()
        if self.echo:
            self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)
        if not self.gone.done():
            self.gone.set_result(None)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.paused -= 1


class Pair:
    """A server on node `s` and a client on node `c`, connected."""

    def __init__(self, seed: int = 1, echo: bool = False) -> None:
        self.simulation = Simulation(seed)
        self.server_node, self.client_node = self.simulation.node("s"), self.simulation.node("c")
        self.accepted: list[Recorder] = []
        self.clients: list[Recorder] = []
        self._echo = echo

    async def connect(self) -> tuple[Recorder, Recorder]:
        ready = self.simulation.loop.create_future()

        def accept() -> Recorder:
            self.accepted.append(Recorder(self._echo))
            return self.accepted[-1]

        async def serve(world: World) -> None:
            listener = await world.network.listen("0.0.0.0", 9092, accept)
            assert listener.port == 9092
            await self.simulation.loop.create_future()

        def dial() -> Recorder:
            self.clients.append(Recorder())
            return self.clients[-1]

        async def call(world: World) -> None:
            await asyncio.sleep(0.1)
            await world.network.connect("s", 9092, dial)
            ready.set_result(None)
            await self.simulation.loop.create_future()

        self.server_node.start(serve)
        self.client_node.start(call)
        await ready
        await asyncio.sleep(0.1)
        return self.clients[0], self.accepted[0]


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_and_in_pieces(seed: int) -> None:
    pair = Pair(seed, echo=True)
    message = bytes(range(256)) * 2000

    async def main() -> None:
        client, server = await pair.connect()
        for start in range(0, len(message), 10_000):
            client.transport.write(message[start : start + 10_000])
        await asyncio.sleep(60)
        assert server.received == message
        assert client.received == message
        assert server.pieces > 10
        assert client.transport.get_extra_info("peername")[0] == "s"
        client.transport.close()
        await asyncio.sleep(1)
        assert client.lost == server.lost == [None]
        assert pair.simulation.internet.connections() == []

    with pair.simulation as simulation:
        simulation.run(main())


def test_a_cut_in_mid_frame_delivers_a_prefix_and_tells_both_ends() -> None:
    lengths = set()
    for seed in range(20):
        pair = Pair(seed)

        async def main(pair: Pair = pair) -> None:
            client, server = await pair.connect()
            pair.simulation.internet.set_link("c", "s", Link(0.001, 0.001, 1e6))
            client.transport.write(b"x" * 300_000)
            await asyncio.sleep(0.15)
            pair.simulation.internet.connections()[0].cut()
            await asyncio.sleep(5)
            lengths.add(len(server.received))
            assert isinstance(client.lost[0], ConnectionResetError)
            assert isinstance(server.lost[0], ConnectionResetError)
            client.transport.write(b"ignored")
            assert pair.simulation.internet.connections() == []

        with pair.simulation as simulation:
            simulation.run(main())
    assert len(lengths) > 5
    assert min(lengths) < 300_000


def test_bytes_wait_behind_a_wall_one_way_and_arrive_when_it_falls() -> None:
    pair = Pair()

    async def main() -> None:
        client, server = await pair.connect()
        internet = pair.simulation.internet
        internet.build_wall("c", "s")
        client.transport.write(b"to server")
        server.transport.write(b"to client")
        await asyncio.sleep(60)
        assert (client.received, server.received) == (b"to client", b"")
        internet.tear_down_walls()
        await asyncio.sleep(1)
        assert server.received == b"to server"

    with pair.simulation as simulation:
        simulation.run(main())


def test_connecting_through_a_wall_times_out_and_to_nobody_is_refused() -> None:
    with Simulation(1) as simulation:
        node = simulation.node("c")
        simulation.node("s")
        simulation.internet.build_wall("s", "c")

        async def call(world: World) -> None:
            with pytest.raises(TimeoutError):
                await world.network.connect("s", 1, Recorder)
            with pytest.raises(ConnectionRefusedError):
                await world.network.connect("localhost", 1, Recorder)
            with pytest.raises(NameNotFound):
                await world.network.connect("elsewhere", 1, Recorder)
            listener = await world.network.listen("", 0, Recorder)
            with pytest.raises(OSError, match="in use"):
                await world.network.listen("", listener.port, Recorder)
            await world.network.connect("127.0.0.1", listener.port, Recorder)
            await listener.close()
            with pytest.raises(ConnectionRefusedError):
                await world.network.connect("localhost", listener.port, Recorder)

        async def main() -> None:
            await node.start(call)

        simulation.run(main())


def test_a_writer_is_told_to_pause_while_its_reader_does_not_read() -> None:
    pair = Pair()

    async def main() -> None:
        client, server = await pair.connect()
        server.transport.pause_reading()
        client.transport.write(b"x" * 200_000)
        await asyncio.sleep(10)
        assert client.paused == 1
        assert server.received == b""
        server.transport.resume_reading()
        await asyncio.sleep(10)
        assert client.paused == 0
        assert len(server.received) == 200_000

    with pair.simulation as simulation:
        simulation.run(main())


def test_a_killed_node_resets_its_connections_and_one_without_power_says_nothing() -> None:
    for quiet in (False, True):
        pair = Pair()

        async def main(pair: Pair = pair, quiet: bool = quiet) -> None:
            client, _ = await pair.connect()
            if quiet:
                pair.server_node.cut_power()
            else:
                pair.server_node.kill()
            client.transport.write(b"anybody?")
            await asyncio.sleep(100)
            assert len(client.lost) == (0 if quiet else 1)

            async def back(world: World) -> None:
                await asyncio.sleep(100)

            pair.server_node.start(back)
            await asyncio.sleep(1)
            assert isinstance(client.lost[0], ConnectionResetError)

        with pair.simulation as simulation:
            simulation.run(main())


def test_a_paused_node_reads_everything_later() -> None:
    pair = Pair(echo=True)

    async def main() -> None:
        client, _ = await pair.connect()
        pair.server_node.pause()
        client.transport.write(b"hello")
        await asyncio.sleep(30)
        assert client.received == b""
        pair.server_node.resume()
        await asyncio.sleep(1)
        assert client.received == b"hello"

    with pair.simulation as simulation:
        simulation.run(main())
