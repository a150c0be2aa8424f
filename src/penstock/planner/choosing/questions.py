"""The inputs as questions for a terminal, each with the thresholds that hang on its answer."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.settings import SettingInfo, describe
from penstock.planner.choosing.candidates import CANDIDATES
from penstock.planner.choosing.rules import RULES
from penstock.planner.choosing.workload import DERIVED, Workload

_EFFECTS = {
    "for": "speaks for",
    "note": "matters to",
    "caveat": "is a caveat for",
    "against": "rules out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One input, and a line for each rule that looks at it."""

    info: SettingInfo
    thresholds: tuple[str, ...]


def questions() -> tuple[Question, ...]:
    """All questions, in the order of the inputs."""
    return tuple([Question(info=info, thresholds=_thresholds(info)) for info in describe(Workload)])


def _thresholds(info: SettingInfo) -> tuple[str, ...]:
    names = {info.attribute, *(name for name, of in DERIVED.items() if info.attribute in of)}
    lines: dict[tuple[str, str], list[str]] = {}
    for rule in RULES:
        if any([test.fact in names for test in rule.when]):
            key = (rule.condition, _EFFECTS[rule.effect])
            lines.setdefault(key, []).append(CANDIDATES[rule.candidate].label)
    return tuple([f"{when}: {effect} {', '.join(whom)}" for (when, effect), whom in lines.items()])
