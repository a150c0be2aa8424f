"""Statements for the table of sink commits, and conversion of its rows.

The column `lanes` has a commit's targets, as JSON compressed by zlib: a list of `[topic, topic id,
partition, producer id, base sequence, records, base offset, next offset]`. A query may write to
hundreds of partitions, and stores them with every batch. The manifest is opaque here.

Versions come from one counter for all queries: a sequence in PostgreSQL, a row of `counters` in
SQLite.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from penstock.control.drivers.statements import changed, row, rows, value
from penstock.control.values import SinkCommit, SinkTarget

_ZLIB_LEVEL: Final = 1
_COLUMNS: Final = "query_id, version, owner, batch_id, state, updated_ms, lanes"
_NEXT_VERSION: Final = "UPDATE counters SET value = value + 1 WHERE name = 'highest_sink_version'"
_VERSION: Final = "(SELECT value FROM counters WHERE name = 'highest_sink_version')"

read = row(f"SELECT {_COLUMNS}, manifest FROM sink_commits WHERE query_id = $1")  # noqa: S608
lock = row(f"SELECT {_COLUMNS} FROM sink_commits WHERE query_id = $1 FOR UPDATE")  # noqa: S608
read_all = rows(f"SELECT {_COLUMNS} FROM sink_commits ORDER BY query_id")  # noqa: S608
count = value("SELECT count(*) FROM sink_commits")
insert = value(
    "INSERT INTO sink_commits VALUES ($1, nextval('sink_versions'), $2, $3, $4, $5, $6, $7)"
    " ON CONFLICT (query_id) DO NOTHING RETURNING version",
    sqlite=(
        _NEXT_VERSION,
        f"INSERT INTO sink_commits VALUES ($1, {_VERSION}, $2, $3, $4, $5, $6, $7)",  # noqa: S608
        f"SELECT {_VERSION}",
    ),
)
update = value(
    "UPDATE sink_commits SET version = nextval('sink_versions'), owner = $2, batch_id = $3,"
    " state = $4, updated_ms = $5, lanes = $6, manifest = $7 WHERE query_id = $1 RETURNING version",
    sqlite=(
        _NEXT_VERSION,
        f"UPDATE sink_commits SET version = {_VERSION}, owner = $2, batch_id = $3,"  # noqa: S608
        " state = $4, updated_ms = $5, lanes = $6, manifest = $7 WHERE query_id = $1",
        f"SELECT {_VERSION}",
    ),
)
delete = changed("DELETE FROM sink_commits WHERE query_id = $1")


def values_of(record: SinkCommit) -> tuple[Any, ...]:
    return (
        record.query_id,
        record.owner,
        record.batch_id,
        record.state,
        record.updated_ms,
        encode_targets(record.targets),
        record.manifest,
    )


def commit_of(found: Any) -> SinkCommit:
    query_id, version, owner, batch_id, state, updated_ms, targets, *manifest = found
    return SinkCommit(
        query_id=query_id,
        owner=owner,
        batch_id=batch_id,
        state=state,
        targets=decode_targets(targets),
        manifest=manifest[0] if manifest else b"",
        updated_ms=updated_ms,
        version=version,
    )


def encode_targets(targets: Iterable[SinkTarget]) -> bytes:
    rows = [
        [
            target.topic,
            target.topic_id.hex,
            target.partition,
            target.producer_id,
            target.base_sequence,
            target.records,
            target.base_offset,
            target.next_offset,
        ]
        for target in targets
    ]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), _ZLIB_LEVEL)


def decode_targets(data: bytes) -> tuple[SinkTarget, ...]:
    return tuple(
        SinkTarget(
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
