"""Sink `files`: its files as other programs read them, and its offsets after each kind of end."""

from __future__ import annotations

import csv
import gzip
import io
import json
from base64 import b64encode
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from avro.datafile import DataFileReader
from avro.io import DatumReader
from hypothesis import given, settings

from penstock.base.errors import InvalidSetting
from penstock.connect import Records, RowsRejected, SinkBatch
from penstock.connect.files.sink import FileSink, FileSinkSettings
from penstock.objects import StoreUnavailable
from tests.connect.files.values import ROWS, column, same
from tests.s3 import S3Server

GENERATED = settings(max_examples=15)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def batch(
    values: Any, *, partition: Any = 0, start: int = 0, times: Any = None, topic: str = "t"
) -> SinkBatch:
    """Return a batch of values of one partition, or of the given ones."""
    count = len(values)
    partitions = partition if isinstance(partition, list) else [partition] * count
    offsets = list(range(start, start + count))
    rows = pa.table(
        {
            "key": pa.array([f"k{offset}".encode() for offset in offsets], pa.binary()),
            "value": values,
            "timestamp": pa.array(times or [0] * count, pa.timestamp("ms", "UTC")),
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
        }
    )
    following = {number: start + count for number in sorted(set(partitions))}
    return SinkBatch(topic=topic, parts=[Records(topic, rows)], next_offsets=following)


def sink(place: Path | str, **options: Any) -> FileSink:
    return FileSink(FileSinkSettings(url=str(place), **options), "copy")


def written(place: Path, *batches: SinkBatch, **options: Any) -> list[Path]:
    """Write batches in a run, and return the files that are there afterwards."""
    target = sink(place, **options)
    target.offsets()
    for given_batch in batches:
        target.write(given_batch)
    target.close()
    return files_of(place)


def files_of(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


def names_of(place: Path) -> list[str]:
    return [str(path.relative_to(place)) for path in files_of(place)]


# Values


@given(ROWS)
@GENERATED
def test_duckdb_reads_the_same_values_from_parquet(rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as place:
        [path] = written(Path(place), batch(column(rows)), metadata=("offset", "key"))
        table = f"read_parquet('{path}', hive_partitioning = false)"
        sql = f'select * replace (epoch_us("at") as "at") from {table} order by _offset'
        found = duckdb.connect().execute(sql)
        names = [part[0] for part in found.description]
        read = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    for index, (row, expected) in enumerate(zip(read, rows, strict=True)):
        assert row.pop("_offset") == index
        assert row.pop("_key") == f"k{index}".encode()
        micros = expected["at"] and (expected["at"] - EPOCH) // timedelta(microseconds=1)
        assert same(row, {**expected, "at": micros})


@given(ROWS)
@GENERATED
def test_fastavro_reads_the_same_values(rows: list[dict[str, Any]]) -> None:
    for codec in ("none", "gzip", "snappy"):
        with TemporaryDirectory() as place:
            split = len(rows) // 2
            parts = [batch(column(rows[:split])), batch(column(rows[split:]), start=split)]
            options = {"file_format": "avro", "compression": codec}
            [path] = written(Path(place), *(part for part in parts if part.count), **options)
            with path.open("rb") as file:
                found = list(fastavro.reader(file))
        _check_avro(found, rows)


def test_avro_reads_blocks_of_zstandard(tmp_path: Path) -> None:
    rows = [{"a": number, "b": "x" * number} for number in range(50)]
    options = {"file_format": "avro", "compression": "zstd"}
    [path] = written(tmp_path, batch(pa.array(rows)), **options)
    with path.open("rb") as file, DataFileReader(file, DatumReader()) as reader:
        assert list(reader) == rows


def _check_avro(found: list[Any], rows: list[dict[str, Any]]) -> None:
    for row, expected in zip(found, rows, strict=True):
        price = row.pop("price")
        assert price == expected["price"]
        assert same(row, {name: part for name, part in expected.items() if name != "price"})


@given(ROWS)
@GENERATED
def test_json_lines_have_the_values(rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as place:
        options = {"file_format": "jsonl", "compression": "gzip"}
        [path] = written(Path(place), batch(column(rows)), **options)
        lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    assert lines.pop() == ""
    for line, expected in zip(lines, rows, strict=True):
        found = json.loads(line, parse_float=Decimal)
        _check_json(found, expected)


def _check_json(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in ("id", "flag", "name", "tags", "inner"):
        assert found[name] == expected[name]
    number = found["number"]
    if isinstance(number, str):
        number = float(number.replace("Infinity", "inf"))
    assert same(number if number is None else float(number), expected["number"])
    price = found["price"]
    assert (price if price is None else Decimal(price)) == expected["price"]
    octets = expected["octets"]
    assert found["octets"] == (None if octets is None else b64encode(octets).decode())
    day = expected["day"]
    assert found["day"] == (None if day is None else day.isoformat())
    at = found["at"]
    assert (at and datetime.fromisoformat(at)) == expected["at"]


@given(ROWS)
@GENERATED
def test_csv_has_the_values(rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as place:
        [path] = written(Path(place), batch(column(rows)), file_format="csv")
        text = path.read_bytes().decode()
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    for row, expected in zip(found, rows, strict=True):
        for name, value in expected.items():
            if value is None:
                assert row[name] == ""
        assert row["name"] == (expected["name"] or "")
        assert expected["id"] is None or int(row["id"]) == expected["id"]
        if expected["number"] is not None:
            assert same(float(row["number"]), expected["number"])
        if expected["price"] is not None:
            assert Decimal(row["price"]) == expected["price"]
        if expected["day"] is not None:
            assert date.fromisoformat(row["day"]) == expected["day"]
        if expected["inner"] is not None:
            assert json.loads(row["inner"]) == expected["inner"]
        if expected["at"] is not None:
            assert datetime.fromisoformat(row["at"]) == expected["at"]


def test_lines_are_the_bytes_of_the_values(tmp_path: Path) -> None:
    values = pa.array([b"{}", b"", b"\xff\x00", None], pa.binary())
    options = {"file_format": "text", "null_values": "write"}
    [path] = written(tmp_path, batch(values), **options)
    assert path.read_bytes() == b"{}\n\n\xff\x00\n\n"
    assert sink(tmp_path, file_format="text").raw
    assert not sink(tmp_path).raw


# Names, rotation and offsets


def test_names_tell_the_offsets(tmp_path: Path) -> None:
    values = pa.array([{"a": number} for number in range(6)])
    partitions = [0, 1, 0, 1, 0, 1]
    written(tmp_path, batch(values, partition=partitions, start=100), file_format="csv")
    assert names_of(tmp_path) == [
        "t/partition=0/t+0+00000000000000000100+00000000000000000106.csv",
        "t/partition=1/t+1+00000000000000000101+00000000000000000106.csv",
    ]
    assert sink(tmp_path).offsets() == {("t", 0): 106, ("t", 1): 106}


def test_files_are_completed_after_rows_and_time(tmp_path: Path) -> None:
    target = sink(tmp_path, file_format="jsonl", rotate_rows=3)
    target.offsets()
    for start in range(0, 8, 2):
        target.write(batch(pa.array([{"a": 1}, {"a": 2}]), start=start))
    assert len(files_of(tmp_path)) == 2  # one complete file of four rows, one temporary
    target.flush()
    assert [name[-12:-6] for name in names_of(tmp_path)] == ["000004", "000008"]
    target = sink(tmp_path, file_format="jsonl", rotate_seconds=0.1)
    assert target.offsets() == {("t", 0): 8}
    target.write(batch(pa.array([{"a": 1}]), start=8))
    while target.facts()["files"] == 0:
        target.flush()
    assert target.facts()["stored"] == {"t-0": 9}
    target.close()


def test_an_end_without_close_leaves_no_row(tmp_path: Path) -> None:
    target = sink(tmp_path, file_format="jsonl", rotate_rows=2)
    target.offsets()
    target.write(batch(pa.array([{"a": 1}, {"a": 2}])))
    target.write(batch(pa.array([{"a": 3}]), start=2))
    again = sink(tmp_path, file_format="jsonl")
    assert again.offsets() == {("t", 0): 2}
    assert len(files_of(tmp_path)) == 1
    again.write(batch(pa.array([{"a": 3}]), start=2))
    again.close()
    lines = [line for path in files_of(tmp_path) for line in path.read_text().splitlines()]
    assert lines == ['{"a":1}', '{"a":2}', '{"a":3}']


def test_other_columns_begin_another_file_once(tmp_path: Path) -> None:
    kinds = [{"a": 1}, {"a": 2, "b": "x"}, {"a": 3}, {"b": "y"}, {"a": 4.5}]
    batches = [batch(pa.array([value]), start=start) for start, value in enumerate(kinds)]
    assert len(written(tmp_path, *batches)) == 3
    files = f"read_parquet('{tmp_path}/**/*.parquet', union_by_name = true)"
    found = duckdb.execute(f"select a, b from {files} order by a nulls last").fetchall()
    assert found == [(1, None), (2, "x"), (3, None), (4.5, None), (None, "y")]


def test_rows_that_do_not_fit_into_one_schema(tmp_path: Path) -> None:
    def part(name: str, values: list[Any], first: int) -> Records:
        rows = batch(pa.array([{"a": value} for value in values])).parts[0].rows
        return Records(name, rows.set_column(4, "offset", pa.array([first, first + 2])))

    mixed = [
        SinkBatch(
            topic="t",
            parts=[part("t", [1, 2], at), part("t", ["x", "y"], at + 1), part("u", [3, 4], at + 1)],
            next_offsets={0: at + 4},
        )
        for at in (0, 4)
    ]
    written(tmp_path, *mixed)
    name = f"t+0+{0:020}+{8:020}+3"
    assert names_of(tmp_path) == [
        f"t/partition=0/{name}+0.parquet",
        f"t/partition=0/{name}+1.parquet",
        f"u/partition=0/{name}.parquet",
    ]
    found = [pq.read_table(path, partitioning=None)["a"].to_pylist() for path in files_of(tmp_path)]
    assert found == [[1, 2] * 2, ["x", "y"] * 2, [3, 4] * 2]
    assert sink(tmp_path).offsets() == {("t", 0): 8}
    files_of(tmp_path)[1].unlink()
    assert sink(tmp_path).offsets() == {}
    assert files_of(tmp_path) == []


def test_numbers_of_later_batches_are_not_rounded(tmp_path: Path) -> None:
    large = Decimal("0.12345678901234567891")
    values: list[Any] = [0.5, 2**53 + 1, 7, large, 0.1]
    batches = [batch(pa.array([{"a": value}]), start=at) for at, value in enumerate(values)]
    paths = written(tmp_path, *batches)
    found = [
        value for path in paths for value in pq.read_table(path, partitioning=None)["a"].to_pylist()
    ]
    assert sorted(found) == sorted(values)


def test_folders_by_time(tmp_path: Path) -> None:
    begin = datetime(2024, 2, 28, 23, tzinfo=UTC)
    times = [begin + timedelta(hours=hours) for hours in (0, 2, 0, 30)]
    values = pa.array([{"a": number} for number in range(4)])
    options = {"file_format": "jsonl", "folders": "day=%Y-%m-%d"}
    written(tmp_path, batch(values, times=times), **options)
    places = f"{0:020}+{4:020}+3.jsonl"
    assert names_of(tmp_path) == [
        f"t/day=2024-02-28/t+0+{places}",
        f"t/day=2024-02-29/t+0+{places}",
        f"t/day=2024-03-01/t+0+{places}",
    ]
    assert sink(tmp_path).offsets() == {("t", 0): 4}


@pytest.mark.parametrize(
    "values",
    [
        ["2024-02-28T23:00:00Z", "2024-02-29T00:00:00.5Z"],
        [1709161200000, 1709164800500],
        pa.array([1709161200, 1709164800], pa.timestamp("s")),
    ],
)
def test_folders_by_a_field(tmp_path: Path, values: Any) -> None:
    fields = pa.StructArray.from_arrays([pa.array(values)], ["at"])
    options = {"file_format": "jsonl", "folders": "%Y/%m/%d", "folder_field": "at"}
    written(tmp_path, batch(fields), **options)
    assert [name.rpartition("/")[0] for name in names_of(tmp_path)] == [
        "t/2024/02/28",
        "t/2024/02/29",
    ]


def test_a_range_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    times = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3, 1)]
    values = pa.array([{"a": number} for number in range(4)])
    options = {"file_format": "jsonl", "folders": "%d", "rotate_rows": 4}
    written(tmp_path, batch(values, times=times), batch(values, times=times, start=4), **options)
    expected = {path: path.read_text() for path in files_of(tmp_path)}
    for lost in [path for path in expected if f"+0+{4:020}+" in path.name]:
        lost.unlink()
        assert sink(tmp_path, **options).offsets() == {("t", 0): 4}
        assert len(files_of(tmp_path)) == 3
        written(tmp_path, batch(values, times=times, start=4), **options)
        assert {path: path.read_text() for path in files_of(tmp_path)} == expected


# Rejected rows


def test_rejected_rows_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    values = pa.array([None, b"fine", b"two\nlines", None, b"\n"], pa.binary())
    target = sink(tmp_path, file_format="text")
    target.offsets()
    with pytest.raises(RowsRejected) as caught:
        target.write(batch(values))
    assert caught.value.rows == (2, 4)
    assert target.facts()["open_rows"] == 0
    strict = sink(tmp_path, file_format="text", null_values="fail")
    with pytest.raises(RowsRejected, match="has no value") as caught:
        strict.write(batch(values))
    assert caught.value.rows == (0, 3)
    empty = SinkBatch(topic="t", parts=[], next_offsets={0: 5})
    target.write(empty)
    target.close()
    assert files_of(tmp_path) == []


def test_rows_that_a_format_cannot_have(tmp_path: Path) -> None:
    avro = sink(tmp_path, file_format="avro")
    with pytest.raises(RowsRejected, match="no field name 'a-b'"):
        avro.write(batch(pa.array([{"a-b": 1}])))
    dated = sink(tmp_path, folders="%Y", folder_field="at")
    dated.offsets()
    with pytest.raises(RowsRejected, match="has no field at"):
        dated.write(batch(pa.array([{"a": 1}])))
    with pytest.raises(RowsRejected, match="no time") as caught:
        dated.write(batch(pa.array([{"at": 0}, {"at": None}])))
    assert caught.value.rows == (1,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metadata": ("size",)}, "must be some of key, timestamp"),
        ({"file_format": "csv", "compression": "snappy"}, "use gzip or zstd"),
        ({"file_format": "text", "metadata": ("key",)}, "have no other columns"),
        ({"folder_field": "at"}, "needs `folders`"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        FileSinkSettings(url="/tmp", **options)


def test_problems_and_plan(tmp_path: Path) -> None:
    assert sink(tmp_path / "new" / "one").problems() == []
    (tmp_path / "file").write_text("")
    assert "is not a directory" in sink(tmp_path / "file").problems()[0]
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        sink(tmp_path / "file" / "one").offsets()
    with pytest.raises(InvalidSetting, match="must be a path"):
        sink("ftp://host/place")
    assert "<topic>+<partition>+<start>+<next>.parquet" in sink(tmp_path).plan()[0]


# Object stores


def test_an_object_store(s3: S3Server) -> None:
    url = s3.fresh_url()
    options = tuple(f"{name}={value}" for name, value in s3.options().items())
    target = sink(url, options=options, folders="%Y-%m-%d")
    assert target.problems() == []
    assert target.offsets() == {}
    times = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2)]
    target.write(batch(pa.array([{"a": 1}, {"a": 2}]), times=times))
    target.close()
    again = sink(url, options=options)
    assert again.offsets() == {("t", 0): 2}
    root = s3.directory / "objects" / url.removeprefix("s3://")
    found = duckdb.execute(f"select a from '{root}/t/*/*.parquet' order by a").fetchall()
    assert found == [(1,), (2,)]
    files_of(root)[0].unlink()
    assert sink(url, options=options).offsets() == {}
    assert files_of(root) == []


def test_an_object_store_that_does_not_respond() -> None:
    options = ("aws_endpoint=http://127.0.0.1:9", "aws_region=x", "aws_skip_signature=true")
    target = sink("s3://bucket/place", options=options)
    assert "check the URL" in target.problems()[0]
    with pytest.raises(StoreUnavailable, match="cannot list"):
        target.offsets()
