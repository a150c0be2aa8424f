"""Candidates and rules from `technologies.toml`, read once.

A rule is tests of answers that must all hold, an effect on one candidate, a reason and its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, Literal

from penstock.base.settings import SettingInfo, describe
from penstock.planner.choosing.workload import UNITS, Fact, Workload
from penstock.planner.quantities import format_quantity
from penstock.planner.tables import read_table
from penstock.storage import LogConfig

Relation = Literal["=", "≠", "≥", ">", "≤", "<"]
Effect = Literal["for", "note", "caveat", "against"]
Layer = Literal["transport", "computation", "coordination"]

EFFECTS: Final[Mapping[Effect, str]] = {
    "for": "speaks for",
    "note": "matters to",
    "caveat": "is a caveat for",
    "against": "rules out",
}
"""Effects in the order of their reasons, with their words in questions."""
_RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "≠": ne,
    "≥": ge,
    ">": gt,
    "≤": le,
    "<": lt,
}
_INFOS: Final[Mapping[str, SettingInfo]] = {info.attribute: info for info in describe(Workload)}
_WORDS: Final[Mapping[str, Fact]] = {
    "yes": True,
    "no": False,
    "max.message.bytes": LogConfig().max_message_bytes,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Technology. `part` is the part of Penstock for it; `present` is whether it exists."""

    id: str
    label: str
    layer: Layer
    examples: str
    part: str
    present: bool


@dataclass(frozen=True, slots=True)
class Test:
    """Comparison of an answer, or a derived fact, with a threshold."""

    fact: str
    relation: Relation
    value: Fact

    __test__ = False  # pytest must not collect it by its name

    def holds(self, fact: Callable[[str], Fact]) -> bool:
        return _RELATIONS[self.relation](fact(self.fact), self.value)

    @property
    def text(self) -> str:
        """Condition in words: `consumers ≥ 2 groups`, `replay = yes`."""
        return f"{self._name} {self.relation} {self._shown(self.value)}"

    def found(self, fact: Callable[[str], Fact]) -> str:
        """Return answer and threshold: `consumers 3 groups ≥ 2 groups`, `replay: yes`."""
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
    """Row of the table. `subject` is unique among the rules of a candidate."""

    candidate: str
    subject: str
    effect: Effect
    when: tuple[Test, ...]
    reason: str
    source: str

    @property
    def condition(self) -> str:
        return " and ".join([test.text for test in self.when])


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Common combination, when one of `with_any` is recommended and all tests hold.

    An empty name among `with_any` means that nothing is recommended.
    """

    name: str
    label: str
    with_any: frozenset[str]
    when: tuple[Test, ...]
    how: str
    source: str


_DATA: Final = read_table(__package__, "technologies.toml")
SOURCES: Final[Mapping[str, str]] = _DATA["sources"]


def _value(text: str) -> Fact:
    if text in _WORDS:
        return _WORDS[text]
    if not text[0].isdigit():
        return text
    return float(text) if re.search(r"[.e]", text) else int(text)


def _tests(when: str) -> tuple[Test, ...]:
    """Read tests from text: names of `[tests]`, or comparisons, with commas between them."""
    found = []
    for part in filter(None, when.split(", ")):
        fact, relation, value = _DATA["tests"].get(part, part).split(" ")
        found.append(Test(fact, relation, _value(value)))
    return tuple(found)


def _rules(candidate: str, table: list[tuple[Effect, str, str, str, str]]) -> list[Rule]:
    return [
        Rule(
            candidate=candidate,
            subject=subject,
            effect=effect,
            when=_tests(when),
            reason=reason,
            source=SOURCES[source],
        )
        for effect, subject, when, source, reason in table
    ]


def _candidate(name: str) -> Candidate:
    row = {key: value for key, value in _DATA["candidate"][name].items() if key != "rules"}
    return Candidate(id=name, **row)


CANDIDATES: Final[Mapping[str, Candidate]] = {name: _candidate(name) for name in _DATA["order"]}
"""Candidates by id. Of equally good transports the earlier is recommended, the cheaper to run."""
RULES: Final[tuple[Rule, ...]] = tuple(
    [rule for name, row in _DATA["candidate"].items() for rule in _rules(name, row["rules"])]
)
COMBINATIONS: Final[tuple[Combination, ...]] = tuple(
    [
        Combination(
            name=row["name"],
            label=row["label"],
            with_any=frozenset(row["with"]),
            when=_tests(row["when"]),
            how=row["how"],
            source=SOURCES.get(row["source"], row["source"]),
        )
        for row in _DATA["combination"]
    ]
)
