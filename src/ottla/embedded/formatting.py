"""Preparing data folders: what `ottla storage format` does by hand, `ottla up` and embedded clusters do by themselves."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.config import parse_properties
from ottla.broker.main import real_world
from ottla.broker.snapshot_file import write_bootstrap
from ottla.host.disk import Disk, RealDisk
from ottla.metadata.features import BOOTSTRAP_LEVELS
from ottla.model.ids import random_uuid, uuid_text
from ottla.storage.directory import LogDirectory

META_PROPERTIES = "meta.properties"


def new_id() -> str:
    """As `ottla storage random-uuid` prints it."""
    return uuid_text(random_uuid(real_world().random.bytes))


def is_formatted(directory: str, disk: Disk | None = None) -> bool:
    return (disk or RealDisk()).exists(f"{directory}/{META_PROPERTIES}")


def nodes_in(directory: str) -> int:
    """How many nodes' folders are in a directory: as many as vote in the cluster that was made there."""
    disk = RealDisk()
    names = disk.list(directory) if disk.exists(directory) else []
    return sum(name.startswith("node-") and is_formatted(f"{directory}/{name}", disk) for name in names)


def format_node(directory: str, cluster_id: str, node_id: int, levels: Mapping[str, int] = BOOTSTRAP_LEVELS) -> None:
    """Make the folder a node's own, unless it is already. `levels`: the features that a new cluster starts with."""
    disk = RealDisk()
    if not is_formatted(directory, disk):
        disk.make_directory(directory)
        world = real_world()
        write_bootstrap(disk, directory, levels, world.clock.wall_ms())
        LogDirectory.format(disk, directory, cluster_id, node_id, random_uuid(world.random.bytes))


def cluster_id_in(directory: str) -> str | None:
    """The cluster that the `node-K` folders in a directory belong to; None when there are none yet."""
    disk = RealDisk()
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if name.startswith("node-") and is_formatted(path, disk):
            found = parse_properties(disk.read_all(f"{path}/{META_PROPERTIES}").decode("utf-8", "replace")).get("cluster.id")
            if found:
                return found
    return None
