"""Errors that Spark finds, with their lines, and stateful steps, without a broker."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from penstock.spark.pipeline.analysis import plan, problems
from penstock.spark.pipeline.parsing import load, survey

pytestmark = pytest.mark.spark

TEXT = """\
[source.a]
topic = "a"
format = "json"
schema = "id bigint, name string, at timestamp"
time = "at"
delay = "1 minute"

[source.b]
topic = "b"
format = "json"
schema = "id bigint, at timestamp"
time = "at"
delay = "1 minute"

[source.t]
table = "t"

{steps}

[sink.out]
from = "s"
console = true

[errors]
dead_letters = "dead"
{errors}
"""
FIRST_STEP_LINE = 18


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("analysis")
    write_deltalake(str(made / "t"), pa.table({"id": [1], "city": ["Rome"]}))
    (made / "steps.py").write_text(
        "def same(a):\n    return a\ndef wrong(a):\n    return 5\ndef bad(a):\n    return 1 / 0\n"
    )
    return made


def write(folder: Path, steps: str, errors: str = "") -> Path:
    path = folder / "p.toml"
    path.write_text(TEXT.format(steps=steps, errors=errors))
    return path


@pytest.mark.parametrize(
    ("sql", "stateful"),
    [
        ("select id from a", False),
        ("select a.id, t.city from a join t on a.id = t.id", False),
        ("select a.id from a join (select max(id) as id from t) m on a.id = m.id", False),
        ("select id, at from a union all select id, at from b", False),
        ("select id, count(*) as n from a group by id", True),
        ("select window(at, '1 minute').start as w, count(*) as n from a group by 1", True),
        ("select a.id from a join b on a.id = b.id and b.at > a.at", True),
        ("select x.id from a x join a y on x.id = y.id", True),
        ("select distinct id from a", True),
        ("select id from a limit 5", True),
    ],
)
def test_what_needs_state(spark: SparkSession, folder: Path, sql: str, stateful: bool) -> None:
    output = "update" if "group by" in sql or "distinct" in sql else "append"
    spec = load(write(folder, f'[step.s]\nsql = """{sql}"""\noutput = "{output}"'))
    found = plan(spec, spark).queries
    (query,) = [query for query in found if "out" in query.sinks]
    assert (query.root == "s") is stateful


def sql(text: str, more: str = "") -> str:
    return f'[step.s]\nsql = """{text}"""\n{more}'


def python(function: str) -> str:
    return f'[step.s]\npython = "steps.py:{function}"\ninputs = ["a"]'


NO_RECORD = 'expect = {"x" = "id > 1"}'
WRONG_RULE = 'expect = {"x" = {that = "nope > 1", otherwise = "drop"}}'
RANKS = "select id, row_number() over (partition by id order by at) as place from a"


@pytest.mark.parametrize(
    ("steps", "line", "says"),
    [
        (sql("\nselect id,\n  nope\nfrom a"), 3, "nope"),
        (sql("\nselect id\nfrom a\nwhere >"), 4, "PARSE_SYNTAX"),
        (
            sql("select id from a", 'time = "at"\ndelay = "1 minute"'),
            2,
            "no column at; there are id",
        ),
        (sql("select id from a", WRONG_RULE), 2, "nope"),
        (sql("select id from a", NO_RECORD), 2, "dead-letter needs the column _record"),
        (python("wrong"), 1, "returned int, not a data frame"),
        (python("bad"), 1, "ZeroDivisionError"),
        (sql(RANKS), 1, "not defined on a stream"),
    ],
)
def test_what_spark_refuses_has_a_line(
    spark: SparkSession, folder: Path, steps: str, line: int, says: str
) -> None:
    found = problems(load(write(folder, steps)), spark)
    assert [(problem.line, says in str(problem)) for problem in found] == [
        (FIRST_STEP_LINE + line, True)
    ], found


def test_a_python_step_that_is_right(spark: SparkSession, folder: Path) -> None:
    steps = '[step.s]\npython = "steps.py:same"\ninputs = ["a"]\nexpect = {"x" = "id > 1"}'
    assert problems(load(write(folder, steps)), spark) == ()


def test_a_file_named_as_a_module_that_is_there(spark: SparkSession, folder: Path) -> None:
    (folder / "random.py").write_text("def same(a):\n    return a\n")
    steps = '[step.s]\npython = "random.py:same"\ninputs = ["a"]'
    (found,) = problems(load(write(folder, steps)), spark)
    assert "there is a module random already" in str(found)


def test_files_of_one_name_make_way_for_each_other(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1], "city": ["Rome"]}))
    (tmp_path / "steps.py").write_text("def other(a):\n    return a\n")
    assert problems(load(write(tmp_path, python("other"))), spark) == ()
    assert problems(load(write(folder, python("same"))), spark) == ()


def test_window_functions_behind_a_window(spark: SparkSession, folder: Path) -> None:
    steps = (
        "[step.w]\nsql = \"select window(at, '1 minute').start as m, id, count(*) as n from a"
        ' group by 1, 2"\noutput = "update"\n[step.s]\n'
        'sql = "select *, n / sum(n) over (partition by m) as share from w"'
    )
    assert problems(load(write(folder, steps)), spark) == ()


def test_rules_that_need_rows_one_by_one_are_not_for_stateful_steps(
    spark: SparkSession, folder: Path
) -> None:
    steps = """[step.s]
        sql = "select id, count(*) as n from a group by id"
        output = "update"
        expect = {"few" = {that = "n < 10", otherwise = "fail"}}"""
    (found,) = problems(load(write(folder, steps)), spark)
    assert found.line == FIRST_STEP_LINE + 3
    assert "move the rule to a later step" in str(found)
    assert problems(load(write(folder, steps.replace("fail", "drop"))), spark) == ()


def test_records_that_wait_and_state_do_not_go_together(spark: SparkSession, folder: Path) -> None:
    steps = '[step.s]\nsql = "select id, count(*) as n from a group by id"'
    found = problems(load(write(folder, steps, 'on_invalid = "park"')), spark)
    assert [problem.where for problem in found] == ["step.s"]
    assert "late or out of order" in str(found[0])


EVERYTHING = '''\
nam = "x" #!nam
[source.orders]
topic = "orders"
format = "json" #!errors.dead_letters
schema = "id bigint, customer strin" #!source.orders.schema
expect = {"w" = "also wrong ("} #!source.orders.expect.w
[source.clicks]
topic = "clicks"
format = "json"
schema = "id bigint"
starts = "latest" #!source.clicks.starts
[source.clicks.expect]
"big" = {that = "nope > 1", otherwise = "warn"} #!source.clicks.expect.big
[source.other]
topic = "other"
format = "jsn" #!source.other.format
[step.columns]
sql = """
select id,
  nope #!step.columns.sql
from clicks
"""
output = "all" #!step.columns.output
[step.behind] # what it reads is not known, but it cannot be read itself
sql = """
select *
from other
wher id > 1 and""" #!step.behind.sql
[step.round] #!step.round
sql = "select * from about"
[step.about]
sql = "select * from round join nowhere on" #!step.about.sql #!step.about.sql
[step.fine]
sql = "select id as num from clicks"
[sink.lost]
from = "fin" #!sink.lost.from
table = "lost"
[sink.topic]
from = "fine"
topic = "orders" #!sink.topic.topic
key = "nokey" #!sink.topic.key
headers = "nor this" #!sink.topic.headers
[sink.table]
from = "fine"
table = "x"
mode = "upsert"
keys = ["id"] #!sink.table.keys
'''


def test_mistakes_of_all_kinds_are_reported_at_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(re.sub(r"( #!\S+)+$", "", EVERYTHING, flags=re.MULTILINE))
    found = survey(path)
    more = problems(found.spec, spark, reported=found.problems, unsure=found.unsure)
    marked = [
        (number, where)
        for number, line in enumerate(EVERYTHING.splitlines(), 1)
        for where in line.split(" #!")[1:]
    ]
    every = (*found.problems, *more)
    assert sorted((problem.line, problem.where) for problem in every) == sorted(marked)
    assert all(problem.fix and "\n" not in str(problem) for problem in every)


def test_a_schema_that_cannot_be_inferred(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(
        '[source.a]\ntopic = "a"\nformat = "json"\nschema = "infer"\n'
        '[sink.out]\nfrom = "a"\nconsole = true\n[errors]\non_invalid = "drop"\n'
    )
    (found,) = problems(load(path, bootstrap="127.0.0.1:1"), spark)
    assert str(found).startswith(
        f"{path}:4: source.a.schema: schema = 'infer': no broker of 127.0.0.1:1 responds; "
    )
    assert found.fix
