"""Values of a table as Avro with the id of a registered schema, column by column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.client.errors import InvalidArgument
from penstock.client.registered import SchemaContent, opened, pinned, writer_content
from penstock.client.schemas import SchemaClient, StoredSchema
from penstock.formats import avro
from penstock.formats.avro_encode import Unencodable, encode
from penstock.formats.framing import SchemaKey

MAGIC: Final = b"\0"


class ValueSchema(Struct, frozen=True, kw_only=True):
    """Avro schema with which a table's values are written.

    Attributes:
        registry: URL of the schema registry, or its client.
        schema: the schema as JSON text or as a document; None for the newest version of the
            subject.
        subject: the subject; None for that of the topic's values.
        register: whether the schema is registered if the subject does not have it.
    """

    registry: str | SchemaClient
    schema: str | Mapping[str, Any] | None = None
    subject: str | None = None
    register: bool = True


def encoded(batches: Any, given: ValueSchema, topic: str, value: str, names: set[str]) -> Any:
    """Return a reader of record batches with encoded values, from a reader of values as structs.

    If the batches have no column `value`, the values are made of all columns without another role.

    Args:
        names: names of the columns with another role.

    Raises:
        InvalidArgument: the schema is not Avro, or a column does not fit it.
        RegistryRefused: the registry rejects the schema, or does not have it.
        AdminUnavailable: the registry does not answer.
    """
    with opened(given.registry) as client:
        schema_id, content = _registered(client, given, given.subject or f"{topic}-value")
    documents = [json.loads(text) for _, text in content.parts]
    node = avro.parse(json.loads(content.text), documents)
    head = pa.scalar(MAGIC + schema_id.to_bytes(4, "big"), pa.binary())
    kept = [name for name in batches.schema.names if name in names]
    fields = [batches.schema.field(name) for name in kept]
    schema = pa.schema([*fields, pa.field(value, pa.binary())])
    made = (_encoded(batch, node, value, kept, head, schema) for batch in batches)
    return pa.RecordBatchReader.from_batches(schema, made)


def _registered(
    client: SchemaClient, given: ValueSchema, subject: str
) -> tuple[int, SchemaContent]:
    if given.schema is None:
        newest = pinned(client, subject)
        if newest.content.kind != "AVRO" or newest.id is None:
            raise InvalidArgument(f"schema: {newest.origin} is {newest.content.kind}, must be AVRO")
        return newest.id, newest.content
    text = given.schema if isinstance(given.schema, str) else json.dumps(given.schema)
    stored = StoredSchema(schema=text)
    if given.register:
        schema_id = client.register(subject, stored)
    else:
        schema_id = client.look_up(subject, stored)
    return schema_id, writer_content(client, SchemaKey(str(schema_id)), subject)


def _encoded(
    batch: Any, node: avro.Record, value: str, kept: list[str], head: Any, schema: Any
) -> Any:
    if value in batch.schema.names:
        rows = batch.column(value)
    else:
        others = [name for name in batch.schema.names if name not in kept]
        rows = batch.select(others).to_struct_array()
    there = rows.is_valid()
    try:
        octets = encode(node, rows.drop_null())
    except Unencodable as error:
        raise InvalidArgument(f"column {value!r}: {error}") from None
    framed = pc.binary_join_element_wise(head, octets, b"")
    if rows.null_count:
        framed = pc.replace_with_mask(pa.nulls(len(rows), pa.binary()), there, framed)
    return pa.RecordBatch.from_arrays(
        [*(batch.column(name) for name in kept), framed], schema=schema
    )
