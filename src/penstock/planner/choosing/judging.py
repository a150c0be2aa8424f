"""Application of the rules: reasons, a verdict for each candidate, and the recommendation.

A candidate does not fit if a rule speaks against it, fits with a caveat if one has a caveat, and
fits otherwise. Of the fitting transports the one with the fewest caveats is recommended; ties go to
the one that is cheaper to run. A stream processor or a workflow engine needs a transport.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from penstock.planner.choosing.rules import CANDIDATES, COMBINATIONS, RULES, Combination, Rule
from penstock.planner.choosing.workload import Workload, fact_of

Fit = Literal["fits", "fits with a caveat", "does not fit"]
NOTHING: Final = "nothing fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    rule: Rule
    decided_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    candidate: str
    fit: Fit
    reasons: tuple[Reason, ...]

    def of(self, effect: str) -> tuple[Reason, ...]:
        return tuple([reason for reason in self.reasons if reason.rule.effect == effect])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Verdicts by candidate, the recommended transport, and the additions on top of it."""

    verdicts: Mapping[str, Verdict]
    transport: str | None
    on_top: tuple[str, ...]

    @property
    def recommended(self) -> tuple[str, ...]:
        """Recommended ids; empty if nothing fits.

        A workflow engine carries its own messages; a processor needs the log under it.
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
