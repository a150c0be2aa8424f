"""Effect of single answers: their thresholds, and changes of the recommendation.

Each answer is flipped in turn. Yes-or-no answers and choices are tried in all their values.
Numbers are tried on and beside every threshold of a rule, upwards and downwards from the given one,
until the recommendation changes. A threshold of a product, such as bytes a day, is divided by its
other factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor, inf, nextafter
from typing import Any

from penstock.base.settings import SettingInfo, describe
from penstock.planner.choosing.judging import Choice, judge
from penstock.planner.choosing.rules import CANDIDATES, EFFECTS, RULES
from penstock.planner.choosing.workload import DERIVED, Workload
from penstock.planner.quantities import format_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    input_name: str
    attribute: str
    answer: str
    value: Any
    choice: Choice


def changes(workload: Workload) -> tuple[Change, ...]:
    """Return all single answers that change the recommendation, for numbers the nearest ones."""
    found: list[Change] = []
    now = judge(workload).recommended
    for info in describe(Workload):
        for tried in _ladders(info, workload):
            for value, answer in tried:
                choice = judge(replace(workload, **{info.attribute: value}))
                if choice.recommended != now:
                    found.append(
                        Change(
                            input_name=info.name,
                            attribute=info.attribute,
                            answer=answer,
                            value=value,
                            choice=choice,
                        )
                    )
                    break
    return tuple(found)


def _ladders(info: SettingInfo, workload: Workload) -> Iterator[list[tuple[Any, str]]]:
    """Yield lists of values with their texts; the first effective value of each list counts."""
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
    text = format_quantity(at, info.unit)
    if info.type_name == "int":
        steps = [(ceil(at), "at least"), (floor(at) + 1, "at least")]
        return _allowed(info, [(n, f"{w} {format_quantity(n, info.unit)}") for n, w in steps])
    beside = nextafter(at, inf)
    return _allowed(info, [(at, f"at least {text}"), (beside, f"more than {text}")])


def _downwards(info: SettingInfo, at: float) -> list[tuple[Any, str]]:
    text = format_quantity(at, info.unit)
    if info.type_name == "int":
        steps = [(floor(at), "at most"), (ceil(at) - 1, "at most")]
        return _allowed(info, [(n, f"{w} {format_quantity(n, info.unit)}") for n, w in steps])
    beside = nextafter(at, -inf)
    return _allowed(info, [(at, f"at most {text}"), (beside, f"less than {text}")])


def _allowed(info: SettingInfo, values: list[tuple[Any, str]]) -> list[tuple[Any, str]]:
    least = -inf if info.minimum is None else info.minimum
    most = inf if info.maximum is None else info.maximum
    return [value for value in values if least <= value[0] <= most]


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
