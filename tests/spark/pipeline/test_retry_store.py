"""Release of held records, compared with the plainest implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.pipeline import work
from penstock.spark.pipeline.retry_store import (
    SCHEMA,
    Release,
    ReleaseBox,
    RetryStore,
    dead_lettered,
    next_due_ms,
    released,
)
from penstock.spark.pipeline.rules import OTHERWISE, REASON, RULE
from penstock.spark.pipeline.spec import RECORD

NOW = 1_000


def row(
    offset: int, key: bytes | None, otherwise: str, due_ms: int | None = None
) -> dict[str, Any]:
    return {
        "key": key, "value": b"v", "topic": "t", "partition": 0, "offset": offset,
        "timestamp": 0, "headers": None, "rule": "r", "reason": "why", "otherwise": otherwise,
        "attempt": 1, "held_ms": 0, "due_ms": due_ms,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def offsets(held: pa.Table) -> list[int]:
    found: list[int] = held["offset"].to_pylist()
    return found


@pytest.mark.parametrize("keep_order", [True, False])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, b"a", b"b"]),
            st.sampled_from(["park", "retry", "follow"]),
            st.sampled_from([None, NOW - 1, NOW, NOW + 1]),
        ),
        max_size=12,
    ),
    st.sampled_from([(), (Release(keys=None),), (Release(keys=(b"a",)),)]),
)
def test_a_key_goes_when_its_first_record_goes(
    keep_order: bool,
    some: list[tuple[bytes | None, str, int | None]],
    releases: tuple[Release, ...],
) -> None:
    held = table([row(at, *one) for at, one in enumerate(some)])
    goes, stays = released(held, now_ms=NOW, releases=releases, keep_order=keep_order)
    expected = []
    first: dict[bytes, bool] = {}
    for at, (key, otherwise, due) in enumerate(some):
        named = any(release.keys is None or key in release.keys for release in releases)
        alone = (due is not None and due <= NOW) or (otherwise == "park" and named)
        if keep_order and key is not None:
            alone = first.setdefault(key, alone)
        if alone:
            expected.append(at)
    assert offsets(goes) == expected
    assert sorted(offsets(goes) + offsets(stays)) == list(range(len(some)))


def test_the_store_saves_a_batch_once_and_keeps_old_versions(tmp_path: Path) -> None:
    lot = RetryStore(tmp_path / "held", application="a")
    lot.save(SCHEMA.empty_table(), 0)
    assert lot.version() is None
    lot.save(table([row(5, b"a", "park")]), 3)
    before = lot.version()
    lot.save(SCHEMA.empty_table(), 3)
    assert lot.version() == before
    lot.save(table([row(6, b"b", "retry", 9), row(5, b"a", "retry", 7)]), 4)
    assert offsets(lot.load(lot.version())) == [5, 6]
    assert offsets(lot.load(before)) == [5]
    assert next_due_ms(lot.load(lot.version())) == 7
    assert next_due_ms(lot.load(before)) is None


def test_requests_are_put_aside_and_stay_readable(tmp_path: Path) -> None:
    box = ReleaseBox(tmp_path / "box")
    assert box.pending() == ()
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "one.json").write_text('{"keys": ["61"]}')
    assert box.pending() == ("one",)
    box.done({"one": 2}, batch_id=7)
    box.done({"one": 0}, batch_id=8)
    assert box.pending() == ()
    assert box.read("one") == Release(keys=(b"a",))
    done = json.loads((tmp_path / "box" / "done" / "one.json").read_bytes())
    assert (done["records"], done["batch_id"]) == (2, 7)


def test_queued_records_of_dead_lettered_ones_are_retried(tmp_path: Path) -> None:
    rows = [(b"a", "park"), (b"a", "follow"), (b"b", "park"), (None, "park"), (b"c", "retry")]
    held = table([row(at, *one) for at, one in enumerate(rows)])
    wish = Release(keys=(b"a",), dead_letter=True)
    going, _ = released(held, now_ms=NOW, releases=(wish,), keep_order=True)
    assert [offsets(part) for part in dead_lettered(going, (wish,))] == [[0], [1]]
    everything = Release(keys=None, dead_letter=True)
    assert [offsets(part) for part in dead_lettered(held, (everything,))] == [[0, 2, 3], [1, 4]]
    assert offsets(dead_lettered(held, (Release(keys=None),))[0]) == []
    box = ReleaseBox(tmp_path / "box")
    box.ask("one", {"keys": "all", "dead_letter": True})
    assert box.read("one") == everything


@pytest.mark.spark
@pytest.mark.parametrize("keep_order", [True, False])
def test_records_behind_a_held_one_wait(spark: SparkSession, keep_order: bool) -> None:
    keys = [b"a", b"b", b"a", None, b"a", b"b", None, b"c", b"c"]
    bad = {2: "park", 3: "retry", 8: "park"}
    staying = table([row(-5, b"b", "park")])
    records = pa.table(
        {
            "topic": ["t"] * 9, "partition": pa.array([0] * 9, pa.int32()),
            "offset": list(range(9)), "key": pa.array(keys, pa.binary()),
            "value": [b"v"] * 9, "rule": [bad.get(at) and "r" for at in range(9)],
            "otherwise": [bad.get(at) for at in range(9)],
        }
    )  # fmt: skip
    nothing = F.lit(None)
    record = F.struct(
        "topic", "partition", "offset", nothing.cast("timestamp").alias("timestamp"), "key",
        "value", nothing.cast("array<struct<key:string,value:binary>>").alias("headers"),
        F.lit(0).alias("attempt"),
    )  # fmt: skip
    judged = spark.createDataFrame(records).select(
        record.alias(RECORD), F.col("rule").alias(RULE), F.lit("why").alias(REASON),
        F.col("otherwise").alias(OTHERWISE),
    )  # fmt: skip
    rejected = work.rejects(judged).toArrow().cast(work.REJECT_SCHEMA)
    blocking_offsets = work.blocking_offsets(rejected, staying, keep_order=keep_order)
    goes_on, waits = work.split(spark, judged, blocking_offsets, keep_order=keep_order)
    rows = work.held_rows(waits, now_ms=NOW, delays_seconds=(2.0,)).toArrow().cast(SCHEMA)
    found = {
        at: kind for at, kind in zip(offsets(rows), rows["otherwise"].to_pylist(), strict=True)
    }
    expected = {2: "park", 3: "retry", 8: "park"}
    if keep_order:
        expected |= {1: "follow", 4: "follow", 5: "follow"}
    assert found == expected
    due = {row["offset"]: (row["due_ms"], row["attempt"]) for row in rows.to_pylist()}
    assert due[3] == (NOW + 2_000, 1)
    assert due[2] == (None, 0)
    left = [row[0] for row in goes_on.select(f"{RECORD}.offset").collect()]
    assert sorted(left) == sorted(set(range(9)) - set(expected))
