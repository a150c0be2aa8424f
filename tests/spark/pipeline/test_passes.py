"""Pass that counts verdicts, and frames kept in memory, as the plan shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipeline.analysis import plan
from penstock.spark.pipeline.parsing import load

pytestmark = pytest.mark.spark

TEXT = """\
[source.a]
topic = "a"
format = "json"
schema = "id bigint, name string, at timestamp"
[source.a.expect]
"named" = "name is not null"
[step.s]
{step}
[sink.out]
from = "s"
{to}
[errors]
dead_letters = "dead"
"""
TABLE = 'table = "out"'
UPSERT = TABLE + '\nmode = "upsert"\nkeys = "id"'
SEVERAL = TABLE + '\n[sink.also]\nfrom = "s"\ntopic = "also"'
ORDERED = 'topic = "out"\nordered = true\nkey = "name"'
COUNTED = "not kept; rules are counted while out is written"
CHANGING = "kept in memory: step s may give other rows when it runs again"


@pytest.mark.parametrize(
    ("step", "to", "said"),
    [
        ('sql = "select id, sha2(name, 256) as n from a where id > 1"', TABLE, COUNTED),
        ("sql = \"select id, explode(split(name, ' ')) as n from a\"", TABLE, COUNTED),
        ("sql = \"select id, name from a union all select 1, 'x'\"", TABLE, COUNTED),
        ('sql = "select id, name from a"', SEVERAL, COUNTED),
        ('sql = "select id, _record from a"\nexpect = { "one" = "id > 0" }', TABLE, COUNTED),
        ('sql = "select id from a"', 'topic = "out"', COUNTED),
        ('sql = "select name, _record from a"', ORDERED, "not kept"),
        ('sql = "select id from a"', UPSERT, COUNTED),
        ('sql = "select id, at from a"', UPSERT + '\norder_by = "at"', COUNTED),
        ('sql = "select id, struct(at) as at from a"', UPSERT + '\norder_by = "at"', "not kept"),
        ('sql = "select id, rand() as r from a"', TABLE, CHANGING),
        ('sql = "select id, now() as r from a"', TABLE, CHANGING),
        ('python = "steps.py:same"\ninputs = ["a"]', TABLE, "kept in memory: step s is Python"),
    ],
)
def test_the_plan_says_how_batches_are_read(
    tmp_path: Path, spark: SparkSession, step: str, to: str, said: str
) -> None:
    (tmp_path / "steps.py").write_text("def same(a):\n    return a\n")
    path = tmp_path / "p.toml"
    path.write_text(TEXT.format(step=step, to=to))
    (query,) = plan(load(path), spark).queries
    assert query.passes.startswith(said)
    assert ("counted" in query.passes) == ("counted" in said)
