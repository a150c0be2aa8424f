"""Choice as a plan: the recommendation, every reason, and the changes by single answers."""

from __future__ import annotations

from typing import Final

from penstock.planner.choosing.answers import changes
from penstock.planner.choosing.judging import NOTHING, Choice, Verdict, combinations, judge
from penstock.planner.choosing.rules import CANDIDATES, EFFECTS, SOURCES
from penstock.planner.choosing.workload import Workload
from penstock.planner.results import Chart, Curve, Figure, Finding, Plan, fail, note, warn

_OWN: Final = "Penstock: its features"
_RULE: Final = (
    "of the transports that nothing speaks against, the one with the fewest caveats;"
    " of equals the one that is cheaper to run"
)


def plan_choice(workload: Workload) -> Plan:
    choice = judge(workload)
    recommended = _recommendation(workload, choice)
    figures = [*recommended, *_changes(workload)]
    for verdict in choice.verdicts.values():
        figures += _reasons(verdict)
    return Plan(
        title=f"what carries it: {choice.text}",
        inputs=workload,
        figures=tuple(figures),
        findings=tuple(_findings(choice)),
        charts=(_chart(choice),),
        answers=tuple([figure.name for figure in recommended]),
    )


def _recommendation(workload: Workload, choice: Choice) -> list[Figure]:
    def row(name: str, label: str, value: str, formula: str, source: str) -> Figure:
        return Figure(
            name=name,
            label=label,
            value=value,
            formula=formula,
            source=source,
            group="recommendation",
        )

    found = [row("recommendation", "take", choice.text, _RULE, SOURCES["thresholds"])]
    if choice.transport is not None and choice.transport not in choice.recommended:
        label = CANDIDATES[choice.transport].label
        found.append(row("transport", "around it", label, _RULE, SOURCES["thresholds"]))
    for combination in combinations(workload, choice):
        when = " and ".join([test.text for test in combination.when]) or "always"
        text = f"{combination.label}: {combination.how}"
        found.append(row(combination.name, "usual together", text, when, combination.source))
    for name in choice.recommended:
        candidate = CANDIDATES[name]
        found.append(
            row(
                f"{_snake(name)}_part",
                f"{candidate.label} in Penstock",
                candidate.part,
                "there" if candidate.present else "not there",
                _OWN,
            )
        )
    return found


def _changes(workload: Workload) -> list[Figure]:
    return [
        Figure(
            name=f"change_{change.attribute}_{place}",
            label=f"{change.input_name}: {change.answer}",
            value=change.choice.text,
            formula="the same rules, with this one answer instead",
            source=_OWN_COMPUTATION,
            group="which single answer would change it",
        )
        for place, change in enumerate(changes(workload), 1)
    ]


_OWN_COMPUTATION: Final = "computed: every answer is flipped, numbers at each threshold"


def _reasons(verdict: Verdict) -> list[Figure]:
    candidate = CANDIDATES[verdict.candidate]
    prefix, group = _snake(verdict.candidate), f"{candidate.label}: {verdict.fit}"
    counts = [f"{len(verdict.of(effect))} {effect}" for effect in EFFECTS]
    found = [
        Figure(
            name=f"{prefix}_verdict",
            label=candidate.label,
            value=verdict.fit,
            formula=", ".join(counts),
            source="any reason against: does not fit; any caveat: fits with a caveat",
            group=group,
        )
    ]
    for effect in EFFECTS:
        found += [
            Figure(
                name=f"{prefix}_{_snake(reason.rule.subject)}",
                label=f"{effect}: {reason.rule.subject}",
                value=f"{reason.rule.reason} ({reason.decided_by})",
                formula=reason.rule.condition,
                source=reason.rule.source,
                group=group,
            )
            for reason in verdict.of(effect)
        ]
    return found


def _findings(choice: Choice) -> list[Finding]:
    if not choice.recommended:
        return [
            fail(
                "recommendation",
                f"{NOTHING}: no single technology serves all of these answers",
                "change one of the answers above, or split it into two streams",
            )
        ]
    found: list[Finding] = []
    for name in choice.recommended:
        candidate, verdict = CANDIDATES[name], choice.verdicts[name]
        found += [
            warn(
                f"{candidate.label}: {reason.rule.subject}",
                f"{reason.rule.reason} ({reason.decided_by})",
            )
            for reason in verdict.of("caveat")
        ]
        if not candidate.present:
            found.append(
                note(
                    candidate.label,
                    f"in Penstock: {candidate.part}",
                    f"for example {candidate.examples}",
                )
            )
    return found


def _chart(choice: Choice) -> Chart:
    labels = tuple([CANDIDATES[candidate].label for candidate in choice.verdicts])
    return Chart(
        title="reasons by candidate",
        x_label="",
        y_label="reasons",
        kind="bar",
        curves=tuple(
            [
                Curve(
                    label=effect,
                    x=labels,
                    y=tuple([len(verdict.of(effect)) for verdict in choice.verdicts.values()]),
                )
                for effect in ("for", "caveat", "against")
            ]
        ),
    )


def _snake(words: str) -> str:
    return words.replace(" ", "_").replace("-", "_")
