"""What a rule is: tests of answers that must all hold, an effect on one candidate, a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, Literal

from penstock.base.settings import SettingInfo, describe
from penstock.planner.choosing.workload import UNITS, Fact, Workload
from penstock.planner.quantities import format_quantity

Relation = Literal["=", "≠", "≥", ">", "≤", "<"]
Effect = Literal["for", "note", "caveat", "against"]

MATRIX: Final = "log and queue article: decision matrix"
THRESHOLDS: Final = "log and queue article: thresholds below the decision matrix"
TABLE_AS_QUEUE: Final = "log and queue article: why a table is no queue"
FILE_OUTBOX: Final = "filesystem outbox article: when this pattern is the wrong answer"
TRANSITIONAL: Final = "filesystem outbox article: what transitional data is"
HOST_IPC: Final = "host IPC article: when this is the wrong answer"
HOST_BAKE_OFF: Final = "host IPC article: comparison with the alternatives"
JUDGEMENT: Final = "judgement of this planner; no article has a number for it"

_RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "≠": ne,
    "≥": ge,
    ">": gt,
    "≤": le,
    "<": lt,
}
_INFOS: Final[Mapping[str, SettingInfo]] = {info.attribute: info for info in describe(Workload)}


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison of an answer, or of what follows from two, with a threshold."""

    fact: str
    relation: Relation
    value: Fact

    __test__ = False  # no test case, whatever pytest thinks of the name

    def holds(self, fact: Callable[[str], Fact]) -> bool:
        return _RELATIONS[self.relation](fact(self.fact), self.value)

    @property
    def text(self) -> str:
        """`consumers ≥ 2 groups`, `replay = yes`."""
        return f"{self._name} {self.relation} {self._shown(self.value)}"

    def found(self, fact: Callable[[str], Fact]) -> str:
        """The answer beside the threshold: `consumers 3 groups ≥ 2 groups`, `replay: yes`."""
        if isinstance(self.value, (bool, str)):
            return f"{self._name}: {self._shown(fact(self.fact))}"
        shown = self._shown(fact(self.fact))
        return f"{self._name} {shown} {self.relation} {self._shown(self.value)}"

    @property
    def _name(self) -> str:
        info = _INFOS.get(self.fact)
        return info.name if info is not None else self.fact.replace("_", " ")

    def _shown(self, value: Fact) -> str:
        info = _INFOS.get(self.fact)
        return format_quantity(value, info.unit if info is not None else UNITS[self.fact])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table. `subject` is unique among the rules of a candidate."""

    candidate: str
    subject: str
    effect: Effect
    when: tuple[Test, ...]
    reason: str
    source: str

    @property
    def condition(self) -> str:
        """All tests in words."""
        return " and ".join([test.text for test in self.when])


def rows(candidate: str, *table: tuple[Effect, str, tuple[Test, ...], str, str]) -> list[Rule]:
    """Rules of one candidate, from rows of effect, subject, tests, reason and source."""
    return [
        Rule(
            candidate=candidate,
            subject=subject,
            effect=effect,
            when=when,
            reason=reason,
            source=source,
        )
        for effect, subject, when, reason, source in table
    ]


def yes(fact: str) -> Test:
    return Test(fact, "=", True)


def no(fact: str) -> Test:
    return Test(fact, "=", False)


def equals(fact: str, value: Fact) -> Test:
    return Test(fact, "=", value)


def differs(fact: str, value: Fact) -> Test:
    return Test(fact, "≠", value)


def from_on(fact: str, value: float) -> Test:
    return Test(fact, "≥", value)


def above(fact: str, value: float) -> Test:
    return Test(fact, ">", value)


def up_to(fact: str, value: float) -> Test:
    return Test(fact, "≤", value)


def below(fact: str, value: float) -> Test:
    return Test(fact, "<", value)
