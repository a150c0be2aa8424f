"""Rows of sink commits in SQLite; the table is in `migrations/sqlite/0002_sink_commits.sql`.

Lanes are a JSON list of lists, `[topic, topic id, partition, producer id, base sequence, records,
base offset, next offset]`, compressed by zlib: a query of hundreds of partitions saves them with
every batch. Every function runs inside a transaction of the writer.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from penstock.control.metadata.sqlite_tables import read_fact, write_fact
from penstock.control.sink_commits.rules import next_sink_version
from penstock.control.values import SinkCommit, SinkLane

_ZLIB_LEVEL: Final = 1
_HIGHEST_VERSION: Final = "highest_sink_version"
_COLUMNS: Final = "query_id, version, owner, batch_id, state, updated_ms, lanes"


def read_sink(
    connection: sqlite3.Connection, query_id: str, *, manifest: bool = True
) -> SinkCommit | None:
    """One query's commit, with its manifest or with an empty one in its place."""
    columns = f"{_COLUMNS}, manifest" if manifest else f"{_COLUMNS}, x''"
    row = connection.execute(
        f"SELECT {columns} FROM sink_commits WHERE query_id = ?",  # noqa: S608  (both fixed)
        (query_id,),
    ).fetchone()
    return None if row is None else _sink(row)


def read_sinks(connection: sqlite3.Connection) -> list[SinkCommit]:
    rows = connection.execute(
        f"SELECT {_COLUMNS}, x'' FROM sink_commits ORDER BY query_id"  # noqa: S608  (fixed)
    )
    return [_sink(row) for row in rows]


def count_sinks(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM sink_commits").fetchone()[0])


def write_sink(connection: sqlite3.Connection, record: SinkCommit, version: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO sink_commits VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.query_id,
            version,
            record.owner,
            record.batch_id,
            record.state,
            record.updated_ms,
            encode_lanes(record.lanes),
            record.manifest,
        ),
    )


def save_sink(connection: sqlite3.Connection, record: SinkCommit, expected_version: int) -> int:
    """Store a query's commit by the rules; its new version. Raises StaleSink or TooLarge."""
    version = next_sink_version(
        record,
        found=read_sink(connection, record.query_id, manifest=False),
        expected=expected_version,
        highest=int(read_fact(connection, _HIGHEST_VERSION) or 0),
        count=count_sinks(connection),
    )
    write_sink(connection, record, version)
    write_fact(connection, _HIGHEST_VERSION, str(version))
    return version


def delete_sink(connection: sqlite3.Connection, query_id: str) -> None:
    connection.execute("DELETE FROM sink_commits WHERE query_id = ?", (query_id,))


def encode_lanes(lanes: Iterable[SinkLane]) -> bytes:
    rows = [
        [
            lane.topic,
            lane.topic_id.hex,
            lane.partition,
            lane.producer_id,
            lane.base_sequence,
            lane.records,
            lane.base_offset,
            lane.next_offset,
        ]
        for lane in lanes
    ]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), _ZLIB_LEVEL)


def decode_lanes(data: bytes) -> tuple[SinkLane, ...]:
    return tuple(
        SinkLane(
            topic=topic,
            topic_id=UUID(hex=topic_id),
            partition=partition,
            producer_id=producer_id,
            base_sequence=base_sequence,
            records=records,
            base_offset=base_offset,
            next_offset=next_offset,
        )
        for (
            topic, topic_id, partition, producer_id, base_sequence, records, base_offset,
            next_offset,
        ) in json.loads(zlib.decompress(data))
    )  # fmt: skip


def _sink(row: tuple[Any, ...]) -> SinkCommit:
    query_id, version, owner, batch_id, state, updated_ms, lanes, manifest = row
    return SinkCommit(
        query_id=query_id,
        owner=owner,
        batch_id=batch_id,
        state=state,
        lanes=decode_lanes(lanes),
        manifest=bytes(manifest),
        updated_ms=updated_ms,
        version=version,
    )
