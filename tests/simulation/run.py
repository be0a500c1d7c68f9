"""One seed from its first event to its verdict."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from ottla.client.admin import Admin
from ottla.host import World
from ottla.model.errors import ApiError
from tests.histories import History as ClientHistory
from tests.histories import check
from tests.simulation.checks import Violation, judge
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.faults import Faults
from tests.simulation.files import check_files
from tests.simulation.history import History
from tests.simulation.invariants import Invariants
from tests.simulation.loop import SimulatedLoop, SimulationError, current_process
from tests.simulation.plan import Plan
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import WORKLOADS, Stage

START_SECONDS = 60.0  # virtual; a cluster without faults must be up by then
LIVENESS_SECONDS = 300.0  # virtual; once faults have ended, every client must be done by then
MIN_FAULTS = 10
MOMENT_SECONDS = 1.0


@dataclass(slots=True)
class Outcome:
    seed: int
    failure: str | None
    digest: str
    events: int
    virtual_seconds: float
    acknowledged: int
    faults: int
    counts: Counter[str]
    plan: Plan
    story: list[str] = field(repr=False)


def run_seed(seed: int, *, brokers: int = 1, controllers: int = 0, focus: str = "") -> Outcome:
    plan = Plan.draw(seed, brokers, focus, controllers)
    failure = None
    with Simulation(seed) as simulation, Complaints(simulation.loop):
        play = _Play(simulation, plan)
        try:
            simulation.run(play.run())
            play.judge()
        except (Violation, SimulationError) as error:
            failure = str(error)
        except Exception:
            failure = traceback.format_exc()
        crashes = [crash for node in simulation.nodes.values() for crash in node.crashes]
        if crashes:
            failure = "\n".join([failure or "no_node_crashes", *crashes])
        journal = simulation.journal
        return Outcome(
            seed=seed,
            failure=failure,
            digest=journal.digest(),
            events=journal.events,
            virtual_seconds=simulation.loop.time(),
            acknowledged=play.acknowledged,
            faults=0 if play.faults is None else play.faults.count,
            counts=journal.counts,
            plan=plan,
            story=journal.story,
        )


def play(task: tuple[int, int, int, str]) -> Outcome:
    """For worker processes: a seed, how many brokers, how many controllers of their own, the focus."""
    seed, brokers, controllers, focus = task
    return run_seed(seed, brokers=brokers, controllers=controllers, focus=focus)


class Complaints(logging.Handler):
    """Whatever says in the log that it failed in a way nobody foresaw is a finding: the client was told UNKNOWN_SERVER_ERROR and
    tried again, so that nothing else would show it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(logging.ERROR)
        self._loop = loop
        self._logger = logging.getLogger("ottla")

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and self._loop.broken is None and not _is_trouble_of_a_disk(record):
            where = "".join(traceback.format_exception(*record.exc_info)[-4:])
            self._loop.broken = Violation(
                "everything_that_fails_was_foreseen", f"{current_process().name}: {record.getMessage()}\n{where}"
            )

    def __enter__(self) -> None:
        self._former = self._logger.level, self._logger.propagate
        self._logger.addHandler(self)
        self._logger.setLevel(logging.ERROR)  # what is said below costs time and is read by nobody
        self._logger.propagate = False

    def __exit__(self, *_: object) -> None:
        level, self._logger.propagate = self._former
        self._logger.setLevel(level)
        self._logger.removeHandler(self)


def _is_trouble_of_a_disk(record: logging.LogRecord) -> bool:
    """Housekeeping says so and tries again."""
    return (
        record.name == "ottla.housekeeping" and record.exc_info is not None and isinstance(record.exc_info[1], OSError | ApiError)
    )


class _Play:
    def __init__(self, simulation: Simulation, plan: Plan) -> None:
        self._simulation = simulation
        self._plan = plan
        self._cluster = SimulatedCluster(simulation, plan.brokers, plan.settings(), controllers=plan.controllers)
        for broker, skew_ms, drift in zip(self._cluster.nodes, plan.skews_ms, plan.drifts, strict=True):
            broker.machine.clock.skew(skew_ms, drift)
        self._stage = Stage(simulation, self._cluster, History())
        self._workloads = [WORKLOADS[name](self._stage) for name in plan.workloads]
        self.faults: Faults | None = None
        self.invariants = Invariants(self._cluster)
        simulation.loop.watcher = self.invariants.after
        simulation.journal.tell("plans", f"seed {simulation.seed}: {plan}")

    async def run(self) -> None:
        await _within(START_SECONDS, "the cluster did not start", self._cluster.start())
        await _within(START_SECONDS, "topics were not created", self._prepare())
        for workload in self._workloads:
            workload.start()
        await self._storm()
        for workload in self._workloads:
            workload.stopping = True
        for workload in self._workloads:
            await _within(LIVENESS_SECONDS, f"{workload.name} did not finish after the faults had ended", workload.finish())
        for workload in self._workloads:
            reading = self._simulation.node(f"{workload.name}-reads-all").start(workload.read)
            await _within(LIVENESS_SECONDS, f"{workload.name} could not be read at the end", reading)
        await self._stop()

    async def _prepare(self) -> None:
        async def prepare(world: World) -> None:
            async with Admin(bootstrap_servers=self._stage.servers, world=world) as admin:
                for workload in self._workloads:
                    await workload.prepare(admin)

        await self._simulation.node("admin").start(prepare)

    async def _storm(self) -> None:
        """At least as long as planned, and until enough has gone wrong."""
        self.faults = Faults(self._cluster, f"faults {self._simulation.seed}", power=self._plan.power, focus=self._plan.focus)
        storm = asyncio.create_task(self.faults.run())
        await asyncio.sleep(self._plan.storm_seconds)
        while self.faults.count < MIN_FAULTS:  # noqa: ASYNC110
            await asyncio.sleep(MOMENT_SECONDS)
        storm.cancel()
        await self.faults.heal()

    async def _stop(self) -> None:
        brokers = self._cluster.nodes
        await _within(LIVENESS_SECONDS, "nodes were not up at the end", _all_of(broker.ready.wait for broker in brokers))
        assert self.faults is not None
        await _within(LIVENESS_SECONDS, "replicas were not all in sync at the end", self.faults.until_in_sync())
        await _within(LIVENESS_SECONDS, "nodes did not stop", _all_of(broker.stop for broker in brokers))
        for broker in brokers:
            check_files(broker.machine.disk)

    # -- the verdict

    @property
    def acknowledged(self) -> int:
        recorded = sum(event["kind"] == "sent" for recorder in self._stage.recorders for event in recorder.events)
        return self._stage.history.acknowledged + recorded

    def judge(self) -> None:
        judge(self._stage.history)
        for workload in self._workloads:
            workload.judge()
        report = check(self._stage.history.for_the_checker(ClientHistory.of(*self._stage.recorders)))
        if not report.clean:
            raise Violation("the_history_is_sound", f"{', '.join(report.anomalies)}\n{report}")


async def _all_of(calls: Iterable[Callable[[], Coroutine[Any, Any, Any]]]) -> None:
    for task in [asyncio.create_task(call()) for call in calls]:
        await task


async def _within(seconds: float, complaint: str, work: Any) -> None:
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise Violation("liveness", complaint) from None
