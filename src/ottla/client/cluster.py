"""The cluster as one partner: who to ask, how to reach them, and when to ask again.

In: settings and a `World`. Out: open connections by broker id, leaders by partition, coordinators by key, and `persist`, the one
retry loop of all clients. Producer, consumer and admin share it.

Invariants
- At most one connection per (broker, purpose) and one metadata request under way; who needs the same waits for it.
- What an error teaches is applied before the next attempt: stale metadata is refreshed, a moved coordinator is looked up again.
- When no known broker answers, the bootstrap servers are asked again (KIP-899).
- A broker that is silent delays what any other could answer by `PATIENCE_MS`, not by a request's time-out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from ottla.client.connection import Connection, ConnectionOptions, connect
from ottla.client.errors import ClientClosed, NetworkError, NoBrokerAvailable, SettingError, UnknownPartition
from ottla.client.metadata import Broker, PartitionInfo, TopicInfo, View, code_of
from ottla.client.security import authenticator, tls_context
from ottla.client.settings import CommonSettings
from ottla.host import World
from ottla.host.clock import RealClock, RealRandomness
from ottla.host.disk import RealDisk
from ottla.host.network import RealNetwork
from ottla.host.workers import RealWorkers
from ottla.model.errors import ApiError, ErrorCode, OttlaError
from ottla.protocol.messages.coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.schema import Message

T = TypeVar("T")
GROUP = 0
TRANSACTION = 1
PATIENCE_MS = 500.0  # after so long without an answer another broker is asked as well
ADDED_PARTITION_MS = 1000.0  # how long a partition that nobody knows may still be one that was just added
BACKOFF_FACTOR = 2
BACKOFF_JITTER = 0.2
_COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


def real_world() -> World:
    return World(RealClock(), RealRandomness(), RealNetwork(unix_sockets=False), RealDisk(), RealWorkers())


def parse_servers(servers: str | Sequence[str]) -> list[tuple[str, int]]:
    """`host:port` of each bootstrap server; IPv6 addresses stand in brackets."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = []
    for text in filter(None, (text.strip() for text in texts)):
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or not 0 < int(port) < 65536 or not host:
            raise SettingError(f"bootstrap_servers must be host:port, not {text!r}")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise SettingError("bootstrap_servers must name at least one host:port")
    return addresses


class _Refresh:
    """One metadata request that is about to be sent; who comes in time rides along."""

    __slots__ = ("allow_create", "everything", "future", "names")

    def __init__(self, future: asyncio.Future[MetadataResponse]) -> None:
        self.names: set[str] = set()
        self.everything = False
        self.allow_create = False
        self.future = future


class Cluster:
    def __init__(self, settings: CommonSettings, world: World | None = None) -> None:
        self.settings = settings
        self.world = world or real_world()
        self.view = View()
        self.features: dict[str, int] = {}
        self._features_epoch = -2
        self._bootstrap = parse_servers(settings["bootstrap_servers"])
        self._options = ConnectionOptions(
            client_id=settings["client_id"],
            tls=tls_context(settings),
            authenticate=authenticator(settings, self.world),
            setup_timeout_ms=settings["socket_connection_setup_timeout_ms"],
            request_timeout_ms=settings["request_timeout_ms"],
        )
        self._connections: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._failures: dict[int, tuple[int, float]] = {}  # broker → (failures in a row, when it may be tried again)
        self._coordinators: dict[tuple[int, str], Broker] = {}
        self._refresh: _Refresh | None = None
        self._refresh_lock = asyncio.Lock()
        self._refreshed_ms = -float("inf")
        self._asked_last: tuple[str, int] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    # Life --------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach one bootstrap server. Raises `NoBrokerAvailable` at once if none answers."""
        await self.refresh(())

    async def close(self) -> None:
        self._closed = True
        for task in [*self._tasks, *self._opening.values()]:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)  # lets transports close before a loop that is about to end

    def now_ms(self) -> float:
        return self.world.clock.monotonic_ms()

    def spawn(self, work: Awaitable[Any], name: str) -> asyncio.Task[Any]:
        """A task that `close` cancels."""
        task = asyncio.ensure_future(work)
        if isinstance(task, asyncio.Task):
            task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Connections -------------------------------------------------------------------------------------------------------

    @staticmethod
    def throttle_ms(connection: Connection) -> float:
        """For how long a broker has asked to be left alone, because a quota is used up."""
        return max(0.0, connection.throttled_until - asyncio.get_running_loop().time()) * 1000

    def ready_connection(self, broker_id: int, purpose: str = "") -> Connection | None:
        """The open connection to a broker, if there is one now."""
        ready = self._connections.get((broker_id, purpose))
        return ready if ready is not None and ready.is_open else None

    async def connection(self, broker_id: int, purpose: str = "") -> Connection:
        """An open connection to a known broker. Purposes keep long polls from standing in the way of short requests."""
        key = (broker_id, purpose)
        ready = self._connections.get(key)
        if ready is not None and ready.is_open:
            return ready
        if self._closed:
            raise ClientClosed("the client is closed")
        broker = self.view.brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not in the cluster's metadata")
        return await self._open_once(key, broker)

    async def _open_once(self, key: tuple[int, str], broker: Broker) -> Connection:
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._open(key, broker), name=f"connect {broker}")
            task.add_done_callback(lambda done: (self._opening.pop(key, None), done.cancelled() or done.exception()))
        return await asyncio.shield(task)

    async def _open(self, key: tuple[int, str], broker: Broker) -> Connection:
        failures, not_before = self._failures.get(broker.id, (0, 0.0))
        if (wait := not_before - self.now_ms()) > 0:
            await asyncio.sleep(wait / 1000)
        try:
            connection = await connect(self.world.network, broker.host, broker.port, self._options)
        except OttlaError:
            delay = self._delay(failures, self.settings["reconnect_backoff_ms"], self.settings["reconnect_backoff_max_ms"])
            self._failures[broker.id] = (failures + 1, self.now_ms() + delay)
            raise
        self._failures.pop(broker.id, None)
        if self._closed:
            connection.close()
            raise ClientClosed("the client is closed")
        self._keep(key, connection)
        return connection

    def _keep(self, key: tuple[int, str], connection: Connection) -> None:
        self._connections[key] = connection
        connection.on_lost = lambda lost, _: self._drop(key, lost)
        if connection.features_epoch > self._features_epoch:
            self.features, self._features_epoch = connection.features, connection.features_epoch
        self._reap_later(key, connection, -1)

    def _drop(self, key: tuple[int, str], connection: Connection) -> None:
        if self._connections.get(key) is connection:
            del self._connections[key]

    def _reap_later(self, key: tuple[int, str], connection: Connection, seen: int) -> None:
        """Close a connection over which nothing was sent between two looks."""
        limit = self.settings["connections_max_idle_ms"]
        if not limit or not connection.is_open:
            return
        if connection.sent == seen and not connection.in_flight:
            connection.close()
            return
        asyncio.get_running_loop().call_later(limit / 1000, self._reap_later, key, connection, connection.sent)

    async def any_connection(self) -> Connection:
        """A connection to whoever can be reached first, in the order of `_whom_to_ask`."""
        causes: dict[str, OttlaError] = {}
        for broker in self._whom_to_ask():
            try:
                return await self._connection_to(broker)
            except OttlaError as error:
                self._check_open()
                causes[f"{broker.host}:{broker.port}"] = error
        raise _nobody(causes)

    def _whom_to_ask(self) -> list[Broker]:
        """Everyone that may answer a general question, the best first: those with an open connection, the least busy of them
        first; then other brokers we know; then the bootstrap servers. Whoever was asked last time comes after the other brokers:
        one that was cut off from its cluster answers, too, and would tell the same old news for ever."""
        brokers = self._shuffled(self.view.brokers.values())
        servers = self._shuffled(Broker(-2 - n, host, port) for n, (host, port) in enumerate(self._bootstrap))

        def rank(broker: Broker) -> tuple[bool, bool, int]:
            ready = self.ready_connection(broker.id)
            asked = (broker.host, broker.port) == self._asked_last
            return (asked, ready is None, ready.in_flight if ready is not None else 0)

        open_servers = [server for server in servers if self.ready_connection(server.id) is not None]
        return sorted(brokers + open_servers, key=rank) + [server for server in servers if server not in open_servers]

    async def _connection_to(self, broker: Broker) -> Connection:
        return await self.connection(broker.id) if broker.id >= 0 else await self._server(broker)

    async def _server(self, server: Broker) -> Connection:
        return self.ready_connection(server.id) or await self._open_once((server.id, ""), server)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")

    def _shuffled(self, items: Iterable[T]) -> list[T]:
        rest, out = list(items), []
        while rest:
            out.append(rest.pop(self.world.random.below(len(rest))))
        return out

    # Asking ------------------------------------------------------------------------------------------------------------

    async def ask(self, broker_id: int | None, request: Message, *, timeout_ms: float | None = None) -> Any:
        """One request, one attempt. `None` asks whoever is at hand."""
        connection = await (self.any_connection() if broker_id is None else self.connection(broker_id))
        if (wait_ms := self.throttle_ms(connection)) > 0:
            await asyncio.sleep(wait_ms / 1000)
        return await connection.request(request, timeout_ms=timeout_ms)

    async def ask_anyone(self, request: Message) -> Any:
        """A question that any broker can answer and that may be asked twice. Who is silent is not waited for: after a while
        the next is asked as well, and the first answer counts."""
        causes: dict[str, OttlaError] = {}
        brokers = iter(self._whom_to_ask())
        asking: dict[asyncio.Task[Any], Broker] = {}
        try:
            while True:
                broker = next(brokers, None)
                if broker is not None:
                    asking[asyncio.create_task(self._ask_one(broker, request), name=f"ask {broker}")] = broker
                elif not asking:
                    raise _nobody(causes)
                patience = None if broker is None else PATIENCE_MS / 1000
                done, _ = await asyncio.wait(asking, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answered = asking.pop(task)
                    error = ClientClosed("the client is closed") if task.cancelled() else task.exception()
                    if error is None:
                        self._asked_last = (answered.host, answered.port)
                        return task.result()
                    if not isinstance(error, OttlaError):
                        raise error
                    self._check_open()
                    causes[f"{answered.host}:{answered.port}"] = error
        finally:
            for task in asking:
                task.cancel()

    async def _ask_one(self, broker: Broker, request: Message) -> Any:
        return await (await self._connection_to(broker)).request(request)

    async def ask_controller(self, request: Message) -> Any:
        """One attempt at the active controller, or at a broker, which passes it on."""
        controller = self.view.controller_id
        return await self.ask(controller if controller in self.view.brokers else None, request)

    async def ask_coordinator(self, kind: int, key: str, request: Message) -> Any:
        connection = await self.connection(await self.coordinator(kind, key))
        return await connection.request(request)

    async def persist(
        self, attempt: Callable[[], Awaitable[T]], *, timeout_ms: float | None = None, topics: Collection[str] = ()
    ) -> T:
        """Try until it succeeds, fails for good, or the time is up; then the last error is raised. What an attempt takes from the
        view of a topic (who leads, its id) is looked up again between two attempts if that topic is among `topics`."""
        limit = self.settings["default_api_timeout_ms"] if timeout_ms is None else timeout_ms
        deadline = self.now_ms() + limit
        failures = 0
        while True:
            try:
                return await attempt()
            except (NetworkError, ApiError) as error:
                delay = self.backoff_ms(failures)
                failures += 1
                if not error.retriable or self.now_ms() + delay >= deadline:
                    if failures > 1:
                        error.add_note(f"gave up after {failures} attempts; the limit is {limit:g} ms")
                    raise
                await asyncio.sleep(delay / 1000)
                await self.learn(error, topics)

    def backoff_ms(self, failures: int) -> float:
        return self._delay(failures, self.settings["retry_backoff_ms"], self.settings["retry_backoff_max_ms"])

    def _delay(self, failures: int, first: float, most: float) -> float:
        grown = min(most, first * float(BACKOFF_FACTOR ** min(failures, 30)))
        return grown * self.world.random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)

    async def learn(self, error: OttlaError, topics: Collection[str] = ()) -> None:
        """Apply what an error says about our view of the cluster, and of these topics."""
        if isinstance(error, ApiError) and error.code in _COORDINATOR_MOVED:
            self._coordinators.clear()
        elif isinstance(error, NetworkError) or (
            isinstance(error, ApiError) and (error.code.stale_metadata or error.code == ErrorCode.NOT_CONTROLLER)
        ):
            self._coordinators.clear()
            try:
                await self.refresh(topics)
            except (NetworkError, ApiError):
                pass  # the attempt that follows says so itself

    # Metadata ----------------------------------------------------------------------------------------------------------

    async def refresh(self, names: Collection[str] | None = None, *, allow_create: bool = False) -> MetadataResponse:
        """Ask for brokers and these topics (None: all of them), and merge the answer into `view`."""
        refresh = self._refresh
        if refresh is None:
            refresh = self._refresh = _Refresh(asyncio.get_running_loop().create_future())
            self.spawn(self._run_refresh(refresh), "metadata")
        refresh.everything |= names is None
        refresh.names.update(names or ())
        refresh.allow_create |= allow_create
        return await asyncio.shield(refresh.future)

    async def _run_refresh(self, refresh: _Refresh) -> None:
        try:
            async with self._refresh_lock:
                self._refresh = None  # who comes now may not be in the request any more
                reply = await self.ask_anyone(self._metadata_request(refresh))
                if reply.error_code:
                    raise ApiError(code_of(reply.error_code))
                self.view.merge(reply)
                self._refreshed_ms = self.now_ms()
                refresh.future.set_result(reply)
        except BaseException as error:
            if self._refresh is refresh:
                self._refresh = None
            if not refresh.future.done():
                cancelled = isinstance(error, asyncio.CancelledError)
                refresh.future.set_exception(ClientClosed("the client is closed") if cancelled else error)
                refresh.future.exception()
            if not isinstance(error, OttlaError):
                raise

    @staticmethod
    def _metadata_request(refresh: _Refresh) -> MetadataRequest:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(refresh.names)]
        # Version 0 has no way to ask for no topic: there an empty list means all of them.
        return MetadataRequest(topics=None if refresh.everything else topics, allow_auto_topic_creation=refresh.allow_create)

    @property
    def metadata_age_ms(self) -> float:
        return self.now_ms() - self._refreshed_ms

    async def topic(self, name: str, *, allow_create: bool = False, timeout_ms: float | None = None) -> TopicInfo:
        """A topic's partitions, from the view or freshly asked. Waits for a topic that is just being made."""
        info = self.view.topics.get(name)
        if info is not None and info.is_known:
            return info

        async def look_up() -> TopicInfo:
            await self.refresh({name}, allow_create=allow_create)
            found = self.view.topics.get(name)
            if found is None or not found.is_known:
                raise _unknown(name, found)
            return found

        return await self.persist(look_up, timeout_ms=timeout_ms)

    def topic_ids(self, names: Collection[str]) -> dict[str, bytes] | None:
        """The ids of these topics, or None unless all are known: a request speaks of ids or of names, not of both."""
        found = {name: self.view.topics[name].id for name in names if name in self.view.topics}
        return found if len(found) == len(set(names)) and all(map(any, found.values())) else None

    async def partition(self, topic: str, partition: int) -> PartitionInfo:
        """A broker that lags behind does not know of a partition that was just added: so it is asked for more than once."""
        info = (await self.topic(topic)).partition(partition)
        if info is not None:
            return info

        async def look_up() -> PartitionInfo:
            await self.refresh({topic})
            known = self.view.topics.get(topic)
            found = None if known is None else known.partition(partition)
            if found is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return found

        try:
            return await self.persist(look_up, timeout_ms=ADDED_PARTITION_MS if partition >= 0 else 0)
        except ApiError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        count = len(self.view.topics[topic].partitions) if topic in self.view.topics else 0
        raise UnknownPartition(f"{topic} has {count} partitions (0 to {count - 1}); there is no partition {partition}")

    async def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition; raises the retriable LEADER_NOT_AVAILABLE while there is none, or none with an address: a
        broker that lags behind may leave out the one of which a newer one has told."""
        info = await self.partition(topic, partition)
        if info.leader < 0 or info.leader not in self.view.brokers:
            await self.refresh({topic})
            info = await self.partition(topic, partition)
        if info.leader < 0 or info.leader not in self.view.brokers:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader now")
        return info.leader

    async def unknown_topics(self, names: Collection[str]) -> dict[str, ApiError]:
        """Those of the topics that the brokers do not know, and what they say of each. One attempt."""
        strangers = self._strangers(names)
        if strangers:
            await self.refresh(strangers)
        return {name: _unknown(name, self.view.topics.get(name)) for name in self._strangers(strangers)}

    def _strangers(self, names: Collection[str]) -> list[str]:
        topics = self.view.topics
        return [name for name in names if name not in topics or not topics[name].is_known]

    async def leaders(self, partitions: Iterable[tuple[str, int]]) -> dict[int, list[tuple[str, int]]]:
        """Partitions by the broker that leads them."""
        by_leader: dict[int, list[tuple[str, int]]] = {}
        for topic, partition in partitions:
            by_leader.setdefault(await self.leader(topic, partition), []).append((topic, partition))
        return by_leader

    # Coordinators ------------------------------------------------------------------------------------------------------

    async def coordinator(self, kind: int, key: str) -> int:
        """The broker that answers for a group or a transactional id; looked up once and remembered until it moves."""
        known = self._coordinators.get((kind, key))
        if known is None:
            known = self._coordinators[kind, key] = await self._find_coordinator(kind, key)
        self.view.brokers.setdefault(known.id, known)
        return known.id

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def _find_coordinator(self, kind: int, key: str) -> Broker:
        reply: FindCoordinatorResponse = await self.ask_anyone(
            FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        )
        row = reply.coordinators[0] if reply.coordinators else reply
        if row.error_code:
            raise ApiError(code_of(row.error_code), row.error_message)
        return Broker(row.node_id, row.host, row.port)


def _nobody(causes: dict[str, OttlaError]) -> OttlaError:
    if len(causes) == 1:
        return next(iter(causes.values()))
    return NoBrokerAvailable("no broker can be reached: " + "; ".join(str(cause) for cause in causes.values()), causes)


def _unknown(name: str, info: TopicInfo | None) -> ApiError:
    code = info.error if info is not None and info.error else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ApiError(code, topic_message(name, info))


def topic_message(name: str, info: TopicInfo | None) -> str | None:
    if info is None or info.error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return f"topic {name} does not exist, and the broker did not create it; create it first"
    return f"topic {name}: {info.error.meaning}"
