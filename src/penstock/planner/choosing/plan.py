"""Plan of a choice: reasons, verdicts, the recommendation, and answers that would change it.

A candidate does not fit if a rule is against it. It fits with a caveat if a rule has a caveat, and
fits otherwise. A candidate is a transport, which carries messages, or a computation or coordination
on top of one, such as a stream processor or a workflow engine. The plan recommends the fitting
transport with the fewest caveats; of equals, the one that is cheaper to run.

The plan also finds single answers that change the recommendation. It tries all values of yes-or-no
questions and of choices. For numbers it tries the thresholds of the rules and the values beside
them, upwards and downwards from the given number, until the recommendation changes. A rule may
compare a product, such as bytes per day, with its threshold. Then the threshold for one factor is
the rule's threshold divided by the other factor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, inf, nextafter
from operator import eq, ge, gt, le, lt, ne
from typing import Any, ClassVar, Final, Literal

from penstock.base.settings import SettingInfo, describe, setting
from penstock.planner.quantities import format_quantity, read_table
from penstock.planner.results import Chart, Figure, Finding, Plan, curves, fail, note, warn
from penstock.storage import LogConfig

# Questions about a workload, and the candidates and rules of `technologies.toml`.
#
# A rule has tests of answers, an effect on one candidate, a reason and a source. It applies if all
# of its tests hold. The table is read once, when this module is imported.


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
    """Return a function from the name of an answer to its value.

    It also knows derived facts, which are products of two answers, such as bytes per day.
    """

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
    """Rule about a candidate: if all tests in `when` hold, `effect` applies, for `reason`.

    `subject` is unique among the rules of a candidate.
    """

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


Fit = Literal["fits", "fits with a caveat", "does not fit"]
NOTHING: Final = "nothing fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    rule: Rule
    decided_by: str

    @property
    def text(self) -> str:
        return f"{self.rule.reason} ({self.decided_by})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    candidate: str
    fit: Fit
    reasons: tuple[Reason, ...]

    def of(self, effect: str) -> tuple[Reason, ...]:
        return tuple([reason for reason in self.reasons if reason.rule.effect == effect])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Verdicts by candidate, the recommended transport, and the fitting additions on top of it."""

    verdicts: Mapping[str, Verdict]
    transport: str | None
    on_top: tuple[str, ...]

    @property
    def recommended(self) -> tuple[str, ...]:
        """Ids of the recommended candidates; empty if nothing fits.

        A workflow engine alone needs no transport, because it carries its own messages. A stream
        processor needs one.
        """
        if self.on_top == ("workflow",):
            return self.on_top
        if self.transport is None:
            return ()
        return (self.transport, *self.on_top)

    @property
    def text(self) -> str:
        return " + ".join([CANDIDATES[name].label for name in self.recommended]) or NOTHING


def judge(workload: Workload) -> Choice:
    verdicts = {candidate: _verdict(candidate, workload) for candidate in CANDIDATES}
    fitting = [one for one, verdict in verdicts.items() if verdict.fit != "does not fit"]
    transports = [name for name in fitting if CANDIDATES[name].layer == "transport"]
    return Choice(
        verdicts=verdicts,
        transport=min(
            transports, key=lambda one: len(verdicts[one].of("caveat")), default=None
        ),
        on_top=tuple([name for name in fitting if CANDIDATES[name].layer != "transport"]),
    )  # fmt: skip


def _verdict(candidate: str, workload: Workload) -> Verdict:
    fact = fact_of(workload)
    reasons = [
        Reason(rule=rule, decided_by="; ".join([test.found(fact) for test in rule.when]))
        for rule in RULES
        if rule.candidate == candidate and all([test.holds(fact) for test in rule.when])
    ]
    effects = {reason.rule.effect for reason in reasons}
    fit: Fit = "fits"
    if "against" in effects:
        fit = "does not fit"
    elif "caveat" in effects:
        fit = "fits with a caveat"
    return Verdict(candidate=candidate, fit=fit, reasons=tuple(reasons))


def combinations(workload: Workload, choice: Choice) -> tuple[Combination, ...]:
    fact = fact_of(workload)
    taken = set(choice.recommended) or {""}
    return tuple(
        [
            combination
            for combination in COMBINATIONS
            if taken & combination.with_any and all([test.holds(fact) for test in combination.when])
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    info: SettingInfo
    answer: str
    value: Any
    choice: Choice


def changes(workload: Workload) -> tuple[Change, ...]:
    """Return single answers that change the recommendation; for numbers the nearest in each
    direction.
    """
    found: list[Change] = []
    now = judge(workload).recommended
    for info in describe(Workload):
        for tried in _ladders(info, workload):
            for value, answer in tried:
                choice = judge(replace(workload, **{info.attribute: value}))
                if choice.recommended != now:
                    found.append(Change(info=info, answer=answer, value=value, choice=choice))
                    break
    return tuple(found)


def _ladders(info: SettingInfo, workload: Workload) -> Iterator[list[tuple[Any, str]]]:
    """Yield lists of other values of an answer, to find those that change the recommendation.

    Each value has its text. Numbers are listed upwards and downwards from the given one. The caller
    takes from each list the first value that changes the recommendation.
    """
    given = getattr(workload, info.attribute)
    if isinstance(given, bool):
        yield [(not given, "no" if given else "yes")]
    elif isinstance(given, str):
        yield from ([(word, word)] for word in info.choices if word != given)
    else:
        steps = sorted(_thresholds(info, workload))
        yield [upward for at in steps for upward in _upwards(info, at) if upward[0] > given]
        yield [
            downward
            for at in reversed(steps)
            for downward in _downwards(info, at)
            if downward[0] < given
        ]


def _thresholds(info: SettingInfo, workload: Workload) -> set[float]:
    found: set[float] = set()
    for test in [test for rule in RULES for test in rule.when]:
        if isinstance(test.value, (bool, str)):
            continue
        if test.fact == info.attribute:
            found.add(float(test.value))
        elif info.attribute in DERIVED.get(test.fact, ()):
            one, other, factor = DERIVED[test.fact]
            rest = other if one == info.attribute else one
            found.add(test.value / (getattr(workload, rest) * factor))
    return found


def _upwards(info: SettingInfo, at: float) -> list[tuple[Any, str]]:
    if info.type_name == "int":
        return _allowed(info, at, [(ceil(at), "at least"), (floor(at) + 1, "at least")])
    return _allowed(info, at, [(at, "at least"), (nextafter(at, inf), "more than")])


def _downwards(info: SettingInfo, at: float) -> list[tuple[Any, str]]:
    if info.type_name == "int":
        return _allowed(info, at, [(floor(at), "at most"), (ceil(at) - 1, "at most")])
    return _allowed(info, at, [(at, "at most"), (nextafter(at, -inf), "less than")])


def _allowed(
    info: SettingInfo, at: float, steps: list[tuple[float, str]]
) -> list[tuple[Any, str]]:  # fmt: skip
    """Return the values of `steps` that are within the input's bounds, with their texts.

    The text of a float shows the threshold `at`, and not the value just beside it.
    """
    least = -inf if info.minimum is None else info.minimum
    most = inf if info.maximum is None else info.maximum
    return [
        (value, f"{word} {format_quantity(value if isinstance(value, int) else at, info.unit)}")
        for value, word in steps
        if least <= value <= most
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    info: SettingInfo
    thresholds: tuple[str, ...]


def questions() -> tuple[Question, ...]:
    return tuple([Question(info=info, thresholds=_lines(info)) for info in describe(Workload)])


def _lines(info: SettingInfo) -> tuple[str, ...]:
    names = {info.attribute, *(name for name, of in DERIVED.items() if info.attribute in of)}
    lines: dict[tuple[str, str], list[str]] = {}
    for rule in RULES:
        if any([test.fact in names for test in rule.when]):
            key = (rule.condition, EFFECTS[rule.effect])
            lines.setdefault(key, []).append(CANDIDATES[rule.candidate].label)
    return tuple([f"{when}: {effect} {', '.join(whom)}" for (when, effect), whom in lines.items()])


_OWN: Final = "Penstock: its features"
_RULE: Final = (
    "the transport with the fewest caveats, of those that no rule is against; of equals,"
    " the one that is cheaper to run"
)


def plan_choice(workload: Workload) -> Plan:
    choice = judge(workload)
    recommended = _recommendation(workload, choice)
    figures = [*recommended, *_changes(workload)]
    for verdict in choice.verdicts.values():
        figures += _reasons(verdict)
    return Plan(
        title=f"recommended for this workload: {choice.text}",
        inputs=workload,
        figures=tuple(figures),
        findings=tuple(_findings(choice)),
        charts=(_chart(choice),),
        answers=tuple([figure.name for figure in recommended]),
    )


def _recommendation(workload: Workload, choice: Choice) -> list[Figure]:
    rows = [("recommendation", "recommended", choice.text, _RULE, SOURCES["thresholds"])]
    if choice.transport is not None and choice.transport not in choice.recommended:
        label = CANDIDATES[choice.transport].label
        rows.append(("transport", "transport around it", label, _RULE, SOURCES["thresholds"]))
    for combination in combinations(workload, choice):
        when = " and ".join([test.text for test in combination.when]) or "always"
        text = f"{combination.label}: {combination.how}"
        rows.append((combination.name, "usual combination", text, when, combination.source))
    for name in choice.recommended:
        found = CANDIDATES[name]
        there = "present" if found.present else "not present"
        rows.append((f"{_snake(name)}_part", f"{found.label} in Penstock", found.part, there, _OWN))
    return [
        Figure(name, label, value, "", formula, source, group="recommendation")
        for name, label, value, formula, source in rows
    ]


def _changes(workload: Workload) -> list[Figure]:
    return [
        Figure(
            f"change_{change.info.attribute}_{place}", f"{change.info.name}: {change.answer}",
            change.choice.text, "", "the same rules, with only this answer changed",
            _OWN_COMPUTATION, group="single answers that would change the recommendation",
        )
        for place, change in enumerate(changes(workload), 1)
    ]  # fmt: skip


_OWN_COMPUTATION: Final = (
    "computed: all other answers, and numbers at each threshold, are tried one by one"
)


def _reasons(verdict: Verdict) -> list[Figure]:
    candidate = CANDIDATES[verdict.candidate]
    prefix, group = _snake(verdict.candidate), f"{candidate.label}: {verdict.fit}"
    counts = [f"{len(verdict.of(effect))} {effect}" for effect in EFFECTS]
    against = "any reason against: does not fit; else any caveat: fits with a caveat; else fits"
    return [
        Figure(
            f"{prefix}_verdict", candidate.label, verdict.fit, "", ", ".join(counts), against,
            group=group,
        ),
        *[
            Figure(
                f"{prefix}_{_snake(reason.rule.subject)}", f"{effect}: {reason.rule.subject}",
                reason.text, "", reason.rule.condition, reason.rule.source, group=group,
            )
            for effect in EFFECTS
            for reason in verdict.of(effect)
        ],
    ]  # fmt: skip


def _findings(choice: Choice) -> list[Finding]:
    if not choice.recommended:
        return [
            fail(
                "recommendation",
                f"{NOTHING}: no technology serves all of these answers",
                "change one of the answers above, or split the messages into two streams",
            )
        ]
    found: list[Finding] = []
    for name in choice.recommended:
        candidate = CANDIDATES[name]
        found += [
            warn(f"{candidate.label}: {reason.rule.subject}", reason.text)
            for reason in choice.verdicts[name].of("caveat")
        ]
        if not candidate.present:
            part, examples = candidate.part, candidate.examples
            found.append(note(candidate.label, f"in Penstock: {part}", f"for example {examples}"))
    return found


def _chart(choice: Choice) -> Chart:
    labels = [CANDIDATES[candidate].label for candidate in choice.verdicts]
    counts = {
        effect: [len(verdict.of(effect)) for verdict in choice.verdicts.values()]
        for effect in ("for", "caveat", "against")
    }
    return Chart(
        title="reasons by candidate", x_label="", y_label="reasons", kind="bar",
        curves=curves(labels, counts),
    )  # fmt: skip


def _snake(words: str) -> str:
    return words.replace(" ", "_").replace("-", "_")
