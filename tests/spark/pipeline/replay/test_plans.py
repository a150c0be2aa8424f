"""Ranges and sinks of backfills, without Spark and without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.replay.backfill import chunk, chunk_count, records_in
from penstock.spark.pipeline.replay.refusals import CannotBackfill, check_sink, parse

BOUNDS = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda two: tuple(sorted(two)))


@given(
    st.dictionaries(
        st.sampled_from("ab"), st.dictionaries(st.sampled_from("012"), BOUNDS, min_size=1)
    ),
    st.integers(1, 60),
)
def test_chunks_hold_every_offset_once(ranges: Any, size: int) -> None:
    count = chunk_count(ranges, size)
    chunks = [chunk(ranges, number, count) for number in range(count)]
    assert (count == 0) is (records_in(ranges) == 0)
    partitions = sum(len(offsets) for offsets in ranges.values())
    for topic, offsets in ranges.items():
        for at, (first, end) in offsets.items():
            taken = [offset for part in chunks for offset in range(*part[topic][at])]
            assert taken == (list(range(first, end)) if count else [])
    assert all(records_in(part) <= size + partitions for part in chunks)


def test_where_to_begin() -> None:
    assert parse(None).text is None
    assert parse("earliest").time_ms is None
    assert parse("1970-01-01T00:00:01").time_ms == 1_000
    assert parse("1970-01-01T01:00:01+01:00").time_ms == 1_000
    assert parse("1970-01-01T00:00:01.0001").time_ms == 1_001
    assert parse("1969-12-31T23:59:59").time_ms == -1_000
    assert parse('{"t": {"0": 5}}').offsets == {"t": {0: 5}}
    for wrong in ("yesterday", '{"t": {"0": -2}}', '{"t": {"x": 2}}', "{"):
        with pytest.raises(ValueError, match=r".+"):
            parse(wrong)


TEXT = """
name = "shapes"
[source.rows]
topic = "rows"
format = "json"
schema = "id bigint, at bigint"
[sink.plain]
from = "rows"
table = "plain"
[sink.last]
from = "rows"
table = "last"
mode = "upsert"
keys = ["id"]
[sink.newest]
from = "rows"
table = "newest"
mode = "upsert"
keys = ["id"]
order_by = "at"
[sink.changes]
from = "rows"
table = "changes"
mode = "cdc"
keys = ["id"]
order_by = "at"
delete_when = "at < 0"
[sink.loose]
from = "rows"
topic = "loose"
[sink.strict]
from = "rows"
topic = "strict"
key = "cast(id as string)"
ordered = true
[sink.screen]
from = "rows"
console = true
[errors]
on_invalid = "drop"
"""


@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        ("plain", None),
        ("newest", None),
        ("loose", None),
        ("last", "without order_by older rows would replace"),
        ("changes", "keys that were deleted after the sink was added"),
        ("strict", "it is ordered"),
        ("screen", "it writes to the console"),
        ("nothing", "unknown sink nothing; the file has plain, last"),
    ],
)
def test_sinks_that_take_rows_late(tmp_path: Path, sink: str, reason: str | None) -> None:
    (tmp_path / "pipeline.toml").write_text(TEXT)
    spec = load(tmp_path / "pipeline.toml", bootstrap="127.0.0.1:1")
    if reason is None:
        check_sink(spec, sink)
    else:
        with pytest.raises(CannotBackfill, match=reason):
            check_sink(spec, sink)
