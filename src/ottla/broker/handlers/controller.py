"""What brokers ask of the active controller: BrokerRegistration 0-4, BrokerHeartbeat 0-2, AlterPartition 2-3,
AllocateProducerIds 0, AssignReplicasToDirs 0, ControllerRegistration 0."""

from __future__ import annotations

from ottla.broker.dispatch import handles
from ottla.broker.handlers.topics import forward

for _name in (
    "BrokerRegistration",
    "BrokerHeartbeat",
    "AlterPartition",
    "AllocateProducerIds",
    "AssignReplicasToDirs",
    "ControllerRegistration",
):
    handles(_name, roles=("controller",))(forward)
