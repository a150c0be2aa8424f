"""Quality rules as columns: the rule that a row breaks, the reason, and the action for the row.

A *judged frame* has three more columns. `RULE` is the first rule that the row breaks: null for a
good row, `undecodable` if its value could not be decoded. `REASON` is a text, and `OTHERWISE` the
action. Rules with the action `warn` only count rows. Columns are built as SQL texts, because each
column object would need its own call to Java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from penstock.spark.pipeline.protecting import SHREDDED
from penstock.spark.pipeline.spec import HOLDING, KEEPING, RECORD, Rule, Source, Step

RULE: Final = "_penstock_rule"
REASON: Final = "_penstock_reason"
OTHERWISE: Final = "_penstock_otherwise"
VERDICT: Final = (RULE, REASON, OTHERWISE)
UNDECODABLE: Final = "undecodable"
REJECTED: Final = "rejected."
WARNED: Final = "warned."
DEAD_LETTERS: Final = "letters"
WAITING: Final = "waiting"
BROKEN: Final = "broken"
GONE: Final = "shredded"
FACTS: Final = "facts"
PLACE: Final = ("topic", "partition", "offset")


def judged(
    frame: DataFrame, rules: Sequence[Rule], *, error: str | None, on_error: str
) -> DataFrame:
    """Return a frame with the columns `RULE`, `REASON` and `OTHERWISE`.

    Args:
        frame: rows with the columns that the rules name.
        error: the column with a decoding error or null, which the result does not have; None if the
            frame has no such column.
        on_error: the action for rows with a decoding error.
    """
    cases = [
        (
            f"not {_met(rule)}",
            _text(rule.name),
            _text(f"{rule.name}: not met: {rule.condition}"),
            _text(rule.otherwise),
        )
        for rule in rules
        if rule.otherwise != "warn"
    ]
    if error is not None:
        cases.insert(0, (f"{error} is not null", _text(UNDECODABLE), error, _text(on_error)))
    verdict = [
        f"{_first([(case[0], case[at]) for case in cases])} as {column}"
        for at, column in enumerate(VERDICT, 1)
    ]
    return frame.selectExpr("*" if error is None else f"* except ({error})", *verdict)


def accepted(frame: DataFrame) -> DataFrame:
    """Return the good rows of a judged frame, without the columns that `judged` added."""
    return frame.where(f"{RULE} is null").drop(*VERDICT, SHREDDED)


def met(frame: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Return the rows that meet every rule, except rules that only warn."""
    conditions = [_met(rule) for rule in rules if rule.otherwise != "warn"]
    return frame.where(" and ".join(conditions)) if conditions else frame


def facts(part: Source | Step, judged: DataFrame, *, on_error: str) -> str:
    """Return SQL that counts the rows of a judged frame; empty if there is nothing to count.

    The SQL is one struct of aggregates, named `FACTS`, so it can be observed in any pass. Its
    fields, each present if a rule or the source needs it:

        rejected.<rule>, warned.<rule>   rows that broke the rule
        DEAD_LETTERS, WAITING            rows to be dead-lettered, and rows to be held
        BROKEN                           first row that breaks a rule with `fail`: a struct of its
                                         record, rule and reason
        GONE                             values that are null because their key was deleted

    Args:
        part: the source or step that the rows come from.
        judged: the frame.
        on_error: the action for rows that could not be decoded.
    """
    asked: dict[str, str] = {
        rule.name: rule.otherwise for rule in part.rules if rule.otherwise != "warn"
    }
    if isinstance(part, Source) and part.can_fail:
        asked[UNDECODABLE] = on_error
    found = {REJECTED + name: f"count_if({RULE} = {_text(name)})" for name in asked}
    for rule in part.rules:
        if rule.otherwise == "warn":
            found[WARNED + rule.name] = f"count_if({RULE} is null and not {_met(rule)})"
    if isinstance(part, Source) and part.decrypts:
        found[GONE] = f"sum({SHREDDED})"
    fates = set(asked.values())
    if fates & KEEPING:
        found[DEAD_LETTERS] = f"count_if({OTHERWISE} = 'dead-letter')"
    if fates & HOLDING:
        waits = ", ".join(map(_text, sorted(HOLDING)))
        found[WAITING] = f"count_if({OTHERWISE} in ({waits}))"
    if "fail" in fates:
        place = [f"{RECORD}.{name}" for name in PLACE] if RECORD in judged.columns else []
        row = f"struct({', '.join([*place, RULE, REASON])})"
        found[BROKEN] = f"min(case when {OTHERWISE} = 'fail' then {row} end)"
    fields = ", ".join(f"{_text(name)}, {fact}" for name, fact in found.items())
    return f"named_struct({fields}) as {FACTS}" if found else ""


def _text(text: str) -> str:
    """Return a text as an SQL literal in which Spark replaces no variables (`${…}`)."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"


def _met(rule: Rule) -> str:
    # The condition may end with a comment.
    return f"coalesce(({rule.condition}\n), false)"


def _first(cases: Sequence[tuple[str, str]]) -> str:
    whens = " ".join(f"when {condition} then {value}" for condition, value in cases)
    return f"case {whens} end" if cases else "cast(null as string)"
