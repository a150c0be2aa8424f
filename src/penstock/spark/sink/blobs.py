"""Staged blobs: record batches of one Spark task, uploaded before the commit.

    blob      sections, back to back
    section   record batches (v2), back to back, of one topic partition; base offsets count from 0
              within the section; no producer id, not transactional

The driver's commit request (the manifest) has one entry per blob. An entry has the blob's name and
size, and the topic, partition, position, size in bytes and record count of each section. The broker
appends the blobs in the manifest's order, and the sections in the blob's order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.records.columnar import EncodedBatch
from penstock.spark.sink.placing import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Part of a blob: the records of one topic partition."""

    topic: str
    topic_id: str
    partition: int
    position: int
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Staged blob; `holders` are the admin addresses of the brokers that store it."""

    name: str
    size_bytes: int
    sections: tuple[Section, ...]
    holders: tuple[str, ...]

    @property
    def records(self) -> int:
        return sum(section.records for section in self.sections)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    def entry(self) -> str:
        body = asdict(self)
        del body["holders"]
        return json.dumps(body, separators=(",", ":"))


def blob_from_json(text: str) -> Blob:
    body = json.loads(text)
    sections = tuple(Section(**section) for section in body.pop("sections"))
    return Blob(**body | {"holders": tuple(body["holders"])}, sections=sections)


class BlobParts:
    """Blob under construction: pieces of bytes, and their sections."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.sections: list[Section] = []
        self.size_bytes = 0

    def add(self, target: Target, partition: int, batches: Sequence[EncodedBatch]) -> None:
        size_bytes = sum(batch.size_bytes for batch in batches)
        self.sections.append(
            Section(
                topic=target.name,
                topic_id=target.topic_id,
                partition=partition,
                position=self.size_bytes,
                size_bytes=size_bytes,
                records=sum(batch.record_count for batch in batches),
            )
        )
        self.pieces += [batch.data for batch in batches]
        self.size_bytes += size_bytes

    def named(self, name: str, holders: tuple[str, ...]) -> Blob:
        return Blob(
            name=name,
            size_bytes=self.size_bytes,
            sections=tuple(self.sections),
            holders=holders,
        )
