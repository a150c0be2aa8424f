"""All states within bounds, breadth first, so that the first violation has a shortest trace."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from penstock.base.errors import BugError
from penstock.broker.transactions import Transactions
from sim.transactions.bounds import Bounds
from sim.transactions.checks import check, check_rest
from sim.transactions.logs import Violation
from sim.transactions.model import Label, Model, State

STATES_MAX: Final = 400_000
"""Of one exploration: what is larger is looked at up to some depth."""


class Result(NamedTuple):
    """What an exploration has found. `trace`: the way to a violation, empty if there is none."""

    states: int
    steps: int
    depth: int
    cpu_seconds: float
    complete: bool
    trace: list[str]


def explore(
    bounds: Bounds, kind: type[Transactions] = Transactions, states_max: int = STATES_MAX
) -> Result:
    """Look at every state that can be reached, if there are not too many; stop at a violation."""
    began = time.process_time()
    model = Model(bounds, kind)
    before: dict[State, tuple[State, Label] | None] = {model.initial(): None}
    level, depth, steps = list(before), 0, 0
    trace: list[str] = []
    while level and not trace and len(before) < states_max:
        reached: list[State] = []
        for state in level:
            label = "…"
            try:
                check_rest(model, state)
                for label, after in model.successors(state):
                    steps += 1
                    if after not in before:
                        check(after)
                        before[after] = (state, label)
                        reached.append(after)
            except (Violation, BugError) as violation:
                trace = [*_way(before, state), label, f"VIOLATED: {violation}"]
                break
        level, depth = reached, depth + bool(reached)
    spent = time.process_time() - began
    return Result(len(before), steps, depth, spent, not level and not trace, trace)


def _way(before: dict[State, tuple[State, Label] | None], last: State) -> list[str]:
    labels: list[str] = []
    step = before[last]
    while step is not None:
        state, label = step
        labels.append(label)
        step = before[state]
    return labels[::-1]
