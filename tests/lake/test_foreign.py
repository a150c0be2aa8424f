"""Foreign parts around Iceberg tables: other readers, a REST catalogue, an object store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.connect.iceberg import IcebergSettings, IcebergSink
from penstock.lake.commits import LakeTable, Mark, appended
from penstock.lake.target import LakeUnavailable, Target
from penstock.testing import Broker
from tests.connect.test_iceberg import batch
from tests.lake.oracle import assert_files_once, assert_same, stored, target
from tests.lake.readers import by_duckdb, by_spark
from tests.lake.rest import RestCatalog, rest_catalog
from tests.lake.test_commits import batch_of, unless_there
from tests.lake.test_schemas import VALUES, rows_of_every_type
from tests.s3 import ACCESS_KEY, SECRET_KEY, S3Server

pytestmark = [pytest.mark.long, pytest.mark.interop, pytest.mark.timeout(600)]

CLOCKS = [f"c{number}" for number, kind in enumerate(VALUES) if kind == pa.time64("us")]
"""Columns of a type that Spark cannot read."""


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path) as catalog:
        yield catalog


def upserts(found: Target, without: Sequence[str] = ()) -> pa.Table:
    """Write three batches of a connector with changing columns; return the rows to expect."""
    options: dict[str, Any] = {
        "table": found.table, "catalog": dict(found.catalog), "mode": "upsert", "keys": ("id",),
        "add_columns": True, "partition_by": ("bucket(3, id)", "day(c15)"),
    }  # fmt: skip
    rows = rows_of_every_type(60).drop_columns(without)
    wide = rows.append_column("wide", pa.array([2**40] * 60)).append_column(
        "inner", pa.array([{"a": [1.5, None], "m": "x"}] * 60)
    )
    parts = [
        rows.slice(0, 50).append_column("wide", pa.array(range(50), pa.int32())),
        wide.slice(30, 30),
        wide.slice(10, 5),
    ]
    sink, offset = IcebergSink(IcebergSettings(**options), "c"), 0
    for part in parts:
        sink.write(batch(part.to_struct_array().combine_chunks(), offset))
        sink.flush()
        offset += len(part)
    numbered = [part.append_column("batch", pa.array([at] * len(part)))
                for at, part in enumerate(parts)]  # fmt: skip
    given = pa.concat_tables(numbered, promote_options="permissive")
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("given", given)
        return connection.sql(
            "select * exclude (batch) from given"
            " qualify row_number() over (partition by id order by batch desc) = 1"
        ).to_arrow_table()


@pytest.mark.parametrize(("reader", "without"), [(by_duckdb, ()), (by_spark, CLOCKS)])
def test_tables_are_read_by_others(tmp_path: Path, reader: Any, without: Sequence[str]) -> None:
    expected = upserts(target(tmp_path), without)
    table = stored(LakeTable(target(tmp_path), application=""))
    assert_same(expected, table.scan().to_arrow())
    assert_same(expected, reader(table, expected.column_names))


def test_a_rest_catalogue(rest: RestCatalog) -> None:
    expected = upserts(rest.target())
    lake = LakeTable(rest.target(), application="a")
    assert_same(expected, stored(lake).scan().to_arrow())
    assert_files_once(lake)
    first, second = (LakeTable(rest.target("db.raced"), application=name) for name in "ab")
    for lake in (first, second):
        lake.prepare(batch_of(0).schema)
        assert lake.mark() is None
    for number, lake in enumerate((first, second, first, second)):
        rows = batch_of(number)
        files = lake.writer().write(rows)
        mark = Mark(batch=number)
        # The other application has committed since: the catalogue rejects the first attempt.
        assert lake.commit(mark, unless_there(number), appended(files)) is not None
        assert lake.commit(mark, unless_there(number), appended(files)) is None
    everything = pa.concat_tables([batch_of(number) for number in range(4)])
    assert_same(everything, stored(first).scan().to_arrow())
    assert_files_once(first)
    files = first.writer().write(batch_of(9))
    rest.kill()
    with pytest.raises(LakeUnavailable, match=r"table db.raced: "):
        first.commit(Mark(batch=9), unless_there(9), appended(files))
    rest.start()
    assert first.commit(Mark(batch=9), unless_there(9), appended(files)) is not None
    assert_same(pa.concat_tables([everything, batch_of(9)]), stored(second).scan().to_arrow())


FILES = {
    "connect": """
name = "lake"
[sink]
connector = "iceberg"
topics = ["orders"]
table = "db.connector"
catalog = {{type = "rest", uri = "{uri}"}}
[errors]
""",
    "pipeline": """
name = "lake"
[source.orders]
topic = "orders"
format = "json"
schema = "id bigint, word string"
[sink.lake]
from = "orders"
iceberg = "db.pipeline"
mode = "upsert"
keys = "word"
order_by = "id"
catalog = {{type = "rest", uri = "{uri}"}}
[errors]
on_invalid = "fail"
""",
}


def test_connectors_and_pipelines_use_a_rest_catalogue(rest: RestCatalog, tmp_path: Path) -> None:
    rows = pa.table({"id": range(300), "word": [f"w{number % 7}" for number in range(300)]})
    with Broker() as broker, broker.client() as client:
        client.create_topic("orders", partitions=2)
        for part in (rows.slice(0, 200), rows.slice(200)):
            values = pa.array([json.dumps(row).encode() for row in part.to_pylist()])
            client.write_arrow("orders", pa.table({"value": values}))
            for kind, text in FILES.items():
                file = tmp_path / f"{kind}.toml"
                file.write_text(text.format(uri=rest.uri))
                words = [sys.executable, "-m", "penstock", kind, "run", str(file), "--once"]
                admin = ["--admin", broker.admin_url] if kind == "pipeline" else []
                ended = subprocess.run(
                    [*words, "-b", broker.bootstrap, *admin], capture_output=True, check=False
                )
                assert ended.returncode == 0, ended.stderr.decode()[-3_000:]
    newest = duckdb.from_arrow(rows).aggregate("max(id) as id, word").to_arrow_table()
    for table, expected in (("db.connector", rows), ("db.pipeline", newest)):
        lake = LakeTable(rest.target(table), application="tests")
        assert_same(expected, stored(lake).scan().to_arrow())
        assert_same(expected, by_spark(stored(lake), expected.column_names))
        assert_files_once(lake)


def test_a_warehouse_in_an_object_store(s3: S3Server, tmp_path: Path) -> None:
    keys = {
        "warehouse": s3.fresh_url(), "s3.endpoint": s3.endpoint, "s3.region": "us-east-1",
        "s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY,
    }  # fmt: skip
    found = target(tmp_path, **keys)
    expected = upserts(found)
    lake = LakeTable(found, application="a")
    assert_same(expected, stored(lake).scan().to_arrow())
    assert_files_once(lake)
