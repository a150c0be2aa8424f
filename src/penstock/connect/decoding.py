"""Decoder of records for sinks: keys and values as columns.

In the format `json`, objects become structs with the fields that the batch has: whole numbers are
int64, other numbers double, texts stay texts. A value that is no JSON text is rejected. In the
format `registry`, values have the columns of the topic's newest schema.
"""

from __future__ import annotations

import io
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from penstock.connect.connector_file import ValueOptions
from penstock.connect.converting import whole
from penstock.connect.errors import RowsRejected
from penstock.connect.plugins import HEADERS, KEY, VALUE, Records
from penstock.connect.registering import REGISTRY, RegistryDecoder, registry_of

_FIELD: Final = "v"


class Decoder:
    """Decoder of keys and values by the options of a connector."""

    def __init__(self, options: ValueOptions) -> None:
        registered = options.format == REGISTRY
        self._registry = RegistryDecoder(registry_of(options), "value") if registered else None

    def decode(self, records: Records) -> Records:
        """Return rows whose keys and values are columns instead of bytes.

        Keys that are no JSON stay bytes.

        Raises:
            RowsRejected: values of some rows cannot be decoded.
        """
        rows = records.rows
        given = whole(rows.column(VALUE))
        if self._registry is not None:
            values = self._registry.decode(records.topic, given, whole(rows.column(HEADERS)))
        else:
            values = json_column(given)
        keys = whole(rows.column(KEY))
        try:
            keys = json_column(keys)
        except RowsRejected:
            keys = keys if keys.type != pa.binary() else keys.cast(pa.binary())
        for name, column in ((KEY, keys), (VALUE, values)):
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        return records.with_rows(rows)


def json_column(texts: Any) -> Any:
    """Return the values of a column of JSON texts; null stays null.

    Raises:
        RowsRejected: some texts are not JSON, or the batch has values of different types for a
            field.
    """
    given = texts.cast(pa.binary())
    there = given.filter(given.is_valid())
    if not len(there):
        return pa.nulls(len(given), pa.struct([]))
    lines = pc.binary_join_element_wise(
        pa.scalar(b'{"%b":' % _FIELD.encode()), there, pa.scalar(b"}"), b""
    )
    data = b"\n".join(lines.to_pylist())
    try:
        found = _read(data)
    except pa.ArrowInvalid as error:
        raise _rejected(given, str(error)) from error
    if len(found) != len(there):
        raise _rejected(given, "is not one JSON value")
    if len(there) == len(given):
        return found
    at = pc.if_else(given.is_valid(), pc.subtract(pc.cumulative_sum(
        given.is_valid().cast(pa.int64())), 1), None)  # fmt: skip
    return found.take(at)


def _read(data: bytes) -> Any:
    """Return the field of JSON lines as a column; texts are never read as times."""
    table = arrow_json.read_json(
        io.BytesIO(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
        parse_options=arrow_json.ParseOptions(newlines_in_values=True),
    )
    kind = table.schema.field(_FIELD).type
    plain = _without_times(kind)
    if plain != kind:
        table = arrow_json.read_json(
            io.BytesIO(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data)),
            parse_options=arrow_json.ParseOptions(
                newlines_in_values=True, explicit_schema=pa.schema([(_FIELD, plain)])
            ),
        )
    return whole(table.column(_FIELD))


def _without_times(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return kind


def _rejected(given: Any, reason: str) -> RowsRejected:
    """Return the error for the texts that are not JSON; for all rows if each of them is."""
    bad: list[int] = []
    reasons: list[str] = []
    for index, text in enumerate(given.to_pylist()):
        try:
            if text is not None:
                msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            bad.append(index)
            reasons.append(f"is not JSON: {error}")
    if not bad:
        bad = list(range(len(given)))
        reasons = [f"the batch has no common type: {reason}"] * len(bad)
    return RowsRejected(bad, reasons)
