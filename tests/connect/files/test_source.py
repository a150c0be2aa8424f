"""Source `files`: each row of each file once, from each position on, by files of other programs."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from avro.datafile import DataFileWriter
from avro.io import DatumWriter
from avro.schema import parse
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import InvalidSetting
from penstock.connect import SourceContext, SourceUnavailable
from penstock.connect.errors import ConnectorFailed
from penstock.connect.files.locations import FileEntry, location, matcher
from penstock.connect.files.reading import ReadOptions, column_types, read_parts
from penstock.connect.files.source import FileSource, FileSourceSettings
from tests.connect.files.values import ROWS, column, same
from tests.s3 import S3Server

GENERATED = settings(max_examples=15)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=10)


class Following:
    """Run of a source, and the positions and rows that it has committed."""

    def __init__(
        self, place: Path | str, positions: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        self.positions = dict(positions or {})
        self.reports: list[str] = []
        context = SourceContext(connector="c", report=self.reports.append)
        chosen = {"topic": "t", "poll_interval_seconds": 0.05, **options}
        self.source = FileSource(FileSourceSettings(url=str(place), **chosen), context)
        self._batches = self.source.read(dict(self.positions))

    def batch(self) -> list[Any]:
        """Commit the next batch, and return its values."""
        batch = next(self._batches)
        self.caught_up = batch.caught_up
        for path, position in batch.positions.items():
            if position is None:
                del self.positions[path]
            else:
                self.positions[path] = position
        return [value for records in batch.records for value in records.rows["value"].to_pylist()]

    def until_caught_up(self) -> list[Any]:
        """Return the values of all batches up to the end of the next listing."""
        found = self.batch()
        while not self.caught_up:
            found += self.batch()
        return found

    def more(self) -> list[Any]:
        """Return the values of the next batch that has some."""
        while not (found := self.batch()):
            pass
        return found


def resumed_anywhere(place: Path | str, **options: Any) -> list[Any]:
    """Return all values; check that a run from each committed position yields the rest of them."""
    steps: list[tuple[dict[str, Any], int]] = [({}, 0)]
    run, values = Following(place, **options), []
    while not getattr(run, "caught_up", False):
        values += run.batch()
        steps.append((dict(run.positions), len(values)))
    for positions, count in steps:
        again = Following(place, positions, **options)
        assert same(values[:count] + again.until_caught_up(), values)
    return values


# Formats, written by other programs


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_avro_of_fastavro(tmp_path: Path, codec: str) -> None:
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        ],
    }
    at = datetime(9999, 12, 31, tzinfo=UTC)
    rows = [
        {
            "id": n,
            "name": None if n % 3 else f"n{n}",
            "at": at,
            "tags": ["x"] * (n % 3),
            "kind": "B",
        }
        for n in range(500)
    ]
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, rows, codec=codec, sync_interval=1000)
    assert resumed_anywhere(tmp_path, rows_max=60) == rows


def test_avro_of_the_avro_package_with_zstandard(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    rows = [{"id": number} for number in range(5000)]
    file = (tmp_path / "a.avro").open("wb")
    with DataFileWriter(
        file, DatumWriter(), parse(json.dumps(schema)), codec="zstandard"
    ) as writer:
        for row in rows:
            writer.append(row)
    assert resumed_anywhere(tmp_path, rows_max=1000) == rows


def test_parquet_of_duckdb(tmp_path: Path) -> None:
    sql = (
        "select i as id, 'n' || i as name, [i, null] as list,"
        " {'x': i / 3, 'y': null::int} as inner, (i / 7)::decimal(20, 5) as price,"
        " '11:30:00'::time as clock from range(5000) t(i)"
    )
    duckdb.sql(f"copy ({sql}) to '{tmp_path}/a.parquet' (row_group_size 2048)")
    found = resumed_anywhere(tmp_path, rows_max=700)
    assert [row["id"] for row in found] == list(range(5000))
    assert found[7] == {
        "id": 7, "name": "n7", "list": [7, None], "inner": {"x": 7 / 3, "y": None},
        "price": Decimal("1.00000"), "clock": "11:30:00.000000",
    }  # fmt: skip


@given(ROWS)
@GENERATED
def test_parquet_with_odd_values(rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as place:
        pq.write_table(
            pa.Table.from_struct_array(column(rows)), f"{place}/a.parquet", row_group_size=5
        )
        assert same(resumed_anywhere(place, rows_max=2), rows)


@given(st.lists(st.lists(TEXT, min_size=3, max_size=3), min_size=1, max_size=8))
@GENERATED
def test_csv_of_python(rows: list[list[str]]) -> None:
    with TemporaryDirectory() as place:
        with open(f"{place}/a.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows([["a", "b\n", "c"], *rows])
        found = [list(row.values()) for row in Following(place).until_caught_up()]
        assert found == rows


def test_csv_with_types_and_without_header(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(
        "1\t2.50\t2024-01-01T00:00:00Z\tx\n\t\t\t\n3\t4\t0001-01-01T00:00:00Z\t\n"
    )
    options: dict[str, Any] = {
        "columns": ("id", "price", "at", "name"),
        "types": ("id:int64", "price:decimal(10 2)", "at:timestamp"),
    }
    year_1 = datetime(1, 1, 1, tzinfo=UTC)
    assert resumed_anywhere(tmp_path, **options) == [
        {"id": 1, "price": Decimal("2.50"), "at": datetime(2024, 1, 1, tzinfo=UTC), "name": "x"},
        {"id": None, "price": None, "at": None, "name": None},
        {"id": 3, "price": Decimal("4.00"), "at": year_1, "name": None},
    ]


def test_json_lines(tmp_path: Path) -> None:
    lines = [{"id": n, "at": "2024-01-01", "x": None if n % 2 else 1.5} for n in range(50)]
    text = "\n\n".join(json.dumps(line) for line in lines)
    (tmp_path / "a.jsonl").write_text(text)
    assert [json.loads(line) for line in resumed_anywhere(tmp_path)] == lines
    assert resumed_anywhere(tmp_path, parse=True) == lines
    source = Following(tmp_path, key="id").source
    keys = [records.rows["key"].to_pylist() for records in next(source.read({})).records]
    assert [key for part in keys for key in part] == list(range(50))


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_compressed_lines(tmp_path: Path, ending: str, pack: Any) -> None:
    lines = [b"line %d \xff" % number for number in range(100)]
    (tmp_path / f"a.log{ending}").write_bytes(pack(b"\r\n".join(lines)))
    (tmp_path / f"b.csv{ending}").write_bytes(pack(b"a\n1\n2\n"))
    assert resumed_anywhere(tmp_path, rows_max=1) == [*lines, {"a": "1"}, {"a": "2"}]


@pytest.mark.parametrize("kind", ["text", "jsonl", "csv"])
def test_small_pieces_from_each_offset(tmp_path: Path, kind: str) -> None:
    seed = random.Random(7)
    cells = ["x" * seed.randrange(40), '"a\n,""b"', '"\n\n"', "é"]
    rows = ['"name",n', *(f"{seed.choice(cells)},{number}" for number in range(60))]
    if kind != "csv":
        rows = [json.dumps([row]) for row in rows]
    (tmp_path / "a").write_text("\n".join(rows) + "\n")
    options = ReadOptions(rows=10, types={}, parse=True, chunk_bytes=50)

    def parts(offset: int) -> Iterator[tuple[Any, int]]:
        entry = FileEntry("a", 0)
        with closing(location(str(tmp_path)).open(entry)) as file:
            yield from read_parts(file, "a", kind, offset, options)

    whole = [(values.to_pylist(), end) for values, end in parts(0)]
    everything = [row for values, _ in whole for row in values]
    assert len(everything) == 61 if kind != "csv" else 60
    assert len(whole) > 10
    done = 0
    for values, end in whole:
        done += len(values)
        assert [row for rest, _ in parts(end) for row in rest.to_pylist()] == everything[done:]


# Following


def test_new_grown_replaced_and_removed_files(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("b1\n")
    (tmp_path / ".hidden").write_text("no\n")
    run = Following(tmp_path)
    assert run.until_caught_up() == [b"b1"]
    (tmp_path / "a").write_text("a1\n")
    assert run.more() == [b"a1"]
    with (tmp_path / "b").open("a") as file:
        file.write("b2\nb3")
    assert run.more() == [b"b2", b"b3"]
    (tmp_path / "b").write_text("new\n")
    assert run.more() == [b"new"]
    assert run.reports == ["b has another size than before, and is read again"]
    assert run.positions["b"] == {"offset": 4, "size": 4}
    (tmp_path / "a").unlink()
    while "a" in run.positions:
        assert run.batch() == []
    assert run.source.facts() == {"files": 1, "files_read": 1}
    (tmp_path / "b").unlink()
    run.until_caught_up()
    assert "b" in run.positions


def test_a_growing_file_is_read_by_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntw")
    run = Following(tmp_path, tail=True)
    assert run.until_caught_up() == [b"one"]
    with path.open("a") as file:
        file.write("o\nthree\n")
    again = Following(tmp_path, run.positions, tail=True)
    assert again.until_caught_up() == [b"two", b"three"]
    assert run.more() == [b"two", b"three"]
    path.write_text("cut\n")
    assert run.more() == [b"cut"]


def test_a_file_that_is_not_complete_is_read_later(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    (tmp_path / "a.parquet").write_bytes(content[:-20])
    with pytest.raises(SourceUnavailable, match=r"a.parquet in .* cannot be read"):
        Following(tmp_path).batch()
    (tmp_path / "a.parquet").write_bytes(content)
    assert Following(tmp_path).batch() == [{"a": 1}, {"a": 2}]


def test_patterns(tmp_path: Path) -> None:
    paths = ["a.csv", "x/a.csv", "x/y/b.csv", "x/a.csv.bak"]
    for pattern, expected in {
        "*.csv": ["a.csv"],
        "**/*.csv": ["a.csv", "x/a.csv", "x/y/b.csv"],
        "x/?.csv": ["x/a.csv"],
        "**": paths,
        "x/**": paths[1:],
    }.items():
        assert [path for path in paths if matcher(pattern).fullmatch(path)] == expected


# Problems


def test_damaged_content_names_file_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1\n")
    with pytest.raises(ConnectorFailed, match=r"a.csv, bytes 4 to 6: .*Expected 2 columns, got 1"):
        Following(tmp_path).batch()
    (tmp_path / "a.csv").write_text("a,a\n1,2\n")
    with pytest.raises(ConnectorFailed, match="two columns have the same name"):
        Following(tmp_path).batch()
    (tmp_path / "a.csv").unlink()
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": \n')
    assert Following(tmp_path).batch() == [b'{"a": 1}', b'{"a": ']
    with pytest.raises(ConnectorFailed, match=r"a.jsonl, bytes 0 to 16: row 1: is not JSON"):
        Following(tmp_path, parse=True).batch()
    (tmp_path / "a.jsonl").write_text('{"a": 1}')
    with pytest.raises(ConnectorFailed, match="has no column 'b', which `key` names"):
        Following(tmp_path, key="b").batch()
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.avro").write_bytes(b"Obj\x02")
    with pytest.raises(SourceUnavailable, match="is not an Avro container file"):
        Following(tmp_path).batch()


def test_cut_avro_files_are_not_read_past_the_cut(tmp_path: Path) -> None:
    rows = [{"id": number} for number in range(40)]
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, rows, codec="deflate", sync_interval=1)
    content = (tmp_path / "a.avro").read_bytes()
    for size in range(4, len(content), 37):
        (tmp_path / "a.avro").write_bytes(content[:size])
        run = Following(tmp_path, rows_max=1)
        found: list[Any] = []
        try:
            found = run.batch()
            while not run.caught_up:
                found += run.batch()
        except SourceUnavailable:
            pass
        assert found == rows[: len(found)]
        (tmp_path / "a.avro").write_bytes(content)
        rest = Following(tmp_path, run.positions, rows_max=1).until_caught_up()
        assert found + rest == rows


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"types": ("a",)}, "write name:type"),
        ({"types": ("a:what",)}, "write name:type"),
        ({"key": "a", "file_format": "text"}, "have no columns"),
    ],
)
def test_settings_that_are_wrong(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        FileSourceSettings(url="/tmp", topic="t", **options)


def test_problems_and_plan(tmp_path: Path) -> None:
    def source(url: str, **options: Any) -> FileSource:
        settings = FileSourceSettings(url=url, topic="t", **options)
        return FileSource(settings, SourceContext(connector="c"))

    assert source(str(tmp_path)).problems() == []
    assert "there is no directory" in source(f"file://{tmp_path}/gone").problems()[0]
    (tmp_path / "a.csv").write_text("a\n1\n")
    assert "1 files with 4 bytes" in source(str(tmp_path)).plan()[0]
    assert source(str(tmp_path)).topics() == ("t",)
    assert column_types(("a:b:int8",)) == {"a:b": pa.int8()}
    with pytest.raises(InvalidSetting, match="name=value"):
        source("s3://bucket", options=("a",))


# Object stores


def test_an_object_store(s3: S3Server) -> None:
    url = s3.fresh_url()
    root = s3.directory / "objects" / url.removeprefix("s3://")
    options = tuple(f"{name}={value}" for name, value in s3.options().items())
    (root / "day 1").mkdir(parents=True)
    rows = [{"id": number, "name": "é"} for number in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), root / "day 1" / "a+b.parquet", row_group_size=1000)
    (root / "z.log").write_text("x\ny\n")
    with (root / "y.avro").open("wb") as file:
        schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
        fastavro.writer(file, schema, [{"id": 1}], codec="null")
    found = resumed_anywhere(url, options=options, rows_max=700)
    assert found == [*rows, {"id": 1}, b"x", b"y"]
    assert Following(url, options=options).source.problems() == []
    wrong = tuple(option.replace("penstock-secret", "x") for option in options)
    [problem] = Following(url, options=wrong).source.problems()
    assert "cannot list" in problem
