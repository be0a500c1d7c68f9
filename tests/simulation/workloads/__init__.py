"""What the clients of a run do. Each workload has topics, machines and a judgement of its own; a seed draws which ones are mixed.

| file | who writes and reads |
|---|---|
| `plain.py` | idempotent acks=all producers as plain as can be, and readers; in every run |
| `retries.py` | the real producer with small buffers and short time-outs, the real consumer, a topic that grows |
| `groups.py` | members of a group, classic or KIP-848, that come, go and are killed; commits |
| `transactions.py` | producers that fence each other, read_committed consumers |
| `copies.py` | read, write, commit the positions in the same transaction |
| `compacted.py` | keys that are overwritten and deleted while the cleaner runs |
| `administration.py` | topics created, deleted and created again, replicas moved, leaders moved, settings changed |
"""

from __future__ import annotations

from tests.simulation.workloads.administration import Administration
from tests.simulation.workloads.compacted import Compacted
from tests.simulation.workloads.copies import Copies
from tests.simulation.workloads.groups import ClassicGroup, ConsumerGroup
from tests.simulation.workloads.plain import Plain
from tests.simulation.workloads.retries import Retries
from tests.simulation.workloads.stage import Stage, Workload
from tests.simulation.workloads.transactions import Transactions

WORKLOADS: dict[str, type[Workload]] = {
    each.name: each for each in (Plain, Retries, ClassicGroup, ConsumerGroup, Transactions, Copies, Compacted, Administration)
}

__all__ = ["WORKLOADS", "Stage", "Workload"]
