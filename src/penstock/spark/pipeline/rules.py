"""Quality rules as columns: which rule a row breaks, and what that means for it.

A judged frame has three more columns: `_rule`, the first rule that the row breaks (null for a good
row; `undecodable` where its value could not be read), `_reason`, and `_otherwise`, what is to be
done with it. Rules that only warn are counted and never set these columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.pipeline.spec import HOLDING, KEEPING, RECORD, Rule, Source, Step

RULE: Final = "_rule"
REASON: Final = "_reason"
OTHERWISE: Final = "_otherwise"
VERDICT: Final = (RULE, REASON, OTHERWISE)
UNDECODABLE: Final = "undecodable"
REJECTED: Final = "rejected."
WARNED: Final = "warned."
LETTERS: Final = "letters"
WAITING: Final = "waiting"
BROKEN: Final = "broken"
PLACE: Final = ("topic", "partition", "offset")


def judged(
    frame: DataFrame, rules: Sequence[Rule], *, error: Column | None, on_error: str
) -> DataFrame:
    """The frame with its verdicts.

    Args:
        frame: rows with the columns that the rules name.
        error: why a row's value could not be read; null where it could.
        on_error: what happens to such rows.
    """
    broken = [(rule, ~_met(rule)) for rule in rules if rule.otherwise != "warn"]
    fine = F.lit(None).cast("string")
    rule_name = _first([(each, F.lit(rule.name)) for rule, each in broken], fine)
    otherwise = _first([(each, F.lit(rule.otherwise)) for rule, each in broken], fine)
    reason = _first(
        [(each, F.lit(f"{rule.name}: not met: {rule.condition}")) for rule, each in broken], fine
    )
    if error is not None:
        bad = error.isNotNull()
        rule_name = F.when(bad, F.lit(UNDECODABLE)).otherwise(rule_name)
        otherwise = F.when(bad, F.lit(on_error)).otherwise(otherwise)
        reason = F.when(bad, error).otherwise(reason)
    return frame.withColumns({RULE: rule_name, REASON: reason, OTHERWISE: otherwise})


def accepted(frame: DataFrame) -> DataFrame:
    """The good rows of a judged frame, as they were before."""
    return frame.where(F.col(RULE).isNull()).drop(*VERDICT)


def met(frame: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """The rows that meet every rule but those that only warn."""
    conditions = [_met(rule) for rule in rules if rule.otherwise != "warn"]
    return frame.where(reduce(lambda a, b: a & b, conditions)) if conditions else frame


def facts(part: Source | Step, *, on_error: str, columns: Sequence[str]) -> dict[str, Column]:
    """What to know of a judged frame, as aggregates that can be observed in any pass over it.

    `rejected.<rule>` and `warned.<rule>` are numbers of rows, as are `LETTERS` (to be
    dead-lettered) and `WAITING` (to be held). `BROKEN` is the first row that stops the batch, a
    struct of its rule, reason and record; it is there where a rule says `fail`.

    Args:
        part: whose rows they are.
        on_error: what happens to rows whose value could not be read.
        columns: those of the frame.
    """
    asked: dict[str, str] = {
        rule.name: rule.otherwise for rule in part.rules if rule.otherwise != "warn"
    }
    if isinstance(part, Source) and part.can_fail:
        asked[UNDECODABLE] = on_error
    found = {REJECTED + name: F.count_if(F.col(RULE) == name) for name in asked}
    for rule in part.rules:
        if rule.otherwise == "warn":
            found[WARNED + rule.name] = F.count_if(F.col(RULE).isNull() & ~_met(rule))
    fates = set(asked.values())
    if fates & KEEPING:
        found[LETTERS] = F.count_if(F.col(OTHERWISE) == "dead-letter")
    if fates & HOLDING:
        found[WAITING] = F.count_if(F.col(OTHERWISE).isin(*sorted(HOLDING)))
    if "fail" in fates:
        place = [F.col(RECORD)[name].alias(name) for name in PLACE] if RECORD in columns else []
        row = F.struct(*place, F.col(RULE), F.col(REASON))
        found[BROKEN] = F.min(F.when(F.col(OTHERWISE) == "fail", row))
    return found


def _met(rule: Rule) -> Column:
    return F.coalesce(F.expr(rule.condition), F.lit(False))


def _first(cases: Sequence[tuple[Column, Column]], default: Column) -> Column:
    chosen = default
    for condition, value in reversed(cases):
        chosen = F.when(condition, value).otherwise(chosen)
    return chosen
