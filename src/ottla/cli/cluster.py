"""`ottla cluster`: brokers, the metadata quorum, features and disks."""

from __future__ import annotations

from typing import Any

import click

from ottla.cli.output import json_option, show, size_text, time_text
from ottla.cli.running import admin, bootstrap_option, run
from ottla.model.ids import uuid_text


@click.group()
def command() -> None:
    """Show brokers, the metadata quorum, features and disks."""


@command.command()
@json_option
@bootstrap_option
def describe(as_json: bool, bootstrap: str) -> None:
    """List the brokers, and which of them is the controller."""

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await client.describe_cluster(include_fenced=True)
            return [
                {
                    "broker": broker.id,
                    "address": f"{broker.host}:{broker.port}",
                    "rack": broker.rack,
                    "controller": broker.id == found.controller_id,
                    "fenced": broker.id in found.fenced,
                    "cluster_id": found.id,
                }
                for broker in found.brokers
            ]

    show(["broker", "address", "rack", "controller", "fenced"], run(work()), as_json)


@command.command()
@json_option
@bootstrap_option
def quorum(as_json: bool, bootstrap: str) -> None:
    """Show who keeps the metadata log, who leads, and how far each has come."""

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await client.describe_quorum()
            standing = [(replica, "leader" if replica.id == found.leader_id else "voter") for replica in found.voters]
            standing += [(replica, "observer") for replica in found.observers]
            return [
                {
                    "node": replica.id,
                    "role": role,
                    "directory_id": uuid_text(replica.directory_id),
                    "log_end_offset": replica.log_end_offset,
                    "lag": max(0, max(other.log_end_offset for other, _ in standing) - replica.log_end_offset),
                    "last_caught_up": time_text(replica.last_caught_up_timestamp or -1),
                    "leader_epoch": found.leader_epoch,
                    "high_watermark": found.high_watermark,
                }
                for replica, role in standing
            ]

    show(["node", "role", "log_end_offset", "lag", "last_caught_up", "leader_epoch", "high_watermark"], run(work()), as_json)


@command.command()
@json_option
@bootstrap_option
def features(as_json: bool, bootstrap: str) -> None:
    """Show the feature levels that the cluster runs at and could run at."""

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await client.describe_features()
            return [
                {
                    "feature": feature.name,
                    "finalized": feature.finalized_level,
                    "supported_min": feature.supported_min,
                    "supported_max": feature.supported_max,
                }
                for feature in found.features
            ]

    show(["feature", "finalized", "supported_min", "supported_max"], run(work()), as_json)


@command.command("log-dirs")
@click.option("--topic", "topics", multiple=True, help="Only this topic.")
@json_option
@bootstrap_option
def log_dirs(topics: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """Show where each broker keeps its replicas, and how large they are."""

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await client.describe_log_dirs()
            return [
                {
                    "broker": broker,
                    "directory": directory.path,
                    "topic": replica.partition.topic,
                    "partition": replica.partition.partition,
                    "bytes": replica.size,
                    "size": size_text(replica.size),
                    "lag": replica.offset_lag,
                }
                for broker, directories in sorted(found.items())
                for directory in directories
                for replica in sorted(directory.replicas, key=lambda replica: replica.partition)
                if not topics or replica.partition.topic in topics
            ]

    show(["broker", "topic", "partition", "size", "lag", "directory"], run(work()), as_json)
