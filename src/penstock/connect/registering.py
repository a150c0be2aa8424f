"""Keys and values with the schemas of a registry, and the converters by the options of a file.

A source registers the Avro schema of each type that a topic's rows have, as a version of the
subject `<topic>-key` or `<topic>-value`. The registry's compatibility rules apply. A sink reads all
values of a topic by the newest schema of its subject.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidSetting
from penstock.client.decoding import RegistryReader
from penstock.client.encoding import MAGIC
from penstock.client.registered import opened, pinned, registry_place
from penstock.client.schemas import StoredSchema
from penstock.connect.connector_file import ValueOptions
from penstock.connect.converting import Converter, JsonConverter
from penstock.connect.errors import RowsRejected
from penstock.formats import avro
from penstock.formats.avro_encode import encode
from penstock.formats.avro_schemas import schema_of

REGISTRY_VARIABLE: Final = "PENSTOCK_REGISTRY"
"""Environment variable with the address of the schema registry."""
REGISTRY: Final = "registry"


def registry_of(options: ValueOptions) -> str:
    """Return the URL of the registry.

    Raises:
        InvalidSetting: neither the file nor the environment has one.
    """
    found = options.registry or os.environ.get(REGISTRY_VARIABLE, "")
    if not found:
        raise InvalidSetting(
            "registry",
            "",
            f'is missing; write registry = "http://host:8081" or set {REGISTRY_VARIABLE}',
        )
    return found


def converters(options: ValueOptions) -> tuple[Converter, Converter]:
    """Return the converters of keys and of values; raises `InvalidSetting` as `registry_of`."""
    key, value = (
        RegistryConverter(registry_of(options), role) if kind == REGISTRY else JsonConverter()
        for role, kind in (("key", options.key_format or options.format), ("value", options.format))
    )
    return key, value


class RegistryConverter:
    """Conversion to Avro with the id of a registered schema."""

    def __init__(self, registry: str, role: str) -> None:
        self._place = registry_place(registry)
        self._role = role
        self._known: dict[tuple[str, Any], tuple[int, avro.Node]] = {}

    def convert(self, topic: str, column: Any) -> Any:
        """Return a column of bytes; null values stay null.

        Raises:
            InvalidError: Avro has no such type, or the registry rejects the schema.
            AdminUnavailable: the registry does not respond.
        """
        if pa.types.is_null(column.type) or column.null_count == len(column):
            return pa.nulls(len(column), pa.binary())
        number, node = self._schema(topic, column.type)
        head = pa.scalar(MAGIC + number.to_bytes(4, "big"), pa.binary())
        framed = pc.binary_join_element_wise(head, encode(node, column.drop_null()), b"")
        if not column.null_count:
            return framed
        return pc.replace_with_mask(pa.nulls(len(column), pa.binary()), column.is_valid(), framed)

    def _schema(self, topic: str, kind: Any) -> tuple[int, avro.Node]:
        known = (topic, kind)
        if known not in self._known:
            name = self._role.capitalize()
            schema = schema_of(kind, name)
            root: Any = {"type": "record", "name": "Root"}
            root["fields"] = [{"name": "root", "type": schema}]
            with opened(self._place) as client:
                text = schema if isinstance(schema, dict) else {"type": schema}
                number = client.register(
                    f"{topic}-{self._role}", StoredSchema(schema=json.dumps(text))
                )
            self._known[known] = (number, avro.parse(root).fields[0].node)
        return self._known[known]


class RegistryDecoder:
    """Decoder of values by the newest schemas of their subjects."""

    def __init__(self, registry: str, role: str) -> None:
        self._place = registry_place(registry)
        self._role = role
        self._readers: dict[str, RegistryReader] = {}

    def decode(self, topic: str, values: Any, headers: Any) -> Any:
        """Return a column of decoded values.

        Raises:
            RowsRejected: some values cannot be decoded.
            AdminUnavailable: the registry does not respond.
        """
        if topic not in self._readers:
            with opened(self._place) as client:
                schema = pinned(client, f"{topic}-{self._role}")
            self._readers[topic] = RegistryReader(place=self._place, schema=schema)
        decoded, errors = self._readers[topic].read(values, headers)
        bad = pc.and_(errors.is_valid(), values.is_valid())
        if pc.any(bad, min_count=0).as_py():
            rows = pc.indices_nonzero(bad)
            raise RowsRejected(rows.to_pylist(), errors.take(rows).to_pylist())
        return decoded
