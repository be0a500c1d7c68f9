"""`Admin`: one typed method per question about a cluster, its topics, groups, transactions and disks.

    async with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
        await admin.create_topic("orders", partitions=3)
        print(await admin.describe_topic("orders"))

Methods that ask several things at once return a dictionary when all succeed. When the only one fails, its `ApiError` is
raised; when some of several fail, `PartialFailure` carries both the errors and the results.
"""

from __future__ import annotations

from typing import Unpack

from ottla.client.admin.cluster import ClusterAdmin
from ottla.client.admin.configs import ConfigsAdmin
from ottla.client.admin.groups import GroupsAdmin
from ottla.client.admin.security import *  # noqa: F403
from ottla.client.admin.security import SecurityAdmin
from ottla.client.admin.topics import TopicsAdmin
from ottla.client.admin.transactions import TransactionsAdmin
from ottla.client.admin.types import *  # noqa: F403
from ottla.client.cluster import Cluster
from ottla.client.settings import AdminSettings, resolve
from ottla.host import World


class Admin(TopicsAdmin, ConfigsAdmin, GroupsAdmin, TransactionsAdmin, ClusterAdmin, SecurityAdmin):
    def __init__(self, *, world: World | None = None, **settings: Unpack[AdminSettings]) -> None:
        self._cluster = Cluster(resolve(AdminSettings, settings), world)
