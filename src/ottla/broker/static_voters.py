"""The voters as `controller.quorum.voters` names them. Two nodes that disagree on who votes can elect two leaders, so a node that was
told otherwise than others does not start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.broker.config import NodeConfig
from ottla.model.errors import ApiError, ErrorCode
from ottla.raft.voters import Address, VoterSet


def initial_voters(config: NodeConfig, own: Address) -> VoterSet:
    """Alone unless told otherwise: a node without voters and without a quorum to ask is its own quorum."""
    if config.voters or config.bootstrap_servers:
        return VoterSet.static(config.voters)
    return VoterSet.static([(config.node_id, *own)])


def check_remembered(config: NodeConfig, remembered: Sequence[int]) -> None:
    """Static voters are for ever (KIP-595): with others a majority could be found that knows nothing of what was decided."""
    configured = _configured(config)
    if "controller" in config.roles and remembered and configured and remembered != configured:
        raise ApiError(
            ErrorCode.INCONSISTENT_VOTER_SET,
            f"controller.quorum.voters names {configured}, but node {config.node_id} has voted among {remembered} "
            f"({config.metadata_directory}); voters cannot be changed by changing the file",
        )


def check_current(config: NodeConfig, voters: Iterable[int]) -> None:
    """`voters` are those whom the leader names."""
    configured = _configured(config)
    if configured and configured != sorted(voters):
        raise ApiError(
            ErrorCode.INCONSISTENT_VOTER_SET,
            f"controller.quorum.voters of node {config.node_id} names {configured}, and those who vote are {sorted(voters)}",
        )


def _configured(config: NodeConfig) -> list[int]:
    return sorted(voter for voter, _, _ in config.voters)
