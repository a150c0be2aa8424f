"""Values as JSON texts, each by its own schema, to be shown to people.

Nothing is resolved, so values of any number of schemas can be shown together. Bytes are shown in
base64. A union of several types is an object with one member.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.decoding import Group, groups_of, schema_label, unframed_words
from penstock.client.registered import SchemaContent, WriterSchemas
from penstock.client.schemas import SchemaClient
from penstock.formats import avro
from penstock.formats.framing import SchemaKey, message_paths, skip_indexes
from penstock.formats.json.writing import json_rows
from penstock.formats.protobuf import Message, message_of
from penstock.formats.protobuf_resolution import message_at, message_of_schema
from penstock.formats.value_format import InvalidFormat
from penstock.formats.values import ABSENT, Values

MESSAGES_MAX: Final = 64
"""Most messages of a Protobuf schema that are kept."""
_WRAPPER: Final = '{"value":'
"""Beginning of a record with one field, which has the same Avro bytes as the field's value."""

Texts = tuple[pa.StringArray, pa.StringArray]
"""A JSON text for each value, and an error for each value that cannot be decoded."""
Show = Callable[[Group], Texts]


class ValueTexts:
    """JSON texts of values with ids of a registry's schemas; for one thread."""

    def __init__(self, client: SchemaClient, header: str) -> None:
        self._url = client.url
        self._header = header
        self._shows = WriterSchemas(client, None, _show)

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
        shows = self._shows.find([group.key for group in groups])
        for group in groups:
            group.payload.problems[group.payload.problems > 0] = ABSENT
            shown = self._texts(group, shows[group.key])
            for row, text, error in zip(group.rows.tolist(), *shown, strict=True):
                texts[row], errors[row] = text, error
        merged = [other or error for error, other in zip(errors, unframed, strict=True)]
        return pa.array(texts, pa.string()), pa.array(merged, pa.string())

    def _texts(
        self, group: Group, show: Show | str | None
    ) -> tuple[list[str | None], list[str | None]]:
        if show is None:
            show = f"{schema_label(group.key)} is not in the schema registry {self._url}"
        bad = group.payload.problems != 0
        if isinstance(show, str):
            return [None] * len(group.rows), [None if wrong else show for wrong in bad.tolist()]
        texts, errors = show(group)
        named = [error and f"{schema_label(group.key)}: {error}" for error in errors.to_pylist()]
        return texts.to_pylist(), named


def _show(key: SchemaKey, content: SchemaContent) -> Show | str:
    """Return the function that shows values of a schema, or the reason why there is none."""
    try:
        if content.kind == "AVRO":
            return _avro(content)
        return _json if content.kind == "JSON" else _protobuf(content, schema_label(key))
    except (InvalidFormat, ValueError, RecursionError) as error:
        return f"{schema_label(key)} cannot be shown: {error}"


def _avro(content: SchemaContent) -> Show:
    from penstock.formats.avro_decode import decode

    documents = [json.loads(text) for _, text in content.parts]
    field = {"name": "value", "type": json.loads(content.text)}
    node = avro.parse({"type": "record", "name": "_Value", "fields": [field]}, documents)

    def show(group: Group) -> Texts:
        rows, errors = decode(node, group.payload)
        texts = row_texts(rows)
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


def _protobuf(content: SchemaContent, label: str) -> Show:
    @lru_cache(MESSAGES_MAX)
    def message(path: tuple[int, ...]) -> Message:
        name = message_at(content.text, content.parts, path)
        return message_of(message_of_schema(content.text, content.parts, name, label))

    return lambda group: _protobuf_texts(message, group)


def _protobuf_texts(message_of_path: Callable[[tuple[int, ...]], Message], group: Group) -> Texts:
    from penstock.formats.protobuf_decode import decode

    texts: list[str | None] = [None] * len(group.rows)
    readable = group.frames.problems == 0
    errors = ["the message indexes cannot be read" if each else None for each in readable.tolist()]
    for path, rows in message_paths(group.frames):
        frames = group.frames.take(rows)
        payload = frames if group.frames is group.payload else group.payload.take(rows)
        try:
            message = message_of_path(path)
            skip_indexes(frames, path)
            decoded, wrong = decode(message, payload, exact=False)
        except InvalidFormat as refused:
            for row in rows.tolist():
                errors[row] = str(refused)
            continue
        if message.special is None:
            shown = row_texts(decoded).to_pylist()
        else:
            shown = [json.dumps(value, default=str) for value in decoded.to_pylist()]
        for row, text, problem in zip(rows.tolist(), shown, wrong.to_pylist(), strict=True):
            texts[row], errors[row] = None if problem else text, problem
    return pa.array(texts, pa.string()), pa.array(errors, pa.string())


def row_texts(rows: pa.StructArray) -> pa.StringArray:
    """Return decoded rows as JSON texts; a null row is null."""
    return json_rows(_printable(rows))


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
