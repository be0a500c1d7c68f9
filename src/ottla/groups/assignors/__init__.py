"""The assignors that the coordinator runs for consumer groups: from members and topics to a target assignment.

An assignor is a pure function of a `GroupSpec`. It may give a member only partitions of topics that the member is subscribed
to, and every partition of a subscribed topic to exactly one member.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.groups.assignors.range import assign_ranges
from ottla.groups.assignors.spec import GroupSpec
from ottla.groups.assignors.uniform import assign_uniformly

ASSIGNORS: dict[str, Callable[[GroupSpec], dict[str, dict[bytes, set[int]]]]] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
}
