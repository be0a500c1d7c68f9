"""What a seed makes of the world: who works in it, with which settings, and what is shaken above all."""

from __future__ import annotations

import random
from dataclasses import dataclass

STORM_SECONDS = (15.0, 30.0)
EXTRAS = ("retries", "classic", "consumer", "transactions", "copies", "compacted", "administration")
# What each focus makes sure of. The plain workload is in every run.
FOCUSES: dict[str, tuple[str, ...]] = {
    "": (),
    "raft": ("administration",),
    "replication": ("retries",),
    "groups": ("classic", "consumer"),
    "transactions": ("transactions", "copies"),
    "storage": ("compacted", "retries"),
    "administration": ("administration", "consumer", "compacted"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    brokers: int
    controllers: int  # of their own; without any, the brokers are controllers too
    workloads: tuple[str, ...]
    power: bool
    storm_seconds: float
    focus: str
    skews_ms: tuple[int, ...]  # how wrong each broker's clock is from the start
    drifts: tuple[float, ...]  # and how much too fast or slow it goes
    hasty: bool  # elections are short, so that candidates meet
    snapshot_bytes: int
    session_ms: int  # after so long a silent broker is given up; if it lives, it goes on believing that it leads
    fetch_bytes: int  # what a follower gets of a partition at once: with little, catching up takes many rounds

    @classmethod
    def draw(cls, seed: int, brokers: int, focus: str = "", controllers: int = 0) -> Plan:
        chance = random.Random(f"plan {seed}")
        extras = FOCUSES[focus] or tuple(chance.sample(EXTRAS, chance.choice((1, 2, 2))))
        return cls(
            brokers=brokers,
            controllers=controllers,
            workloads=("plain", *extras),
            power=chance.random() < 0.5 or focus == "storage",
            storm_seconds=chance.uniform(*STORM_SECONDS),
            focus=focus,
            skews_ms=tuple(chance.choice((0, 0, chance.randrange(-5_000, 5_000))) for _ in range(brokers + controllers)),
            drifts=tuple(chance.choice((0.0, chance.uniform(-0.01, 0.01))) for _ in range(brokers + controllers)),
            hasty=chance.random() < (0.7 if focus == "raft" else 0.2),
            snapshot_bytes=chance.choice((3_000, 20_000, 20 << 20)),
            session_ms=2_000 if focus == "replication" else chance.choice((2_000, 3_000, 9_000)),
            fetch_bytes=chance.choice((600, 1 << 20) if focus == "replication" else (600, 1 << 20, 1 << 20)),
        )

    def settings(self) -> dict[str, str]:
        replication = str(min(3, self.brokers))
        settings = {
            "log.retention.ms": "-1",
            "log.roll.ms": "5000",
            "log.cleaner.backoff.ms": "700",
            "log.retention.check.interval.ms": "3000",
            "file.delete.delay.ms": "1000",
            "log.flush.offset.checkpoint.interval.ms": "5000",
            "replica.lag.time.max.ms": "3000",
            "replica.fetch.max.bytes": str(self.fetch_bytes),
            "broker.session.timeout.ms": str(self.session_ms),
            "broker.heartbeat.interval.ms": str(self.session_ms // 4),
            "metadata.log.max.record.bytes.between.snapshots": str(self.snapshot_bytes),
            "offsets.topic.num.partitions": "2",
            "offsets.topic.replication.factor": replication,
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.replication.factor": replication,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            "group.initial.rebalance.delay.ms": "300",
            "group.consumer.min.session.timeout.ms": "2000",
            "group.consumer.session.timeout.ms": "6000",
            "group.consumer.min.heartbeat.interval.ms": "500",
            "group.consumer.heartbeat.interval.ms": "1000",
        }
        if self.hasty:
            settings |= {"controller.quorum.election.timeout.ms": "100", "controller.quorum.fetch.timeout.ms": "500"}
        if self.power and self.brokers == 1:
            settings["log.flush.interval.messages"] = "1"
        return settings
