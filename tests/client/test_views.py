"""Views of the fetched bytes stay valid in Polars and DuckDB as long as they are used."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.client.frames import Frames

MakeTopic = Callable[..., str]
ROWS = 30_000


def table(rows: int = ROWS) -> pa.Table:
    """Return values that fit into a view itself, long ones, empty ones and nulls."""
    values = [(b"%d:" % row) * (row % 40) if row % 9 else None for row in range(rows)]
    keys = [b"key-%d" % (row % 97) if row % 5 else None for row in range(rows)]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


@pytest.fixture(params=["none", "lz4"])
def filled(client: Client, topic: MakeTopic, request: pytest.FixtureRequest) -> str:
    name = topic(partitions=3)
    client.write_arrow(name, table(), codec=request.param)
    return name


def rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted(zip(*[found[name].to_pylist() for name in found.column_names], strict=True))


def test_views_are_what_copies_are(client: Client, filled: str) -> None:
    copied = client.read_arrow(filled)
    viewed = client.read_arrow(filled, views=True)
    assert viewed.schema.field("key").type == viewed.schema.field("value").type == pa.binary_view()
    assert viewed.cast(copied.schema).equals(copied)
    one = client.read_arrow(filled, partitions=[1], start={1: 5}, columns=["value"], views=True)
    other = client.read_arrow(filled, partitions=[1], start={1: 5}, columns=["value"])
    assert one["value"].to_pylist() == other["value"].to_pylist()


def test_polars_reads_views(client: Client, filled: str) -> None:
    viewed = client.read_arrow(filled, columns=["key", "value"], views=True)
    frame = pl.from_arrow(viewed)
    del viewed
    gc.collect()
    assert isinstance(frame, pl.DataFrame)
    assert frame.schema == {"key": pl.Binary, "value": pl.Binary}
    expected = pl.from_arrow(table())
    assert isinstance(expected, pl.DataFrame)
    by = ["key", "value"]
    assert frame.sort(by).equals(expected.sort(by))


def test_duckdb_reads_views(client: Client, filled: str) -> None:
    viewed = client.read_arrow(filled, columns=["key", "value"], views=True)
    expected = table()
    query = (
        "select key::varchar as k, count(*), count(value), sum(octet_length(value)),"
        " max(md5(value::varchar)) from {} group by k order by k nulls first"
    )
    with duckdb.connect() as connection:
        connection.register("viewed", viewed)
        connection.register("expected", expected)
        found = connection.execute(query.format("viewed")).fetchall()
        assert found == connection.execute(query.format("expected")).fetchall()
    assert len(found) == 98


def test_a_view_points_into_the_fetched_bytes(client: Client, topic: MakeTopic) -> None:
    name = topic()
    client.write_arrow(name, pa.table({"value": [b"x" * 100_000] * 20}))
    before = pa.total_allocated_bytes()
    viewed = client.read_arrow(name, columns=["value"], views=True)
    assert pa.total_allocated_bytes() - before < 100_000
    assert viewed["value"].to_pylist() == [b"x" * 100_000] * 20


def test_many_reads_in_flight_overwrite_no_view(client: Client, topic: MakeTopic) -> None:
    """Readers take turns and drop their views at different times; each view stays unchanged."""
    name, count, size = topic(partitions=4), 96, 250_000
    values = [hashlib.sha256(b"%d" % number).digest() * (size // 32) for number in range(count)]
    data = pa.table({"value": values, "where": [number % 4 for number in range(count)]})
    client.write_arrow(name, data, partition="where")
    known = {hashlib.sha256(value).digest() for value in values}
    readers = [
        client.iter_arrow(name, columns=("value",), views=True, max_bytes=(2 + number) << 20)
        for number in range(4)
    ]
    held: list[Any] = []
    seen = 0
    while readers:
        reader = readers.pop(0)
        batch = next(reader, None)
        if batch is None:
            continue
        readers.append(reader)
        seen += batch.num_rows
        held.append(batch.column(0).slice(batch.num_rows // 2))
        del batch
        if len(held) > 6:
            del held[seen % 6]
        for column in held:
            for value in column:
                assert hashlib.sha256(value.as_buffer()).digest() in known
    assert seen == 4 * count


def test_a_read_can_be_closed_while_responses_arrive(client: Client, topic: MakeTopic) -> None:
    name = topic(partitions=2)
    client.write_arrow(name, pa.table({"value": [b"y" * 200_000] * 100}))
    for wanted in (1, 30):
        reading = client.iter_arrow(name, max_bytes=2 << 20, max_records=wanted)
        assert sum(batch.num_rows for batch in reading) == wanted
        abandoned = client.iter_arrow(name, max_bytes=2 << 20, views=True)
        next(abandoned)
        abandoned.close()
    assert client.read_arrow(name).num_rows == 100
    assert not client.waits().unanswered


def test_frames_outlive_their_reader() -> None:
    frames = Frames()
    view = pa.py_buffer(frames.take(2 << 20))
    np.frombuffer(view, np.uint8)
    del frames
    gc.collect()
    assert len(view.to_pybytes()) == 2 << 20
