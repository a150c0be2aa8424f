"""Runs of the file connectors that are killed: each row is there once, in order."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.testing import Broker
from tests.connect.postgresql.bed import run_once
from tests.sampling import sample

FILES = 12
ROWS = 1_000
SOURCE = """\
name = "{name}"
[source]
connector = "files"
url = "{place}"
topic = "{name}"
parse = true
rows_max = 200
"""
SINK = """\
name = "{name}-out"
[sink]
connector = "files"
url = "{place}"
topics = ["{name}"]
file_format = "jsonl"
metadata = ["offset"]
rotate_rows = 200
batch_rows = 100
folders = "{folders}"
folder_field = "time"
"""


def killed_run(file: Path, broker: Broker, reached: Callable[[], bool]) -> None:
    """Run a connector in a process, and kill it when it has reached a point."""
    command = ["connect", "run", str(file), "-b", broker.bootstrap]
    process = subprocess.Popen([sys.executable, "-m", "penstock", *command])
    try:
        while not reached():
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", sample([1, 8, 16], 8))
def test_each_row_once_after_kills(tmp_path: Path, kills: int) -> None:
    seed = random.Random(kills)
    inside, outside = tmp_path / "in", tmp_path / "out"
    rows = [{"id": number, "time": number * 7_200_000} for number in range(FILES * ROWS)]
    inside.mkdir()
    for number in range(FILES):
        part = rows[number * ROWS : (number + 1) * ROWS]
        path = inside / f"{number:03}"
        if number % 2:
            path.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, part)))
        else:
            pq.write_table(pa.Table.from_pylist(part), path.with_suffix(".parquet"))
    source, sink = tmp_path / "source.toml", tmp_path / "sink.toml"
    source.write_text(SOURCE.format(name="copy", place=inside))
    sink.write_text(SINK.format(name="copy", place=outside, folders="year=%Y"))
    with Broker() as broker, broker.client() as client:
        broker.create_topic("copy")

        def rows_there() -> int:
            return client.list_offsets("copy", "latest")[0]

        def files_there() -> int:
            return sum(1 for _ in outside.rglob("copy+*.jsonl"))

        for _ in range(kills):
            more = rows_there() + seed.randrange(1, 2 * len(rows) // kills)
            end = len(rows)
            killed_run(source, broker, lambda more=more, end=end: rows_there() >= min(more, end))  # type: ignore[misc]
        run_once(source, broker.bootstrap)
        found = client.read_arrow("copy", isolation="read_committed")["value"].to_pylist()
        assert [json.loads(value) for value in found] == rows
        for _ in range(kills):
            more = files_there() + seed.randrange(1, 3)
            killed_run(sink, broker, lambda more=more: files_there() >= more)  # type: ignore[misc]
        run_once(sink, broker.bootstrap)
    files = f"read_json('{outside}/**/*.jsonl', hive_partitioning = false)"
    table = duckdb.execute(f"select id, time, _offset from {files} order by _offset").fetchall()
    assert [{"id": row[0], "time": row[1]} for row in table] == rows
