"""A registry without a network: schemas by id, by GUID and by subject, and a count of requests."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

from google.protobuf import descriptor_pb2

from penstock.client.errors import AdminUnavailable
from penstock.client.registered import ReaderSchema, RegistryPlace, SchemaContent
from penstock.client.schemas import RegistryRefused, SchemaClient, SchemaReference, StoredSchema

URL = "http://127.0.0.1:8081"


class FakeRegistry(SchemaClient):
    """Schemas that a test adds; those in `late` appear after the first pause."""

    def __init__(self) -> None:
        super().__init__(URL)
        self.schemas: dict[int, StoredSchema] = {}
        self.late: dict[int, StoredSchema] = {}
        self.subjects_with: dict[str, list[int]] = {}
        self.asked: list[object] = []
        self.pauses = 0
        self.away = False

    def add(
        self,
        schema_id: int,
        text: Any,
        kind: str = "AVRO",
        *,
        subject: str = "orders-value",
        references: tuple[SchemaReference, ...] = (),
        late: bool = False,
    ) -> str:
        """Add a schema as the newest version of a subject; return its GUID."""
        given = text if isinstance(text, str) else json.dumps(text)
        guid = str(UUID(int=schema_id << 64 | 7))
        stored = StoredSchema(
            schema=given, schema_type=kind, references=references, id=schema_id, guid=guid,
            subject=subject, version=len(self.subjects_with.get(subject, ())) + 1,
        )  # fmt: skip
        (self.late if late else self.schemas)[schema_id] = stored
        self.subjects_with.setdefault(subject, []).append(schema_id)
        return guid

    def _found(self, key: object, found: StoredSchema | None) -> StoredSchema:
        self.asked.append(key)
        if self.away:
            raise AdminUnavailable(f"the schema registry {URL} cannot be reached")
        if found is None:
            raise RegistryRefused(URL, 404, 40403, "Schema not found")
        return found

    def schema(self, schema_id: int, *, subject: str = "", output: str = "") -> StoredSchema:
        return self._found(schema_id, self.schemas.get(schema_id))

    def schema_by_guid(self, guid: str, *, output: str = "") -> StoredSchema:
        found = (schema for schema in self.schemas.values() if schema.guid == guid)
        return self._found(guid, next(found, None))

    def version(
        self,
        subject: str,
        version: int | str = "latest",
        *,
        deleted: bool = False,
        output: str = "",
    ) -> StoredSchema:
        ids = self.subjects_with.get(subject, [])
        place = len(ids) if version == "latest" else int(version)
        known = self.schemas.get(ids[place - 1]) if 0 < place <= len(ids) else None
        return self._found((subject, version), known)

    def pause(self) -> None:
        self.pauses += 1
        self.schemas |= self.late


def framed(schema_id: int, content: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + content


def framed_by_guid(guid: str, content: bytes) -> bytes:
    return b"\1" + UUID(guid).bytes + content


def reader_schema(document: Any, kind: Any = "AVRO", **more: Any) -> ReaderSchema:
    text = document if isinstance(document, str) else json.dumps(document)
    return ReaderSchema(content=SchemaContent(kind=kind, text=text), **more)


def place() -> RegistryPlace:
    return RegistryPlace(url=URL)


def descriptor(file: descriptor_pb2.FileDescriptorProto) -> str:
    """The text of a Protobuf schema, as a registry returns it."""
    return base64.b64encode(file.SerializeToString()).decode()
