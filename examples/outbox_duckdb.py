"""Query an outbox in place with DuckDB: no load, no broker, no copy.

    python examples/outbox_duckdb.py [ROOT]

The tree is laid out in Hive's manner, so DuckDB prunes by year, month, day and hour without opening
a file (with `hive_types`; `month=05` is text without them); the partition id is taken from the
path. Payloads here are lines of JSON; Parquet works the same with `read_parquet`. Temporary files
have other names and are never seen. Without ROOT the example writes a small outbox of its own into
a temporary directory.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb

from penstock.outbox import Outbox, OutboxSettings

HOUR_MS = 3_600_000
BASE_MS = 1_779_580_800_000  # 24 May 2026, 00:00 UTC
PAYLOADS = "*/year=*/month=*/day=*/hour=*/batch-*/data.bin"
READINGS = """
    SELECT regexp_extract(filename, '([^/]+)/year=', 1) AS station, *
    FROM read_json(?, format = 'newline_delimited', filename = true, hive_partitioning = true,
                   hive_types = {year: INTEGER, month: INTEGER, day: INTEGER, hour: INTEGER},
                   columns = {minute: 'INTEGER', celsius: 'DOUBLE'})
"""


def fill(root: Path) -> None:
    """Write a day of readings of three stations, one batch an hour."""
    with Outbox(OutboxSettings(root=str(root), durable=False)) as outbox:
        for number, station in enumerate(("EWR", "JFK", "LGA")):
            for hour in range(24):
                lines = [
                    json.dumps({"minute": minute, "celsius": number + hour / 2 + minute / 60})
                    for minute in range(0, 60, 10)
                ]
                outbox.write(
                    "\n".join(lines).encode(),
                    partition_id=station,
                    batch_id=f"{station}-{hour:02}",
                    at_ms=BASE_MS + hour * HOUR_MS,
                    event_count=len(lines),
                )


def warmest(root: Path, first_hour: int, last_hour: int) -> list[tuple[Any, ...]]:
    """Station, readings and highest temperature of some hours; other hours' files stay closed."""
    pattern = str(root / PAYLOADS)
    query = f"""
        SELECT station, count(*) AS readings, round(max(celsius), 2) AS warmest
        FROM ({READINGS})
        WHERE year = 2026 AND month = 5 AND day = 24 AND hour BETWEEN ? AND ?
        GROUP BY station ORDER BY station
    """
    with duckdb.connect() as connection:
        return connection.execute(query, [pattern, first_hour, last_hour]).fetchall()


def volumes(root: Path) -> list[tuple[Any, ...]]:
    """Files and bytes of every station, from the payloads' sizes alone."""
    query = """
        SELECT regexp_extract(filename, '([^/]+)/year=', 1) AS station, count(*), sum(size)::BIGINT
        FROM read_blob(?) GROUP BY station ORDER BY station
    """
    with duckdb.connect() as connection:
        return connection.execute(query, [str(root / PAYLOADS)]).fetchall()


def main(root: Path) -> None:
    """Print both tables."""
    for station, readings, highest in warmest(root, 6, 11):
        print(f"{station}: {readings} readings from 06 to 11 o'clock, at most {highest} degrees")
    for station, files, size_bytes in volumes(root):
        print(f"{station}: {files} files, {size_bytes} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            fill(Path(directory))
            main(Path(directory))
