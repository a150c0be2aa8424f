"""Views of single records: the record of an offset, its bytes, and the form that produces one."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from msgspec import Struct
from starlette.responses import Response

from penstock.apps.console.formats import path
from penstock.apps.console.forms import Form, InvalidField, form_of
from penstock.apps.console.messages.decoding import Decoder, Shown, pretty
from penstock.apps.console.messages.expressions import SIDES
from penstock.apps.console.messages.masking import sides_of
from penstock.apps.console.messages.parameters import FORMATS
from penstock.apps.console.messages.queries import OFFSET_MAX, Lists, parse_query
from penstock.apps.console.messages.reading import leader_of, served_topic
from penstock.apps.console.messages.rows import (
    HEX_BYTES,
    HEX_BYTES_MAX,
    SHOWN_CHARS,
    SHOWN_CHARS_MAX,
    Record,
    hex_lines,
    record_of,
    visible,
)
from penstock.apps.console.messages.rules import Masked, why
from penstock.apps.console.messages.scanning import SCHEMA, matches
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests, refused
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.settings import INT_MAX
from penstock.broker.admin.access import caller_of
from penstock.broker.admin_app import status_of
from penstock.client.partitioning import partitions_of_keys
from penstock.records.columnar import encode_batches
from penstock.records.columnar.schema import RECORD_SCHEMA

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.admin.access import Caller

ENCODINGS: Final = {
    "text": "Text (UTF-8)",
    "hex": "Hexadecimal",
    "base64": "Base64",
    "null": "Null",
}
UNCHANGED: Final = "same"
"""Encoding of a key or value that is taken from the record that is produced again."""
_SOURCE_ENCODINGS: Final = {UNCHANGED: "As in the original record", **ENCODINGS}
TEXTS: Final = (*SIDES, "headers")
"""Names of the form's text areas."""
FORM_CHARS_MAX: Final = 16_384
"""Longest text with which a form is filled; longer ones are taken from the record itself."""
TIMEOUT_MS: Final = 30_000
_FETCH_BYTES: Final = 65_536


class NoRecord(InvalidError):
    """Offset without a record."""

    code: ClassVar[str] = "resource_not_found"


class OffsetOutOfRange(InvalidError):
    """Offset below the start or above the end of the log."""

    code: ClassVar[str] = "offset_out_of_range"


class Part(Struct, frozen=True, kw_only=True):
    """Key or value on a record's page; `cut` is whether `text` is only its beginning."""

    name: str
    kind: str
    text: str
    cut: bool
    hex: str
    hex_cut: bool
    size_bytes: int
    error: str
    is_null: bool


class RecordViews(Struct, frozen=True, kw_only=True):
    pages: Pages
    lists: Lists
    requests: CallerRequests

    async def record(self, request: Request) -> Response:
        """Show one record; with `all=1`, the whole key and value."""
        topic = request.path_params["topic"]
        record, start, end = await self._shown(request)
        partition, offset = record.partition, record.offset
        whole = request.query_params.get("all") == "1"
        rules = await self.lists.rules(caller_of(request), topic)
        return self.pages.show(
            request,
            "message.html",
            title=f"Record {partition}/{offset} of {topic}",
            topic=topic,
            record=record,
            parts=[await asyncio.to_thread(_part, side, record, whole) for side in SIDES[::-1]],
            whole=whole,
            headers=[
                (visible(name), visible(shown.text[:SHOWN_CHARS]), shown.kind)
                for name, shown in record.headers
            ],
            given={name: request.query_params.get(name, "") for name in ("kf", "vf", "message")},
            older=offset - 1 if offset > start else None,
            newer=offset + 1 if offset + 1 < end else None,
            formats=FORMATS,
            rules=rules,
            masked=sides_of(rules),
            may_write=caller_of(request).rights.allows("write", "topic", topic),
        )

    async def content(self, request: Request) -> Response:
        """Return a key or value: its bytes as a file, or with `as=text` as it is shown."""
        names, side = request.path_params, request.path_params["side"]
        if side not in SIDES:
            raise NoRecord(f"a record has a key and a value, but no {side!r}")
        record, _, _ = await self._shown(request)
        headers = {"cache-control": "no-store"}
        if request.query_params.get("as") == "text":
            text = await asyncio.to_thread(_text, record.key if side == "key" else record.value)
            return Response(text.encode(), headers=headers, media_type="text/plain")
        rules = await self.lists.rules(caller_of(request), names["topic"])
        if side in sides_of(rules):
            raise Masked(f"the bytes of {side}s of topic {names['topic']} are hidden: {why(rules)}")
        content = record.key_bytes if side == "key" else record.value_bytes
        name = f"{names['topic']}-{names['partition']}-{names['offset']}.{side}"
        headers["content-disposition"] = f'attachment; filename="{name}"'
        return Response(content or b"", headers=headers, media_type="application/octet-stream")

    # -- produce --------------------------------------------------------------------------------

    async def produce_form(self, request: Request) -> Response:
        """Show the form for a record, filled with that of `partition` and `offset` if given."""
        fields: dict[str, list[str]] = {}
        given = Form({name: [value] for name, value in request.query_params.items()})
        if given.text("offset"):
            fields = _fields_of(await self._source(request, given))
        return await self._produce_page(request, Form(fields))

    async def produce(self, request: Request) -> Response:
        """Append a record with the caller's rights."""
        form, topic = form_of(request), request.path_params["topic"]
        try:
            source = await self._source(request, form) if _uses_source(form) else None
            partition, offset = await self._produced(request, form, source)
        except PenstockError as error:
            return await self._produce_page(request, form, error)
        where = path("topics", topic, "produce")
        if caller_of(request).rights.allows("read", "topic", topic):
            where = path("topics", topic, "messages", partition, offset)
        return self.pages.done(
            where, f"The record was written to partition {partition} at offset {offset:,}."
        )

    async def _produce_page(
        self, request: Request, form: Form, error: PenstockError | None = None
    ) -> Response:
        topic = request.path_params["topic"]
        await self.lists.broker.cluster.look()
        served = served_topic(self.lists.broker, topic)
        return self.pages.show(
            request,
            "produce.html",
            title=f"Produce to {topic}",
            status=200 if error is None else status_of(error),
            topic=topic,
            partitions=len(served.partitions),
            form=form,
            text_of={name: _raw(form, name) for name in TEXTS},
            encodings=_SOURCE_ENCODINGS if form.text("source-offset") else ENCODINGS,
            error=error,
        )

    async def _produced(
        self, request: Request, form: Form, source: Record | None
    ) -> tuple[int, int]:
        """Append the form's record; return its partition and offset."""
        caller, topic = caller_of(request), request.path_params["topic"]
        key = _content(form, "key", None if source is None else source.key_bytes)
        value = _content(form, "value", None if source is None else source.value_bytes)
        row = {"key": [key], "value": [value], "headers": [_headers(form, source)]}
        schema = pa.schema([RECORD_SCHEMA.field(name) for name in row])
        broker = self.lists.broker
        await broker.cluster.look()
        served = served_topic(broker, topic)
        partition = self._partition(form, key, len(served.partitions))
        batch = encode_batches(pa.table(row, schema=schema), now_ms=broker.clock.now_ms())[0]
        body = {
            "transactional_id": None,
            "acks": -1,
            "timeout": TIMEOUT_MS,
            "topic_data": [
                {
                    "name": topic,
                    "partition_data": [{"index": partition, "records": bytes(batch.data)}],
                }
            ],
        }
        answer = await self.requests.call(
            caller, "Produce", body, leader_of(broker, served, partition)
        )
        result = answer.responses[0].partition_responses[0]
        if result.error_code:
            subject = f"partition {partition} of {topic}"
            raise refused(result.error_code, result.error_message, subject)
        return partition, int(result.base_offset)

    def _partition(self, form: Form, key: bytes | None, count: int) -> int:
        """Return the partition of the form, of the key, or any one."""
        if form.text("partition"):
            return form.number("partition", "Partition", max(0, count - 1))
        unkeyed = self.lists.broker.randomness.bits(31) % max(1, count)
        keys = pa.array([key], pa.binary())
        return int(partitions_of_keys(keys, count, unkeyed=unkeyed)[0])

    # -- parts ----------------------------------------------------------------------------------

    async def _shown(self, request: Request) -> tuple[Record, int, int]:
        """Return the record of the request's path, and start and end of its partition."""
        caller, names = caller_of(request), request.path_params
        chosen = parse_query(request.query_params)
        decoder = await self.lists.decoder(caller, names["topic"], chosen)
        return await self._record(
            caller, names["topic"], names["partition"], names["offset"], decoder
        )

    async def _record(
        self, caller: Caller, topic: str, partition: int, offset: int, decoder: Decoder
    ) -> tuple[Record, int, int]:
        """Return a record, and start and end of its partition."""
        reader = await self.lists.reader(caller, topic, committed=False)
        start, end = (await reader.bounds([partition]))[0][partition]
        if not start <= offset < end:
            raise OffsetOutOfRange(
                f"offset {offset:,} is outside of partition {partition} of {topic}, which"
                f" has the offsets from {start:,} to {end - 1:,}"
                if start < end
                else f"partition {partition} of {topic} is empty"
            )
        chunk = await reader.fetch(partition, offset, _FETCH_BYTES)

        def read() -> Record | None:
            table = SCHEMA.empty_table()
            if chunk.data:
                table, _ = matches(None, decoder, chunk, offset + 1)
            return record_of(table, decoder) if table.num_rows else None

        found = await asyncio.to_thread(read)
        if found is None:
            raise NoRecord(
                f"partition {partition} of {topic} has no record at offset {offset:,}: it was"
                " compacted away, or is a transaction marker"
            )
        return found, start, end

    async def _source(self, request: Request, form: Form) -> Record:
        """Return the record that is produced again; the caller needs the right to read it."""
        prefix = "source-" if form.text("source-offset") else ""
        partition = form.number(f"{prefix}partition", "Partition", INT_MAX)
        offset = form.number(f"{prefix}offset", "Offset", OFFSET_MAX)
        caller, topic = caller_of(request), request.path_params["topic"]
        if rules := await self.lists.rules(caller, topic):
            raise Masked(f"records of topic {topic} cannot be produced again: {why(rules)}")
        record, _, _ = await self._record(caller, topic, partition, offset, Decoder.plain())
        return record


def _text(shown: Shown) -> str:
    """Return the text of a page, with line breaks if it is JSON. Blocks; call it in a thread."""
    return pretty(shown.text) if shown.is_json else shown.text


def _part(name: str, record: Record, whole: bool) -> Part:
    shown = record.key if name == "key" else record.value
    content = (record.key_bytes if name == "key" else record.value_bytes) or b""
    text = _text(shown)
    chars = SHOWN_CHARS_MAX if whole else SHOWN_CHARS
    count = HEX_BYTES_MAX if whole else HEX_BYTES
    return Part(
        name=name,
        kind=shown.kind,
        text=visible(text[:chars]),
        cut=len(text) > chars,
        hex=hex_lines(content, count),
        hex_cut=len(content) > count,
        size_bytes=shown.size_bytes,
        error=shown.error,
        is_null=shown.kind == "null",
    )


def _fields_of(record: Record) -> dict[str, list[str]]:
    """Return the fields of the form that produces a record again."""
    fields = {
        "source-partition": [str(record.partition)],
        "source-offset": [str(record.offset)],
        "headers-encoding": [UNCHANGED],
    }
    for side, content in (("key", record.key_bytes), ("value", record.value_bytes)):
        text = _form_text(content)
        if content is None:
            fields[f"{side}-encoding"] = ["null"]
        elif text is None:
            fields[f"{side}-encoding"] = [UNCHANGED]
        else:
            fields[f"{side}-encoding"], fields[side] = ["text"], [text]
    return fields


def _form_text(content: bytes | None) -> str | None:
    """Return bytes as a text that a form can hold without changing it, or None."""
    if content is None or len(content) > FORM_CHARS_MAX:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if visible(text) == text else None


def _raw(form: Form, name: str) -> str:
    """Return the text of an area of the form, with its spaces and line ends."""
    return (form.texts(name) or [""])[0]


def _uses_source(form: Form) -> bool:
    return any(form.text(f"{name}-encoding") == UNCHANGED for name in TEXTS)


def _content(form: Form, side: str, original: bytes | None) -> bytes | None:
    """Return the bytes of the form's key or value; raises InvalidField."""
    # Browsers send the line ends of a text area as CR LF.
    text = _raw(form, side).replace("\r\n", "\n")
    encoding, title = form.text(f"{side}-encoding", "text"), side.capitalize()
    try:
        match encoding:
            case "null":
                return None
            case "same":
                return original
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return base64.b64decode(text, validate=True)
            case "text":
                return text.encode()
    except ValueError as error:
        raise InvalidField(f"{title}: this is not {ENCODINGS[encoding].lower()}: {error}") from None
    raise InvalidField(f"{title}: the encoding {encoding!r} must be one of {', '.join(ENCODINGS)}")


def _headers(form: Form, source: Record | None) -> list[dict[str, Any]]:
    """Return the form's headers, one a line as `name: value`, after the original ones."""
    headers: list[dict[str, Any]] = []
    if source is not None and form.text("headers-encoding") == UNCHANGED:
        headers += source.header_items
    for number, line in enumerate(form.text("headers").splitlines(), 1):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip():
            raise InvalidField(f"Headers, line {number}: {line!r} must read name: value")
        headers.append({"key": name.strip(), "value": value.strip().encode()})
    return headers
