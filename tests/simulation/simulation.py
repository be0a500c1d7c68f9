"""One run: a loop, an internet, nodes by name, all from one seed."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from tests.simulation.journal import Journal
from tests.simulation.loop import SimulatedLoop, SimulationError
from tests.simulation.network import Internet
from tests.simulation.node import SimulatedNode

T = TypeVar("T")


class Simulation:
    """`with Simulation(seed) as simulation:` make nodes, then `run` a coroutine that drives them."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.journal = Journal()
        self.loop = SimulatedLoop(seed, self.journal)
        self.internet = Internet(self.loop, seed, self.journal)
        self.nodes: dict[str, SimulatedNode] = {}

    def node(self, name: str) -> SimulatedNode:
        node = self.nodes[name] = SimulatedNode(self.loop, self.internet, name, self.seed)
        return node

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """To the coroutine's end; an exception that nobody caught anywhere is raised too."""
        result = self.loop.run(coroutine)
        if self.loop.errors:
            raise SimulationError("exceptions that nobody caught:\n" + "\n".join(self.loop.errors))
        return result

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.loop.close()
