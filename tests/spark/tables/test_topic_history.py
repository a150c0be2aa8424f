"""Table and log in one frame: each record once, whatever is committed or deleted meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from penstock.spark.errors import DataLoss, InvalidOption, OffsetWentBack
from penstock.spark.tables import DeltaSink, Materialiser, history
from penstock.spark.tables.positions import LogStartsAfterTable, TableOfAnotherTopic
from penstock.spark.tables.topic_history import log_ranges
from tests.spark.conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def keep(topic: Topic, root: Path) -> None:
    job = Materialiser(topic.spark, bootstrap=topic.broker.bootstrap, root=str(root))
    states = {item.wanted.topic: item for item in job.run(threading.Event(), once=True)}
    assert states[topic.name].phase == "done", states[topic.name].problem


def read(topic: Topic, root: Path, **more: object) -> DataFrame:
    given = {"table": str(root / topic.name), "admin_url": topic.broker.admin_url} | more
    return history(
        topic.spark, topic=topic.name, bootstrap=topic.broker.bootstrap,
        **given,  # type: ignore[arg-type]
    )  # fmt: skip


def places(frame: DataFrame) -> Counter[tuple[int, int]]:
    found = frame.select("partition", "offset").toArrow().to_pydict()
    return Counter(zip(found["partition"], found["offset"], strict=True))


def test_each_record_is_there_once(kept: Topic, tmp_path: Path) -> None:
    kept.write(60)
    from_log = read(kept, tmp_path)  # no table yet
    assert places(from_log) == places(kept.batch())
    keep(kept, tmp_path)
    kept.write(40, first=60)
    both = read(kept, tmp_path)
    assert both.columns == from_log.columns
    assert both.schema == kept.batch().schema
    expected = places(kept.batch())
    assert sum(expected.values()) == 100
    assert places(both) == expected
    plan = both._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet" in plan
    keep(kept, tmp_path)  # a commit beside an open frame changes nothing in it
    kept.write(10)
    assert places(both) == expected
    ends = kept.client.list_offsets(kept.name, "latest")
    assert sum(places(read(kept, tmp_path)).values()) == 110 == sum(ends.values())
    kept.client.delete_records(kept.name, {p: end - 3 for p, end in ends.items()})
    assert sum(places(read(kept, tmp_path, end={p: ends[p] - 9 for p in ends})).values()) > 0
    keep_end = read(kept, tmp_path, version=0, end={p: 5 for p in ends})
    assert places(keep_end) == Counter((p, o) for p in ends for o in range(5))


def test_a_range_is_cut_from_both(kept: Topic, tmp_path: Path) -> None:
    for partition in range(3):
        rows = pa.table({"value": [b"%d" % number for number in range(20)]})
        kept.client.write_arrow(kept.name, rows, partition=partition)
    keep(kept, tmp_path)
    for partition in range(3):
        rows = pa.table({"value": [b"%d" % number for number in range(20, 30)]})
        kept.client.write_arrow(kept.name, rows, partition=partition)
    cut = read(
        kept, tmp_path, start={0: 5, 1: 25}, end={0: 22, 2: 7}, columns=("partition", "offset")
    )
    expected = [(0, range(5, 22)), (1, range(25, 30)), (2, range(7))]
    assert places(cut) == Counter((at, offset) for at, offsets in expected for offset in offsets)
    with pytest.raises(InvalidOption, match="partitions 0 to 2"):
        read(kept, tmp_path, start={7: 1})
    with pytest.raises(InvalidOption, match="below its start 5"):
        read(kept, tmp_path, start={0: 5}, end={0: 4})
    with pytest.raises(InvalidOption, match="columns"):
        read(kept, tmp_path, columns=("nope",))


@pytest.mark.long
def test_headers_come_from_both(kept: Topic, tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    for _ in range(2):
        rows = pa.table({"value": [b"x"], "headers": pa.array([[("h", b"1")]], kind)})
        kept.client.write_arrow(kept.name, rows)
        keep(kept, tmp_path)
    kept.client.write_arrow(kept.name, rows)
    found = read(kept, tmp_path, columns=("headers", "value")).toArrow().to_pylist()
    assert found == [{"headers": [{"key": "h", "value": b"1"}], "value": b"x"}] * 3


def test_a_gap_names_both_ends(kept: Topic, tmp_path: Path) -> None:
    kept.client.write_arrow(kept.name, pa.table({"value": [b"x"] * 10}), partition=1)
    keep(kept, tmp_path)
    kept.client.write_arrow(kept.name, pa.table({"value": [b"y"] * 10}), partition=1)
    kept.client.delete_records(kept.name, {1: 8})
    assert sum(places(read(kept, tmp_path)).values()) == 20  # below the table's end: no matter
    kept.client.delete_records(kept.name, {1: 13})
    with pytest.raises(LogStartsAfterTable, match="ends at offset 10, but the log starts at 13"):
        read(kept, tmp_path)
    assert sum(places(read(kept, tmp_path, start={1: 13})).values()) == 7
    assert sum(places(read(kept, tmp_path, end={1: 10})).values()) == 10
    with pytest.raises(DataLoss, match="12 to 12"):
        read(kept, tmp_path, start={1: 12})


def test_another_topics_table_is_refused(kept: Topic, tmp_path: Path) -> None:
    kept.write(10)
    DeltaSink(str(tmp_path / kept.name), application="x").write(kept.batch(), 0)
    with pytest.raises(TableOfAnotherTopic, match="last commit came from no topic"):
        read(kept, tmp_path)


def test_ranges_of_the_log() -> None:
    def ranges(
        first: int,
        last: int,
        reached: int | None,
        start: int | None = None,
        end: int | None = None,
    ) -> tuple[int, int] | None:
        found = log_ranges(
            "t", "/table", {0: first}, {0: last},
            None if reached is None else {0: reached},
            {} if start is None else {0: start}, {} if end is None else {0: end},
        )  # fmt: skip
        return found.get(0)

    assert ranges(0, 10, None) == (0, 10)
    assert ranges(4, 10, None) == (4, 10)
    assert ranges(4, 10, 6) == (6, 10)
    assert ranges(6, 10, 6) == (6, 10)
    assert ranges(4, 10, 10) is None
    assert ranges(10, 10, 10) is None
    assert ranges(4, 10, 6, start=8) == (8, 10)
    assert ranges(4, 10, 6, end=8) == (6, 8)
    assert ranges(4, 10, 6, end=5) is None
    assert ranges(4, 10, 6, end=99) == (6, 10)
    with pytest.raises(LogStartsAfterTable):
        ranges(7, 10, 6)
    with pytest.raises(DataLoss):
        ranges(9, 10, 6, start=8)
    with pytest.raises(DataLoss):
        ranges(4, 10, None, start=3)
    with pytest.raises(OffsetWentBack):
        ranges(0, 5, 6)
