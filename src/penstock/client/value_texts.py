"""Values as JSON texts, each by its own schema, to be shown to people.

Nothing is resolved, so values of any number of schemas can be shown together. Bytes are shown in
base64. A union of several types is an object with one member.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.system import SYSTEM_CLOCK
from penstock.client.decoding import (
    UNKNOWN_SECONDS,
    Group,
    groups_of,
    schema_label,
    unframed_words,
)
from penstock.client.registered import ID_MAX, SchemaContent, writer_content
from penstock.client.schemas import RegistryRefused, SchemaClient
from penstock.formats import avro
from penstock.formats.framing import SchemaKey, message_paths, skip_indexes
from penstock.formats.json.writing import json_rows
from penstock.formats.protobuf import message_of
from penstock.formats.protobuf_resolution import message_at, message_of_schema
from penstock.formats.value_format import InvalidFormat
from penstock.formats.values import ABSENT, Values

_WRAPPER: Final = '{"value":'
"""Beginning of a record with one field, which has the same Avro bytes as the field's value."""

Texts = tuple[pa.StringArray, pa.StringArray]
"""A JSON text for each value, and an error for each value that cannot be decoded."""


class ValueTexts:
    """JSON texts of values with ids of a registry's schemas; for one thread."""

    def __init__(self, client: SchemaClient, header: str) -> None:
        self._client = client
        self._header = header
        self._shown: dict[SchemaKey, Callable[[Group], Texts] | str] = {}
        self._until: dict[SchemaKey, float] = {}

    def read(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> Texts:
        """Return the texts and errors of values; both are null for a null value.

        Raises:
            AdminUnavailable: the registry does not answer.
            RegistryRefused: the registry rejects the request.
        """
        found = Values.of(values)
        texts: list[str | None] = [None] * len(found)
        errors: list[str | None] = [None] * len(found)
        groups = list(groups_of(found, headers, self._header))
        unframed = found.texts(unframed_words).to_pylist()
        for group in groups:
            group.payload.problems[group.payload.problems > 0] = ABSENT
            for row, text, error in zip(group.rows.tolist(), *self._texts(group), strict=True):
                texts[row], errors[row] = text, error
        merged = [other or error for error, other in zip(errors, unframed, strict=True)]
        return pa.array(texts, pa.string()), pa.array(merged, pa.string())

    def _texts(self, group: Group) -> tuple[list[str | None], list[str | None]]:
        show = self._show(group.key)
        bad = group.payload.problems != 0
        if isinstance(show, str):
            return [None] * len(group.rows), [None if wrong else show for wrong in bad.tolist()]
        texts, errors = show(group)
        named = [error and f"{schema_label(group.key)}: {error}" for error in errors.to_pylist()]
        return texts.to_pylist(), named

    def _show(self, key: SchemaKey) -> Callable[[Group], Texts] | str:
        known = self._shown.get(key)
        if known is not None and self._until.get(key, np.inf) > SYSTEM_CLOCK.monotonic():
            return known
        content = self._fetched(key)
        self._until.pop(key, None)
        if content is None:
            self._until[key] = SYSTEM_CLOCK.monotonic() + UNKNOWN_SECONDS
            made: Callable[[Group], Texts] | str = (
                f"{schema_label(key)} is not in the schema registry {self._client.url}"
            )
        else:
            made = _shown(key, content)
        self._shown[key] = made
        return made

    def _fetched(self, key: SchemaKey) -> SchemaContent | None:
        if key.isdecimal() and int(key) > ID_MAX:
            return None
        for last in (False, True):
            try:
                return writer_content(self._client, key, None)
            except RegistryRefused as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
            if not last:
                self._client.pause()
        return None


def _shown(key: SchemaKey, content: SchemaContent) -> Callable[[Group], Texts] | str:
    try:
        if content.kind == "AVRO":
            return _avro(content)
        return _json if content.kind == "JSON" else lambda group: _protobuf(content, key, group)
    except (InvalidFormat, ValueError, RecursionError) as error:
        return f"{schema_label(key)} cannot be shown: {error}"


def _avro(content: SchemaContent) -> Callable[[Group], Texts]:
    from penstock.formats.avro_decode import decode

    documents = [json.loads(text) for _, text in content.parts]
    field = {"name": "value", "type": json.loads(content.text)}
    node = avro.parse({"type": "record", "name": "_Value", "fields": [field]}, documents)

    def show(group: Group) -> Texts:
        rows, errors = decode(node, group.payload)
        texts = json_rows(_printable(rows))
        inner = pc.utf8_slice_codeunits(texts, len(_WRAPPER), -1)
        return pc.if_else(pc.equal(texts, "{}"), "null", inner), errors

    return show


def _json(group: Group) -> Texts:
    found = group.payload
    texts: list[str | None] = []
    errors: list[str | None] = []
    bounds = zip(found.starts.tolist(), found.ends.tolist(), found.problems.tolist(), strict=True)
    for start, end, problem in bounds:
        content = found.data[start:end].tobytes()
        try:
            text = None if problem else json.dumps(json.loads(content), ensure_ascii=False)
            texts.append(text)
            errors.append(None)
        except (ValueError, RecursionError):
            texts.append(None)
            errors.append("the value is not JSON")
    return pa.array(texts, pa.string()), pa.array(errors, pa.string())


def _protobuf(content: SchemaContent, key: SchemaKey, group: Group) -> Texts:
    from penstock.formats.protobuf_decode import decode

    texts: list[str | None] = [None] * len(group.rows)
    readable = group.frames.problems == 0
    errors = ["the message indexes cannot be read" if each else None for each in readable.tolist()]
    for path, rows in message_paths(group.frames):
        frames = group.frames.take(rows)
        payload = frames if group.frames is group.payload else group.payload.take(rows)
        try:
            name = message_at(content.text, content.parts, path)
            found = message_of_schema(content.text, content.parts, name, schema_label(key))
            message = message_of(found)
            skip_indexes(frames, path)
            decoded, wrong = decode(message, payload, exact=False)
        except InvalidFormat as refused:
            for row in rows.tolist():
                errors[row] = str(refused)
            continue
        if message.special is None:
            shown = json_rows(_printable(decoded)).to_pylist()
        else:
            shown = [json.dumps(value, default=str) for value in decoded.to_pylist()]
        for row, text, problem in zip(rows.tolist(), shown, wrong.to_pylist(), strict=True):
            texts[row], errors[row] = None if problem else text, problem
    return pa.array(texts, pa.string()), pa.array(errors, pa.string())


def _printable(column: Any) -> Any:
    """Return a column with base64 in place of bytes, and texts in place of columns of nulls."""
    kind = column.type
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        parts = [_printable(part) for part in _fields(column)]
        return pa.StructArray.from_arrays(parts, names=[part.name for part in kind], mask=mask)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(column.offsets, _printable(column.values), mask=mask)
    if pa.types.is_map(kind):
        items = _printable(column.items)
        return pa.MapArray.from_arrays(column.offsets, column.keys, items, mask=mask)
    if pa.types.is_binary(kind):
        texts = (value and base64.b64encode(value).decode() for value in column.to_pylist())
        return pa.array(list(texts), pa.string())
    return column.cast(pa.string()) if pa.types.is_null(kind) else column


def _fields(column: Any) -> Iterator[Any]:
    return (column.field(number) for number in range(column.type.num_fields))
