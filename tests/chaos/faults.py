"""What is done to the nodes, drawn from seeded dice. A fault is begun, lasts for a while, and is undone.

A fault that has no effect proves nothing, so each can be asked whether it really happened: whether the process died of the signal or
stands still, whether a packet is lost on the wire. The first faults of a run are one of each kind, for long.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.chaos.network import CLIENTS
from tests.chaos.nodes import Nodes

SHORT_S, LONG_S = 0.2, 8.0  # well below and well above the time after which a silent broker is given up
LOOK_S = 1.0  # what lasts less long is over before a lost packet can be told from a late one


@dataclass(frozen=True)
class Fault:
    kind: str  # kill, stop or cut
    name: str
    begin: Callable[[], None]
    end: Callable[[], None]
    seconds: float
    happened: Callable[[], bool]  # asked while it lasts


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
        self._first = [self._kill, self._pause, *([self._isolate] if self._network.cuttable else [])]
        self._dice.shuffle(self._first)

    def draw(self) -> Fault:
        if self._first:
            return replace(self._first.pop()(), seconds=self._dice.uniform(LOOK_S, LONG_S))
        [kind] = self._dice.choices([make for _, make in self._kinds], [weight for weight, _ in self._kinds])
        return kind()

    def _seconds(self) -> float:
        return self._dice.choice((self._dice.uniform(SHORT_S, LOOK_S), self._dice.uniform(LOOK_S, LONG_S)))

    def _some(self, count: int) -> list[int]:
        return self._dice.sample(self._nodes.ids, count)

    def _kills(self, count: int) -> Fault:
        victims = self._some(count)
        words = " and ".join(f"node {node}" for node in victims)
        return Fault(
            "kill",
            f"kill -9 {words}",
            lambda: self._kill_each(victims),
            lambda: self._start_each(victims),
            self._seconds(),
            lambda: all(self._nodes.was_killed(node) for node in victims),
        )

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
        return Fault(
            "stop",
            f"SIGSTOP node {node}",
            lambda: self._nodes.pause(node),
            lambda: self._nodes.resume(node),
            self._seconds(),
            lambda: self._nodes.stands_still(node),
        )

    def _cuts(self, name: str, cuts: list[tuple[int, int]]) -> Fault:
        def begin() -> None:
            for sender, receiver in cuts:
                self._network.cut(sender, receiver)

        return Fault("cut", name, begin, self._network.mend, self._seconds(), lambda: self._network.are_silent(cuts))

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

        return replace(cut, name=f"cut node {node} off, then kill -9", end=end)

    def _others(self, node: int) -> list[int]:
        return [other for other in self._nodes.ids if other != node]

    def _both_ways(self, node: int, others: list[int]) -> list[tuple[int, int]]:
        return [pair for other in others for pair in ((node, other), (other, node))]
