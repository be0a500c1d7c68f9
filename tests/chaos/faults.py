"""What is done to the nodes, drawn from seeded dice. A fault is begun, lasts for a while, and is undone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.network import CLIENTS
from tests.chaos.nodes import Nodes

SHORT_S, LONG_S = 0.2, 8.0  # well below and well above the time after which a silent broker is given up


@dataclass(frozen=True)
class Fault:
    name: str
    begin: Callable[[], None]
    end: Callable[[], None]
    seconds: float


class Faults:
    """`draw` gives the next fault. Those that cut wires come only where wires can be cut."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self._nodes = nodes
        self._network = nodes.network
        self._dice = random.Random(seed)
        kinds: list[tuple[int, Callable[[], Fault]]] = [
            (6, self._kill),
            (4, self._pause),
            (1, self._kill_two),
            (1, self._kill_all),
        ]
        if self._network.cuttable:
            kinds += [(3, self._isolate), (2, self._vanish), (3, self._cut_one_way), (2, self._cut_pair), (1, self._cut_and_kill)]
        self._kinds = kinds

    def draw(self) -> Fault:
        [kind] = self._dice.choices([make for _, make in self._kinds], [weight for weight, _ in self._kinds])
        return kind()

    def _seconds(self) -> float:
        return self._dice.choice((self._dice.uniform(SHORT_S, 1), self._dice.uniform(1, LONG_S)))

    def _some(self, count: int) -> list[int]:
        return self._dice.sample(self._nodes.ids, count)

    def _kills(self, count: int) -> Fault:
        victims = self._some(count)
        words = " and ".join(f"node {node}" for node in victims)
        return Fault(f"kill -9 {words}", lambda: self._kill_each(victims), lambda: self._start_each(victims), self._seconds())

    def _kill_each(self, victims: list[int]) -> None:
        for node in victims:
            self._nodes.kill(node)

    def _start_each(self, victims: list[int]) -> None:
        for node in victims:
            self._nodes.start(node)

    def _kill(self) -> Fault:
        return self._kills(1)

    def _kill_two(self) -> Fault:
        return self._kills(2)

    def _kill_all(self) -> Fault:
        return self._kills(len(self._nodes.ids))

    def _pause(self) -> Fault:
        [node] = self._some(1)
        return Fault(f"SIGSTOP node {node}", lambda: self._nodes.pause(node), lambda: self._nodes.resume(node), self._seconds())

    def _cuts(self, name: str, cuts: list[tuple[int, int]]) -> Fault:
        def begin() -> None:
            for sender, receiver in cuts:
                self._network.cut(sender, receiver)

        return Fault(name, begin, self._network.mend, self._seconds())

    def _isolate(self) -> Fault:
        [node] = self._some(1)
        return self._cuts(f"cut node {node} off from the others, not from clients", self._both_ways(node, self._others(node)))

    def _vanish(self) -> Fault:
        [node] = self._some(1)
        return self._cuts(f"cut node {node} off from everybody", self._both_ways(node, [*self._others(node), CLIENTS]))

    def _cut_one_way(self) -> Fault:
        [node] = self._some(1)
        heard = self._dice.random() < 0.5
        cuts = [(other, node) if heard else (node, other) for other in self._others(node)]
        return self._cuts(f"node {node} {'hears nothing from' if heard else 'is not heard by'} the others", cuts)

    def _cut_pair(self) -> Fault:
        one, other = self._some(2)
        return self._cuts(f"cut between nodes {one} and {other}", self._both_ways(one, [other]))

    def _cut_and_kill(self) -> Fault:
        """A leader that is cut off dies with what it alone has."""
        [node] = self._some(1)
        cut = self._cuts("", self._both_ways(node, self._others(node)))

        def end() -> None:
            self._nodes.kill(node)
            cut.end()
            self._nodes.start(node)

        return Fault(f"cut node {node} off, then kill -9", cut.begin, end, cut.seconds)

    def _others(self, node: int) -> list[int]:
        return [other for other in self._nodes.ids if other != node]

    def _both_ways(self, node: int, others: list[int]) -> list[tuple[int, int]]:
        return [pair for other in others for pair in ((node, other), (other, node))]
