"""Views that a SQL text reads: names that replace tables, and no others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipeline.sql_views import ViewRead, views_read, words_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READS: list[tuple[str, set[str]]] = [
    ("select 1", set()),
    ("select * from orders", {"orders"}),
    ("SELECT o.id FROM orders AS o JOIN items i ON o.id = i.id", {"orders", "items"}),
    ("select * from a, b c, d as e(x, y), f", {"a", "b", "d", "f"}),
    ("select * from a natural left outer join b", {"a", "b"}),
    ("select * from a join b on a.x = b.x, c", {"a", "b", "c"}),
    ("select * from a cross join lateral (select a.x from b) c", {"a", "b"}),
    ("select x, (select max(y) from b) from a where z in (select z from c)", {"a", "b", "c"}),
    ("select * from (select * from orders) o", {"orders"}),
    ("select * from ((a join b on true) join c on true)", {"a", "b", "c"}),
    ("select * from a union all select * from b except (select * from c)", {"a", "b", "c"}),
    ("with o as (select * from orders) select * from o", {"orders"}),
    ("with orders as (select * from orders) select * from orders", {"orders"}),
    ("with o as (select 1), p(x, y) as (select * from o, a) select * from p, o", {"a"}),
    ("with recursive r(n) as (select 1 union all select n + 1 from r) select * from r, a", {"a"}),
    ("select * from (with o as (select 1) select * from o) x, o", {"o"}),
    ("with o as (with p as (select * from a) select * from p) select * from o, p", {"a", "p"}),
    ("select extract(day from at), trim(both 'x' from name) from orders", {"orders"}),
    ("select a is distinct from b, a is not distinct from c from orders", {"orders"}),
    ("select substring(name from 2), overlay(n placing 'x' from 1) from orders", {"orders"}),
    ("select count(distinct a) from orders", {"orders"}),
    ("select 'from nothing', \"from nobody\" from orders", {"orders"}),
    (r"select 'it\'s from x', r'\' from orders", {"orders"}),
    ("select 'it''s from x' from orders", {"orders"}),
    ("select 1 -- from a\nfrom orders -- , b", {"orders"}),
    ("select /* from a /* nested */ from b */ 1 from orders", {"orders"}),
    ("select /*+ BROADCAST(b) */ * from a join b on true", {"a", "b"}),
    ("select * from `orders`, `odd ``name`", {"orders", "odd `name"}),
    ("select * from catalog.orders, spark_catalog.a.b", set()),
    ("select * from delta.`/lake/orders` join a on true", {"a"}),
    ("select * from range(10), explode(array(1)) t, a", {"a"}),
    ("select * from a lateral view explode(xs) t as x, y where x > 1", {"a"}),
    ("select * from a, lateral explode(a.xs) t, b", {"a", "b"}),
    ("select * from values (1, 2), (3, 4) as t(a, b)", set()),
    ("values (1), (2)", set()),
    ("table orders", {"orders"}),
    ("select * from f(table(orders)), g(table(items))", {"orders", "items"}),
    ("from orders |> where x > 1 |> join items using (id) |> select a, b", {"orders", "items"}),
    ("select orders from customers", {"customers"}),
    ("select status, orders.x from customers group by orders, status", {"customers"}),
    ("select x as orders from customers order by orders, status", {"customers"}),
    ("select * from a tablesample (10 percent), b", {"a", "b"}),
    ("select * from a pivot (sum(x) for y in ('p', 'q')), b", {"a", "b"}),
    ("select * from a where exists (select 1 from b where b.x = a.x)", {"a", "b"}),
    ("select window.start, count(*) from v group by window(at, '1 minute'), page", {"v"}),
    ("select sum(x) over (partition by y order by z) from a", {"a"}),
    ("select case when x then y end, z from a", {"a"}),
    ("select * from a left semi join b on a.x = b.x left anti join c on true", {"a", "b", "c"}),
    ("select cast(x as decimal(12,2)), y from a", {"a"}),
    ("select transform(xs, x -> x + 1), y from a", {"a"}),
    ("select date '2026-01-01', interval '1' day, x from a;", {"a"}),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "reads"), READS, ids=[sql for sql, _ in READS])
def test_reads(sql: str, reads: set[str]) -> None:
    assert {read.name for read in views_read(sql)} == reads


@pytest.mark.parametrize(("sql", "reads"), READS, ids=[sql for sql, _ in READS])
def test_case_and_space_make_no_difference(sql: str, reads: set[str]) -> None:
    spread = "\n /* from z */ ".join(["", sql.upper(), ""])
    assert {read.name for read in views_read(spread)} == {name.upper() for name in reads}


def test_each_name_is_found_once_with_its_first_line() -> None:
    sql = "select 'a\nb'\n/* \n */ from Orders o\njoin items on true join orders"
    assert views_read(sql) == (ViewRead("Orders", 4), ViewRead("items", 5))


PATHS = [  # Variant's, and texts that Spark refuses in the end
    ("select order:amount::double from orders", {"orders"}),
    ("select v:items[0].price::string, v:['a b']:c from a, lateral variant_explode(a.v:xs)", {"a"}),
    ("select * from orders where", {"orders"}),
    ("with o as (select * from a wher x > 1 and) select * from o join `b c` on", {"a", "b c"}),
    ("select /*+ BROADCAST(b) */ * from a", {"a"}),
    ("select * from a timestamp as of '2026-01-01'", {"a"}),
    ("select 'no end from a", set()),
    ("show tables", set()),
]


@pytest.mark.parametrize(("sql", "reads"), PATHS, ids=[sql for sql, _ in PATHS])
def test_reads_of_paths_and_of_broken_texts(sql: str, reads: set[str]) -> None:
    assert {read.name for read in views_read(sql)} == reads


WORDS = ["select", "from", "join", "with", "as", "(", ")", ",", ".", "`", "'", "/*", "*/", "--"]


@given(st.lists(st.sampled_from([*WORDS, "a", "b", "table", "\n"])))
def test_any_text_ends(words: list[str]) -> None:
    sql = " ".join(words)
    assert all(1 <= read.line <= sql.count("\n") + 1 for read in views_read(sql))


@pytest.mark.spark
def test_spark_finds_the_same(spark: SparkSession) -> None:
    """Spark's parser leaves names that WITH defines among the relations; all else is equal."""
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    for sql, reads in READS:
        plan = parser.parsePlan(sql).treeString()
        names = set(re.findall(r"UnresolvedRelation \[([^\],]*)\], \[\]", plan))
        defined = set(re.findall(r"\b(\w+)(?:\([^()]*\))? as \(", sql)) if "with" in sql else set()
        assert reads <= names, sql
        assert names - reads <= defined, sql


@pytest.mark.parametrize(
    "sql",
    [
        "select * from a", "select o.* from o", "select count(o.*) from o", "table a",
        "select id from a natural join b", "select id from a pivot (sum(x) for y in ('p'))",
        "from a |> where x > 1 |> select x", "select hash(*) from a", "select `a|b` from a",
        "select identifier('i' || 'd') from a", "select 'x", "show tables",
    ],
)  # fmt: skip
def test_what_may_read_columns_without_naming_them(sql: str) -> None:
    assert words_of(sql) is None


def test_the_words_of_sql() -> None:
    found = words_of("select a.ID, `b c`, x * 2 as y, count(*), v:p.q from t join u using (z)")
    assert found is not None
    assert found >= {"id", "b c", "x", "v", "p", "q", "z"}
    found = words_of("amount >= 0 and \"name\" <> 'Other'")
    assert found is not None
    assert found >= {"amount", "name", "other"}
    assert words_of("") is None
