"""kill -9 of producers and brokers at each step of a transaction: see `compat/kills`.

The steps are those that brokers see (`kills/steps.py`), all of them: a run without kills reaches
these and no others. Who dies there is a producer, one that is stopped and comes back as a zombie,
the transaction's coordinator, the leader of a partition that is written to, both, or whoever does
the step if that is another one. Up to where the producer asks for the end a commit and an abort are
the same; so is a timeout. The ordinary run has a few of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from compat.kills.cluster import KINDS, LOCAL, Cluster, Kind, running
from compat.kills.history import History
from compat.kills.producers import VERSIONS
from compat.kills.scene import Case, Victim, play, trace
from compat.kills.steps import End, Phase, Step
from compat.parts import PartMissing

ENUMERATED = ("java", "confluent-kafka")
"""A client of each version of transactions."""
OF_OTHERS = ("copied", "TxnOffsetCommit", "staged", "AddOffsetsToTxn")
"""What is done by brokers that are neither coordinator nor leader: they are victims as well."""
FEW = (
    ("confluent-kafka", Victim.ZOMBIE, "staged offsets"),
    ("franz-go", Victim.COORDINATOR, "saved PrepareCommit"),
)


def _victims(kind: Kind, step: Step, end: End) -> list[Victim]:
    found = [] if end is End.TIMEOUT else [Victim.PRODUCER, Victim.ZOMBIE]
    if kind.brokers == 1:
        return [*found, Victim.COORDINATOR]
    others = step.point.startswith(OF_OTHERS) or step.point.endswith(OF_OTHERS)
    found += [Victim.REACHER] if others else []
    return [*found, Victim.COORDINATOR, Victim.LEADER, Victim.BOTH]


def _cases(kind: Kind, client: str) -> Iterator[Case]:
    for end in End:
        for step in kind.steps(end, version=VERSIONS[client]):
            if end is End.COMMIT or step.phase is Phase.END:
                for victim in _victims(kind, step, end):
                    yield Case(client=client, end=end, step=step, victim=victim)


def _few() -> Iterator[Case]:
    for client, victim, point in FEW:
        for step in LOCAL.steps(End.COMMIT, version=VERSIONS[client]):
            if step.point == point:
                yield Case(client=client, end=End.COMMIT, step=step, victim=victim)


ALL = [
    (kind, case) for kind in KINDS.values() for name in ENUMERATED for case in _cases(kind, name)
]
EVERY = int(os.environ.get("PENSTOCK_EVERY_KILL", "9"))
"""Share of all kills in a long run; 1 takes each of the 1,800, for three hours."""


@pytest.fixture(scope="module")
def cluster_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Cluster]]:
    """Running brokers for a kind of topic; those of another kind end."""
    with ExitStack() as stack:
        started: dict[str, Cluster] = {}

        def get(name: str) -> Cluster:
            if name not in started:
                stack.close()
                started.clear()
                directory = tmp_path_factory.mktemp(name)
                started[name] = stack.enter_context(running(KINDS[name], directory))
            return started[name]

        yield get


@pytest.fixture
def cluster(cluster_of: Callable[[str], Cluster], request: pytest.FixtureRequest) -> Cluster:
    """Running brokers (the parameter is the kind of topic)."""
    return cluster_of(request.param)


def _play(cluster: Cluster, case: Case) -> None:
    try:
        play(cluster, case)
    except PartMissing as error:
        pytest.skip(f"a foreign part is missing: {error}")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("cluster", "case"),
    [
        pytest.param(name, case, id=f"{name}, {case}")
        for name, cases in (("local", list(_few())), ("diskless", list(_few())[-1:]))
        for case in cases
    ],
    indirect=["cluster"],
)
def test_a_process_is_killed(cluster: Cluster, case: Case) -> None:
    _play(cluster, case)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("cluster", "case"),
    [pytest.param(kind.name, case, id=f"{kind.name}, {case}") for kind, case in ALL[::EVERY]],
    indirect=["cluster"],
)
def test_anybody_dies_at_any_step(cluster: Cluster, case: Case) -> None:
    _play(cluster, case)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", list(End))
@pytest.mark.parametrize(
    ("cluster", "client"),
    [
        pytest.param(kind, client, marks=[] if first else [pytest.mark.long])
        for kind in KINDS
        for client in ENUMERATED
        for first in [(kind, client) == ("local", "confluent-kafka")]
    ],
    indirect=["cluster"],
)
def test_these_are_all_steps(cluster: Cluster, client: str, end: End) -> None:
    known = cluster.kind.steps(end, version=VERSIONS[client])
    assert set(trace(cluster, client, end)) == {step.point for step in known}


TWO = {0: [1, 1, 2, 2], 1: [1, 2]}
PLANTED = {
    "half of it": ({0: [1, 1, 2], 1: [1, 2]}, 2, {}, "not seen as a whole"),
    "a partition of it": ({0: [1, 1, 2, 2], 1: [1]}, 2, {}, "2 is committed, and not seen"),
    "twice": ({0: [1, 1, 2, 2], 1: [1, 2, 2]}, 2, {}, "not seen as a whole"),
    "order": ({0: [2, 2, 1, 1], 1: [1, 2]}, 2, {}, "out of order"),
    "dropped": ({0: [1, 1, 2, 2, 3, 3], 1: [1, 2, 3]}, 3, {}, "3 is seen, and was dropped"),
    "offset": (TWO, 1, {}, "the group stands at 1"),
    "no offset": (TWO, None, {}, "the group stands at None"),
    "too early": (TWO, 2, {1: 0.0}, "1 was seen before"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_cannot_be_is_found(planted: str) -> None:
    seen, offset, times, message = PLANTED[planted]
    found = _history().violations(seen, offset, times)
    assert any(message in violation for violation in found), found


def test_what_can_be_is_no_violation() -> None:
    history = _history()
    assert history.violations(TWO, 2, {}) == []
    unknown = history.begin()
    history.ask(unknown)
    assert history.violations(TWO, 2, {}) == []
    assert history.violations({0: [*TWO[0], 4, 4], 1: [*TWO[1], 4]}, 4, {}) == []


def _history() -> History:
    """Two committed transactions, and one that was dropped."""
    history = History()
    for committed in (True, True, False):
        number = history.begin()
        if committed:
            history.ask(number)
        history.end(number, committed=committed)
    return history
