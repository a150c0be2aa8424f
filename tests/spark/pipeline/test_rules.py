"""Rules as SQL: whatever their names and conditions are, rows get the verdict that they ask for."""

from __future__ import annotations

import pytest
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.pipeline import rules
from penstock.spark.pipeline.spec import Otherwise, Rule, Step

pytestmark = pytest.mark.spark

NAMES = ("it's", "a \\ b\\", "`tick`", "two\nlines", 'say "no"', "100 % ${x}")


def rule(name: str, condition: str, otherwise: Otherwise = "drop") -> Rule:
    return Rule(name=name, condition=condition, otherwise=otherwise)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql(
        "select * from values (1, 'a', null), (-1, 'it''s', null), (null, '\\\\', null), "
        "(2, 'b', 'torn') as rows(n, `odd ``name`, _error)"
    )


@pytest.mark.parametrize("name", NAMES)
def test_names_and_conditions_come_back_as_they_were_written(rows: DataFrame, name: str) -> None:
    asked = rule(name, "n > 0 -- a comment", "dead-letter")
    judged = rules.judged(rows, [asked], error="_error", on_error="park")
    assert judged.columns == ["n", "odd `name", *rules.VERDICT]
    found = {row["n"]: tuple(row)[2:] for row in judged.collect()}
    broken = (name, f"{name}: not met: n > 0 -- a comment", "dead-letter")
    assert found == {
        1: (None, None, None),
        -1: broken,
        None: broken,  # a condition that is null is not met
        2: (rules.UNDECODABLE, "torn", "park"),
    }
    wanted = rules.facts(Step(name="s", sql="", rules=(asked,)), judged, on_error="drop")
    counted = judged.agg(F.expr(wanted)).collect()[0][rules.FACTS]
    assert counted.asDict() == {rules.REJECTED + name: 2, rules.DEAD_LETTERS: 2}


def test_the_first_rule_that_is_broken_counts_and_warnings_never(rows: DataFrame) -> None:
    some = (
        rule("warned", "n < 2", "warn"),
        rule("first", "`odd ``name` != 'it\\'s'", "fail"),
        rule("second", "n > 0", "drop"),
    )
    judged = rules.judged(rows, some, error=None, on_error="")
    found = {row["n"]: (row[rules.RULE], row[rules.OTHERWISE]) for row in judged.collect()}
    assert found == {
        1: (None, None), -1: ("first", "fail"), None: ("second", "drop"), 2: (None, None)
    }  # fmt: skip
    kept = [row["n"] for row in rules.accepted(judged).collect()]
    assert sorted(kept) == [1, 2]
    assert [row["n"] for row in rules.met(rows, some).collect()] == kept
    wanted = rules.facts(Step(name="s", sql="", rules=some), judged, on_error="drop")
    row = judged.agg(F.expr(wanted)).collect()[0][rules.FACTS]
    assert row["warned.warned"] == 1
    assert tuple(row[rules.BROKEN]) == ("first", "first: not met: `odd ``name` != 'it\\'s'")


def test_a_condition_is_one_expression(rows: DataFrame) -> None:
    with pytest.raises(ParseException):
        rules.met(rows, [rule("open", "n > 0 or (n < 0")])
