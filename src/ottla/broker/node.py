"""A node: wiring, and the questions that handlers ask of it.

Start: take the data folder, join the metadata quorum, register as a broker, open the logs, let clients in. Stop: the same
backwards, and the logs are closed so that the next start need not scan them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from ottla.broker import handlers
from ottla.broker.assignments import Assignments
from ottla.broker.config import Endpoint, NodeConfig, Settings
from ottla.broker.coordinators import Coordinators
from ottla.broker.disk_watch import DiskWatch
from ottla.broker.dispatch import Dispatcher
from ottla.broker.doubts import Doubts
from ottla.broker.fetchers import Fetchers
from ottla.broker.group_coordinators import GroupKind
from ottla.broker.housekeeping import Housekeeping
from ottla.broker.lifecycle import Lifecycle
from ottla.broker.quorum import Quorum
from ottla.broker.replicas import Replicas
from ottla.broker.server import Server
from ottla.broker.sessions import FetchSessions
from ottla.broker.transaction_coordinators import TransactionKind
from ottla.host import World
from ottla.host.attention import Attention
from ottla.host.network import Listener
from ottla.metadata.delta import Changes, difference
from ottla.metadata.image import BROKER, ClusterImage, Partition
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.storage.directory import LogDirectory

log = logging.getLogger("ottla.node")
CREATE_TIMEOUT_MS = 30_000
DRAIN_LOOK_MS = 10
DRAIN_MS = 500  # how long a stopping node waits for replies on their way


class Node:
    def __init__(self, world: World, config: NodeConfig) -> None:
        handlers.load()
        self.world = world
        self.config = config
        self.node_id = config.node_id
        self.settings: Settings = config.settings
        self.directory = LogDirectory.open(world.disk, config.directory, config.node_id)
        self.cluster_id = self.directory.cluster_id
        self.image = ClusterImage()
        self.server = Server(self.settings, config.listeners_of_nodes)
        self.fetch_sessions = FetchSessions()
        self.doubts = Doubts(self)
        self.fetchers = Fetchers(self)
        self.assignments = Assignments(self)
        self.replicas = Replicas(self)
        self.groups = GroupKind(self)
        self.transactions = TransactionKind(self)
        self.coordinators = Coordinators(self, self.groups, self.transactions)
        self.quorum = Quorum(self)
        self.lifecycle = Lifecycle(self)
        self.disk_watch = DiskWatch(self)
        self.housekeeping = Housekeeping(self)
        self.bound: tuple[Endpoint, ...] = ()
        self.controller_bound: tuple[Endpoint, ...] = ()
        self._listeners: list[Listener] = []
        self._loaded = False  # the logs are open, and follow the image from here on
        self.follower_attention: Attention | None = None  # to followers that are copying, for whom a producer waits
        self.failure: str | None = None
        self.on_failure: Callable[[], None] = lambda: None  # called once, when the node cannot go on
        self._starting: asyncio.Task[None] | None = None
        self._refusal: BaseException | None = None  # why it did not start

    # Life ----------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        now_ms = self.world.clock.wall_ms()
        starting = self._starting = asyncio.current_task()
        try:
            await self._listen_for_controllers()
            await self.quorum.start()
            await self._bind_for_clients()
            await self.lifecycle.register()
            self._load(now_ms)
            await self._accept_clients()
            await self.lifecycle.start()
            self.housekeeping.start()
        except BaseException as error:
            self._starting = None
            refused = self._refusal if isinstance(error, asyncio.CancelledError) else None
            self._refusal = refused or error
            await self.stop()
            if refused is None or starting is None:
                raise
            starting.uncancel()
            raise refused from None
        self._starting = None
        log.info("started node=%d cluster=%s listeners=%s", self.node_id, self.cluster_id, self.bound)

    def _load(self, now_ms: int) -> None:
        """Open the logs and take the roles that the image gives this broker, and not before its own registration is in it.

        The image from before may still call it the leader, or in sync: a machine that lost power has lost what it acknowledged,
        and must not lead with what is left. Registering takes it out of both, and only then it may copy from others.
        """
        self.directory.load(self.replicas.config_of, now_ms)
        self.replicas.load(self.image)
        self.groups.view.load(self.image)
        self.coordinators.start()
        self._loaded = True

    async def _listen_for_controllers(self) -> None:
        bound = []
        for endpoint in self.config.controller_listeners:
            listener = await self._listen(endpoint, "controller")
            bound.append(endpoint._replace(port=listener.port))
        self.controller_bound = tuple(bound)

    async def _bind_for_clients(self) -> None:
        """The registration names the ports. Clients stay out until there is something to serve: what a node knows before could
        only mislead them."""
        bound = []
        for endpoint in self.config.listeners:
            listener = await self._listen(endpoint, "broker", accepting=False)
            bound.append(endpoint._replace(port=listener.port))
        self.bound = tuple(bound)

    async def _accept_clients(self) -> None:
        """Before the controller lifts the fence: whoever is told of this broker must not be refused."""
        for listener in self._listeners:
            await listener.accept()

    async def _listen(self, endpoint: Endpoint, role: str, *, accepting: bool = True) -> Listener:
        factory = self.server.factory(endpoint.name, Dispatcher(self, role))
        listener = await self.world.network.listen(endpoint.host, endpoint.port, factory, accepting=accepting)
        self._listeners.append(listener)
        return listener

    async def stop(self) -> None:
        """In order: hand leaderships on, take no more requests, answer those taken, close the logs."""
        await self.lifecycle.stop()
        for listener in self._listeners:
            await listener.close()
        self.coordinators.stop()
        self.assignments.stop()
        self.disk_watch.stop()
        self.doubts.stop()
        await self._drain()
        self.server.close()
        self.transactions.close()
        self.housekeeping.stop()
        self.fetchers.stop()
        await self.quorum.stop()
        self.directory.close(self.world.clock.wall_ms())
        self.world.workers.close()
        log.info("stopped node=%d", self.node_id)

    def fail(self, reason: str) -> None:
        """Something happened after which the node can promise nothing more: whoever runs it must end it, as a crash would."""
        if self._starting is not None:
            self.disk_refuses("node fails", ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason))
            return
        log.critical("node fails node=%d reason=%s", self.node_id, reason)
        if self.failure is None:
            self.failure = reason
            self.on_failure()

    def disk_refuses(self, what: str, error: Exception) -> None:
        """A write failed, for want of space perhaps. A node that serves waits until it succeeds, and others lead meanwhile. One that
        is starting gives up and says why, wherever in its start it stands: what it waits for would never come, and nobody would learn
        of the reason."""
        if self._refusal is not None:
            return  # the start has failed, and that is what will be said
        if self._starting is None:
            log.error("%s node=%d error=%s", what, self.node_id, error)
            self.disk_watch.refused(error)
        else:
            self._refusal = error
            self._starting.cancel()

    async def _drain(self) -> None:
        """Long polls would go on for as long as they like: those are cut."""
        deadline = self.world.clock.monotonic_ms() + DRAIN_MS
        for replica in self.replicas:
            replica.watchers.wake()
        while not all(connection.is_idle for connection in self.server.connections):
            if self.world.clock.monotonic_ms() > deadline:
                return
            await asyncio.sleep(DRAIN_LOOK_MS / 1000)

    # Following the metadata ----------------------------------------------------------------------------------------------

    def publish(self, image: ClusterImage, changes: Changes) -> None:
        """A new image is committed: everything that depends on it follows, in the order of dependence."""
        self.image = image
        if any(kind == BROKER for kind, _ in changes.configs):
            self.settings.change(image.configs.get((BROKER, ""), {}), image.configs.get((BROKER, str(self.node_id)), {}))
        if self._loaded:
            self.replicas.follow(image, changes)
            self.groups.follow(image, changes)
            self.coordinators.follow(image, changes)
        self.lifecycle.follow(image)
        self.doubts.follow(image, changes)

    def publish_whole(self, before: ClusterImage, image: ClusterImage) -> None:
        """A snapshot replaced the image: whatever differs has changed."""
        self.publish(image, difference(before, image))

    async def auto_create(self, names: list[str]) -> dict[str, ErrorCode]:
        """Create topics with the defaults (internal ones with theirs); the errors of those that could not be."""
        request = CreateTopicsRequest(topics=[self._new_topic(name) for name in names], timeout_ms=CREATE_TIMEOUT_MS)
        try:
            response = await self.quorum.ask(request)
        except ApiError as error:
            return dict.fromkeys(names, error.code)
        failed = {topic.name: ErrorCode(topic.error_code) for topic in response.topics if topic.error_code}
        return {name: code for name, code in failed.items() if code != ErrorCode.TOPIC_ALREADY_EXISTS}

    def _new_topic(self, name: str) -> CreateTopicsRequest.CreatableTopic:
        topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        prefix = {OFFSETS_TOPIC: "offsets.topic", TRANSACTIONS_TOPIC: "transaction.state.log"}.get(name)
        if prefix is None:
            return topic
        brokers = sum(not broker.fenced for broker in self.image.brokers.values())
        topic.num_partitions = self.settings[f"{prefix}.num.partitions"]
        topic.replication_factor = min(self.settings[f"{prefix}.replication.factor"], brokers)
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(self.settings[f"{prefix}.segment.bytes"]),
            "compression.type": "producer",
        }
        if name == TRANSACTIONS_TOPIC:
            configs["min.insync.replicas"] = str(min(self.settings["transaction.state.log.min.isr"], topic.replication_factor))
            configs |= {"compression.type": "uncompressed", "unclean.leader.election.enable": "false"}
        topic.configs = [
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()
        ]
        return topic

    # Questions -----------------------------------------------------------------------------------------------------------

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.image.topics.get(topic_id)
        return None if topic is None else topic.name

    def partition_state(self, topic: str | None, partition: int) -> Partition | None:
        topic_id = self.image.topic_ids.get(topic or "")
        return None if topic_id is None else self.image.topics[topic_id].partitions.get(partition)

    def endpoints(self, listener: str, broker_ids: Iterable[int]) -> Iterator[tuple[int, Endpoint, str | None]]:
        """Where clients of `listener` reach these brokers; one that has no such listener, or is fenced, is left out."""
        for broker_id in sorted(broker_ids):
            broker = self.image.brokers.get(broker_id)
            found = None if broker is None or broker.fenced else broker.listener(listener)
            if broker is not None and found is not None:
                yield broker_id, Endpoint(found.name, found.host, found.port), broker.rack

    @property
    def advertised(self) -> tuple[Endpoint, ...]:
        """What clients are told: as configured, with the port that was really bound where it was left open."""
        ports = {endpoint.name: endpoint.port for endpoint in self.bound}
        return tuple(e._replace(port=e.port or ports.get(e.name, 0)) for e in self.config.advertised)
