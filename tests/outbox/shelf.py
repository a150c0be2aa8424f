"""Outbox written by hand: valid and invalid files and records, for tests of the read path."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from penstock.base.crc import crc32c
from penstock.client import Client
from penstock.outbox.layout import data_path
from penstock.outbox.pointer import (
    Inline,
    OutboxRecord,
    Pointer,
    inline_record,
    pointer_record,
)
from penstock.records.columnar import HEADERS_TYPE

AT_MS = 1_779_580_800_000
HOUR_MS = 3_600_000
NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Shelf:
    """Root and, for records, its own topic."""

    root: Path
    client: Client
    topic: str
    dead: str

    def file(
        self,
        payload: bytes = b"payload",
        *,
        batch_id: str | None = None,
        partition_id: str = "p",
        at_ms: int = AT_MS,
        age_ms: int = 0,
        **more: Any,
    ) -> Pointer:
        """Write a payload's file; return its pointer, with the fields in `more` changed."""
        name = batch_id or f"b{next(NUMBERS)}"
        pointer = Pointer(
            file_path=data_path(partition_id, name, at_ms),
            batch_id=name,
            partition_id=partition_id,
            size_bytes=len(payload),
            crc32c=crc32c(payload),
            codec="none",
            event_count=1,
        )
        path = self.root / pointer.file_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
        if age_ms:
            self.age(path, age_ms)
        return replace(pointer, **more)

    def age(self, path: Path, age_ms: int) -> None:
        """Make a file and its parent directories older."""
        while path != self.root:
            moment = path.lstat().st_mtime - age_ms / 1000
            os.utime(path, (moment, moment), follow_symlinks=False)
            path = path.parent

    def path(self, pointer: Pointer) -> Path:
        return self.root / pointer.file_path

    def publish(self, *records: OutboxRecord | Pointer, partition: int = 0, **more: Any) -> None:
        made = [pointer_record(r) if isinstance(r, Pointer) else r for r in records]
        listed = [[{"key": name, "value": value} for name, value in r.headers] for r in made]
        table = pa.table(
            {
                "key": pa.array([r.key for r in made], pa.binary()),
                "value": pa.array([r.value for r in made], pa.binary()),
                "headers": pa.array(listed, HEADERS_TYPE),
                **{name: pa.array([value] * len(made)) for name, value in more.items()},
            }
        )
        self.client.write_arrow(self.topic, table, partition=partition)

    def inline(self, payload: bytes, *, batch_id: str | None = None) -> OutboxRecord:
        name = batch_id or f"b{next(NUMBERS)}"
        said = Inline(
            batch_id=name, partition_id="p", crc32c=crc32c(payload), codec="none", event_count=1
        )
        return inline_record(said, payload)

    def add(self, payload: bytes = b"payload", **more: Any) -> Pointer:
        """Write a file and publish its pointer."""
        pointer = self.file(payload, **more)
        self.publish(pointer)
        return pointer

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return all dead letters: key, value and headers by name."""
        rows = self.client.read_arrow(self.dead).to_pylist()
        return [
            {"key": row["key"], "value": row["value"]}
            | {header["key"]: header["value"] for header in row["headers"]}
            for row in rows
        ]
