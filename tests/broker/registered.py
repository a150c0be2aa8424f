"""Schema ids that a test has registered, and brokers that check produced records against them."""

from __future__ import annotations

import struct
from collections.abc import Collection
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.broker.server import BrokerServer
from penstock.records.columnar.schema_ids import SchemaId

GUID = UUID("c0ffee00-1234-5678-9abc-def012345678")


class Registered:
    """Ids that a broker has in memory, and `later` ones, which other brokers have registered."""

    def __init__(self, *ids: SchemaId) -> None:
        self.ids: set[SchemaId] = set(ids)
        self.later: set[SchemaId] = set()
        self.refreshes = 0
        self.fails: PenstockError | None = None
        self.asked: list[tuple[tuple[SchemaId, ...], str | None]] = []

    def missing(self, ids: Collection[SchemaId], subject: str | None) -> list[SchemaId]:
        self.asked.append((tuple(ids), subject))
        return [schema_id for schema_id in ids if schema_id not in self.ids]

    async def refresh(self) -> None:
        self.refreshes += 1
        if self.fails is not None:
            raise self.fails
        self.ids |= self.later


def give(broker: BrokerServer, registered: Registered | None) -> None:
    """Replace the registry of a broker."""
    broker.assembly.schema_checks._registered = registered


def framed(schema_id: SchemaId, payload: bytes = b"payload") -> bytes:
    if isinstance(schema_id, UUID):
        return b"\1" + schema_id.bytes + payload
    return b"\0" + struct.pack(">I", schema_id) + payload
