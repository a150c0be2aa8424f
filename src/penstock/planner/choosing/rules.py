"""Questions about a workload, and the candidates and rules of `technologies.toml`.

A rule has tests of answers, an effect on one candidate, a reason and a source. It applies if all of
its tests hold. The table is read once, when this module is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, ClassVar, Final, Literal

from penstock.base.settings import SettingInfo, describe, setting
from penstock.planner.inputs import read_table
from penstock.planner.quantities import format_quantity
from penstock.storage import LogConfig

SECONDS_PER_DAY: Final = 86_400
Fact = float | int | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Answers about a stream of messages. Sizes are averages; latency is end to end."""

    SEPARATOR: ClassVar = "-"

    messages_per_second: float = setting(
        1000.0,
        "Number of messages per second at busy times.",
        0.001,
        1e12,
        name="rate",
        unit="messages/s",
    )
    message_bytes: int = setting(1024, "Size of a message.", 1, 1 << 40, unit="bytes")
    consumers: int = setting(1, "Number of consumer groups that each get every message.", 1, 10_000)
    replay: bool = setting(
        False,
        "Whether consumers read messages again later, for an audit, a backfill or after a bug.",
    )
    latency_ms: float = setting(
        1000.0, "Maximum time from a message's send to its consumer, at the 99th percentile.",
        1e-6, 1e12,
        name="latency", unit="ms",
    )  # fmt: skip
    ordering: str = setting(
        "none", "Required order of messages: none, among the messages of one key, or among all"
        " messages.",
        choices=("none", "key", "global"),
    )  # fmt: skip
    reply: bool = setting(
        False, "Whether the sender waits for a result that the receiver computes."
    )
    consumer_down: bool = setting(True, "Whether sending must succeed while the consumer is down.")
    bursts: bool = setting(
        False, "Whether bursts must be buffered instead of slowing senders down."
    )
    semantics: bool = setting(
        False, "Whether messages have their own priorities, expiry times or routing."
    )
    lifetime_s: float = setting(
        float(7 * SECONDS_PER_DAY),
        "Time for which a message is useful.",
        0,
        1e10,
        name="lifetime",
        unit="s",
    )
    database: str = setting(
        "none", "Database of the sender: none, one that is there already, or one whose"
        " transactions must also commit the messages.",
        choices=("none", "there", "transaction"),
    )  # fmt: skip
    same_host: bool = setting(
        False, "Whether senders and receivers run on one host and can share a directory there."
    )
    shared_files: bool = setting(
        False,
        "Whether senders and receivers can mount one file system in one region, and a team"
        " can operate it.",
    )
    hops: int = setting(1, "Number of services that call each other in a row.", 1, 1000)
    steps: int = setting(
        1, "Number of steps of one process that are retried or undone together.", 1, 10_000
    )
    waits: bool = setting(False, "Whether the process waits hours to weeks for timers or people.")
    stateful: bool = setting(
        False, "Whether results depend on several messages, as windows, joins and aggregates do."
    )


DERIVED: Final[Mapping[str, tuple[str, str, float]]] = {
    "bytes_per_second": ("messages_per_second", "message_bytes", 1),
    "bytes_per_day": ("messages_per_second", "message_bytes", SECONDS_PER_DAY),
}
"""Facts that are the product of two inputs and a factor, by name."""

UNITS: Final[Mapping[str, str]] = {"bytes_per_second": "bytes/s", "bytes_per_day": "bytes/day"}


def fact_of(workload: Workload) -> Callable[[str], Fact]:
    """Return a function from the name of an answer or a derived fact to its value."""

    def fact(name: str) -> Fact:
        derived = DERIVED.get(name)
        if derived is None:
            value: Fact = getattr(workload, name)
            return value
        one, other, factor = derived
        return float(getattr(workload, one) * getattr(workload, other) * factor)

    return fact


Relation = Literal["=", "≠", "≥", ">", "≤", "<"]
Effect = Literal["for", "note", "caveat", "against"]
Layer = Literal["transport", "computation", "coordination"]

EFFECTS: Final[Mapping[Effect, str]] = {
    "for": "speaks for",
    "note": "matters to",
    "caveat": "is a caveat for",
    "against": "rules out",
}
"""Effects of rules, in the order in which reasons are shown, with their words for questions."""
_RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": eq, "≠": ne, "≥": ge, ">": gt, "≤": le, "<": lt,
}  # fmt: skip
_INFOS: Final[Mapping[str, SettingInfo]] = {info.attribute: info for info in describe(Workload)}
_WORDS: Final[Mapping[str, Fact]] = {
    "yes": True,
    "no": False,
    "max.message.bytes": LogConfig().max_message_bytes,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Technology that may be recommended.

    `part` names the matching part of Penstock; `present` states whether Penstock has it.
    """

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
        """Condition as text, such as `consumers ≥ 2` or `replay = yes`."""
        return f"{self._name} {self.relation} {self._shown(self.value)}"

    def found(self, fact: Callable[[str], Fact]) -> str:
        """Return the answer as text, for numbers with the threshold.

        Examples: `consumers 3 ≥ 2`, `replay: yes`.
        """
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
    """Rule of the table; `subject` is unique among the rules of a candidate."""

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
    """Common combination of technologies.

    It is shown if one of `with_any` is recommended and all tests hold. An empty name in `with_any`
    stands for no recommendation.
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
    """Parse tests from text with commas between them: names of `[tests]`, or comparisons."""
    found = []
    for part in filter(None, when.split(", ")):
        fact, relation, value = _DATA["tests"].get(part, part).split(" ")
        found.append(Test(fact, relation, _value(value)))
    return tuple(found)


CANDIDATES: Final[Mapping[str, Candidate]] = {
    name: Candidate(id=name, **{key: row[key] for key in row if key != "rules"})
    for name, row in ((name, _DATA["candidate"][name]) for name in _DATA["order"])
}
"""Candidates by id, cheaper ones first: of equally good transports, the first is recommended."""
RULES: Final[tuple[Rule, ...]] = tuple(
    [
        Rule(
            candidate=name, subject=subject, effect=effect, when=_tests(when), reason=reason,
            source=SOURCES[source],
        )
        for name, row in _DATA["candidate"].items()
        for effect, subject, when, source, reason in row["rules"]
    ]
)  # fmt: skip
COMBINATIONS: Final[tuple[Combination, ...]] = tuple(
    [
        Combination(
            name=row["name"], label=row["label"], with_any=frozenset(row["with"]),
            when=_tests(row["when"]), how=row["how"],
            source=SOURCES.get(row["source"], row["source"]),
        )
        for row in _DATA["combination"]
    ]
)  # fmt: skip
