"""A broker's standing with the controller: registered, heard of, unfenced; and, at the end, in controlled shutdown.

Heartbeats say how far the broker has read the metadata. The controller fences a broker it has not heard of; the broker itself
goes on serving what it has, because a client with an old leader learns of the new one from the epoch.

A broker in controlled shutdown may go when all others have read that its leaderships are theirs. They say so with their heartbeats;
so each sends one at once when it reads that somebody wants to go, where Kafka's brokers would wait for the next one, up to two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from ottla.broker.config import security_protocol
from ottla.metadata.features import SUPPORTED_LEVELS
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.controller import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node

log = logging.getLogger("ottla.lifecycle")
PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = range(4)
_PROTOCOLS = {"PLAINTEXT": PLAINTEXT, "SSL": SSL, "SASL_PLAINTEXT": SASL_PLAINTEXT, "SASL_SSL": SASL_SSL}
CONTROLLED_SHUTDOWN_MS = 5_000
LOOK_AROUND_MS = 200
RETRY_MS = 50
CONTROLLER_RETRY_MS = 1_000


class Lifecycle:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._incarnation = node.world.random.bytes(16)
        self._beating: asyncio.Task[None] | None = None
        self._registering: asyncio.Task[None] | None = None
        self._shutting_down = False
        self._may_stop = asyncio.Event()
        self._due = asyncio.Event()  # a heartbeat, before its time
        self.broker_epoch = -1
        self.unfenced = asyncio.Event()

    async def register(self) -> None:
        """Returns once this life of the broker is in the image, and with it the end of the life before."""
        if "broker" in self._node.config.roles:
            await self._register()
            await self._node.quorum.until_applied(self.broker_epoch)

    async def start(self) -> None:
        if "controller" in self._node.config.roles:
            self._registering = asyncio.get_running_loop().create_task(self._register_controller())
        if "broker" not in self._node.config.roles:
            return
        self._beating = asyncio.get_running_loop().create_task(self._beat())
        await self.unfenced.wait()

    async def stop(self) -> None:
        if self._registering is not None:
            self._registering.cancel()
        if self._beating is None:
            return
        if self._node.settings["controlled.shutdown.enable"] and len(self._node.image.brokers) > 1:
            self._shutting_down = True
            self.beat_now()
            await self._hand_over()
        self._beating.cancel()

    def follow(self, image: ClusterImage) -> None:
        if any(broker.in_controlled_shutdown and not broker.fenced for broker in image.brokers.values()):
            self.beat_now()

    def beat_now(self) -> None:
        self._due.set()

    async def _hand_over(self) -> None:
        """Wait until the controller has given our leaderships to others. When all nodes stop together, the last has nobody left
        who could decide that."""
        deadline = self._node.world.clock.monotonic_ms() + CONTROLLED_SHUTDOWN_MS
        while self._node.world.clock.monotonic_ms() < deadline:
            try:
                await asyncio.wait_for(self._may_stop.wait(), LOOK_AROUND_MS / 1000)
                return
            except TimeoutError:
                if await self._node.quorum.is_lost():
                    log.info("nobody is left to hand leaderships to node=%d", self._node.node_id)
                    return
        log.warning("controlled shutdown took too long node=%d", self._node.node_id)

    async def _register_controller(self) -> None:
        """Tell the cluster where this controller is and what it supports (KIP-919): tools ask, and levels rise only for all."""
        node = self._node
        request = ControllerRegistrationRequest(
            controller_id=node.node_id,
            incarnation_id=self._incarnation,
            listeners=[
                ControllerRegistrationRequest.Listener(
                    name=e.name, host=e.host or "localhost", port=e.port, security_protocol=self._protocol(e.name)
                )
                for e in node.controller_bound
            ],
            features=[
                ControllerRegistrationRequest.Feature(
                    name=name, min_supported_version=levels.lowest, max_supported_version=levels.highest
                )
                for name, levels in SUPPORTED_LEVELS.items()
            ],
        )
        while True:
            try:
                response = await node.quorum.ask(request)
                if not response.error_code:
                    return
                log.info("controller not registered node=%d error=%s", node.node_id, ErrorCode(response.error_code).name)
            except ApiError as error:
                log.info("controller not registered node=%d error=%s", node.node_id, error)
            await asyncio.sleep(CONTROLLER_RETRY_MS / 1000)

    async def _register(self) -> None:
        deadline = self._node.world.clock.monotonic_ms() + self._node.settings["initial.broker.registration.timeout.ms"]
        while True:
            try:
                response = await self._node.quorum.ask(self._registration())
                if not response.error_code:
                    self.broker_epoch = self._node.directory.broker_epoch = response.broker_epoch
                    return
                error = ApiError(ErrorCode(response.error_code))
            except ApiError as refused:
                error = refused
            self._check_features(error)
            if self._node.world.clock.monotonic_ms() > deadline or error.code == ErrorCode.INCONSISTENT_CLUSTER_ID:
                raise error
            await asyncio.sleep(RETRY_MS / 1000)

    def _check_features(self, error: ApiError) -> None:
        """A cluster that has what this build does not serve will go on having it."""
        levels = self._node.image.features
        foreign = sorted(f"{name}={level}" for name, level in levels.items() if name not in SUPPORTED_LEVELS)
        if error.code == ErrorCode.UNSUPPORTED_VERSION and foreign:
            raise ApiError(error.code, f"this cluster has {', '.join(foreign)}, which is not served: set its level to 0 first")

    def _registration(self) -> BrokerRegistrationRequest:
        node = self._node
        return BrokerRegistrationRequest(
            broker_id=node.node_id,
            cluster_id=node.cluster_id,
            incarnation_id=self._incarnation,
            listeners=[
                BrokerRegistrationRequest.Listener(
                    name=e.name, host=e.host, port=e.port, security_protocol=self._protocol(e.name)
                )
                for e in node.advertised
            ],
            features=[
                BrokerRegistrationRequest.Feature(
                    name=name, min_supported_version=levels.lowest, max_supported_version=levels.highest
                )
                for name, levels in SUPPORTED_LEVELS.items()
            ],
            rack=node.config.rack,
            log_dirs=[node.directory.directory_id],
            # Known only after a clean stop: whoever was killed may have lost what was not synced, and says so (KIP-966).
            previous_broker_epoch=node.directory.broker_epoch,
        )

    def _protocol(self, listener: str) -> int:
        return _PROTOCOLS.get(security_protocol(self._node.settings, listener) or listener, PLAINTEXT)

    async def _beat(self) -> None:
        interval_ms = self._node.settings["broker.heartbeat.interval.ms"]
        while True:
            self._due.clear()
            try:
                response = await self._node.quorum.ask(
                    BrokerHeartbeatRequest(
                        broker_id=self._node.node_id,
                        broker_epoch=self.broker_epoch,
                        current_metadata_offset=self._node.image.offset,
                        want_fence=self._wants_fence(),
                        want_shut_down=self._shutting_down,
                    )
                )
                await self._heard(response)
            except ApiError as error:
                log.info("heartbeat refused node=%d error=%s", self._node.node_id, error)
            soon = self._shutting_down or not self.unfenced.is_set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), (RETRY_MS if soon else interval_ms) / 1000)

    def _wants_fence(self) -> bool:
        """Whoever cannot write should lead nothing, if there is somebody else. Whoever shuts down hands over in that way."""
        node = self._node
        others = any(broker.is_active for broker in node.image.brokers.values() if broker.broker_id != node.node_id)
        return node.disk_watch.refuses and others and not self._shutting_down

    async def _heard(self, response: BrokerHeartbeatResponse) -> None:
        if response.error_code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            log.warning("registered again node=%d", self._node.node_id)
            await self._register()
        elif not response.error_code and not response.is_fenced:
            self.unfenced.set()
        if response.should_shut_down:
            self._may_stop.set()
