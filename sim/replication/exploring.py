"""All states within bounds, breadth first, so that the first violation has a shortest trace."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from sim.replication.bounds import Bounds
from sim.replication.checks import Checks, Violation
from sim.replication.copies import Contradiction
from sim.replication.model import Model, Seen, State
from sim.replication.plants import SOUND, Plant
from sim.replication.traffic import Label

STATES_BETWEEN_LOOKS = 1_000
"""At the clock."""


class Result(NamedTuple):
    """What an exploration has found. `trace`: the way to a violation, empty if there is none."""

    states: int
    steps: int
    depth: int
    cpu_seconds: float
    complete: bool
    trace: list[str]


def explore(bounds: Bounds, plant: Plant = SOUND, cpu_seconds: float = 1e9) -> Result:
    """Look at every state that can be reached; stop at the first violation, or after a time."""
    return Exploration(bounds, plant).run(cpu_seconds)


class Exploration:
    """One model and the states that were reached, each with the one before it."""

    def __init__(self, bounds: Bounds, plant: Plant) -> None:
        self.model = Model(bounds, plant)
        self._checks = Checks(self.model)
        self._before: dict[State, State | None] = {}

    @property
    def states(self) -> Iterable[State]:
        return self._before

    def run(self, cpu_seconds: float = 1e9) -> Result:
        began = time.process_time()
        level = [self.model.canonical(self.model.initial())]
        self._before = {level[0]: None}
        depth, steps = 0, 0
        trace: list[str] = []
        in_time, looked = True, 0
        while level and in_time and not trace:
            reached: list[State] = []
            for state in level:
                count, trace = self._from(state, reached)
                steps += count
                if trace:
                    break
                if len(self._before) > looked + STATES_BETWEEN_LOOKS:  # a look takes long
                    looked = len(self._before)
                    in_time = time.process_time() - began < cpu_seconds
                    if not in_time:
                        break
            level, depth = reached, depth + bool(reached or trace)
        spent = time.process_time() - began
        return Result(len(self._before), steps, depth, spent, in_time and not trace, trace)

    def _from(self, state: State, reached: list[State]) -> tuple[int, list[str]]:
        """Take every step from a state; the number of steps, and the trace of a violation."""
        before, steps = self._before, 0
        taken: Label = ("a step",)
        try:
            for taken, after in self.model.successors(state):  # noqa: B007
                steps += 1
                self._checks.check_step(state, after)
                key = self.model.canonical(self.model.observe(after))
                if key not in before:
                    before[key] = state
                    self._checks.check(key)
                    reached.append(key)
        except (Violation, Seen, Contradiction) as violation:
            return steps, [*self._trace(state), text(taken), f"VIOLATED: {violation}"]
        return steps, []

    def _trace(self, last: State) -> list[str]:
        """The labels on the way to a state, each replica under one name throughout."""
        path: list[State] = []
        at: State | None = last
        while at is not None:
            path.append(at)
            at = self._before[at]
        path.reverse()
        labels, concrete = [], path[0]
        for wanted in path[1:]:
            for label, after in self.model.successors(concrete):
                seen = self.model.observe(after)
                if self.model.canonical(seen) == wanted:
                    labels.append(text(label))
                    concrete = seen
                    break
        return labels


def text(label: Label) -> str:
    """A label as a sentence; its second part is a replica's place, -1 for none."""
    form, *parts = label
    if parts and parts[0] == -1:
        parts = parts[1:]
    elif parts and isinstance(parts[0], int):
        parts[0] = f"replica {'ABCDEFG'[parts[0]]}"
    return str(form).format(*parts)
