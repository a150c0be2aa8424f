"""Pointers: the records that a topic has instead of payloads.

A pointer is compact JSON, about 250 bytes:

    {"file_path":"p/year=2026/month=05/day=24/hour=14/batch-b/data.bin","batch_id":"b",
     "partition_id":"p","size_bytes":524288,"crc32c":"f3c19a2b","codec":"none","event_count":1}

`file_path` is relative to the root, because machines may mount it at different paths. Unknown keys
are ignored, so that later versions may add some. A record of the topic has either a pointer or, up
to a threshold, the payload itself (*inline*):

| field                   | pointer               | inline                |
|-------------------------|-----------------------|-----------------------|
| key                     | partition id          | partition id          |
| value                   | pointer               | payload               |
| header penstock-outbox  | pointer               | inline                |
| header message-id       | outbox-<batch id>     | outbox-<batch id>     |
| batch-id, codec, event-count, crc32c | in the value | in headers of these names |

Source: `filesystem-outbox.txt`, step 6 of the safe write; the design page, "Write" and "Threshold".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.outbox.errors import InvalidPayload, InvalidPointer, shown
from penstock.outbox.layout import (
    check_batch_id,
    check_partition_id,
    parse_path,
)

CODEC_CHARS_MAX: Final = 32
"""Characters of a codec's name."""
POINTER_BYTES_MAX: Final = 4096
"""Bytes of a pointer that is accepted. `encode_pointer` returns at most about 800."""
COUNT_MAX: Final = 2**63 - 1
"""Largest size and event count in a pointer, which fit into a signed 64-bit column."""

HEADER_KIND: Final = "penstock-outbox"
HEADER_MESSAGE_ID: Final = "message-id"
HEADER_BATCH_ID: Final = "batch-id"
HEADER_CODEC: Final = "codec"
HEADER_EVENT_COUNT: Final = "event-count"
HEADER_CRC32C: Final = "crc32c"
KIND_POINTER: Final = b"pointer"
KIND_INLINE: Final = b"inline"

CODEC_PATTERN: Final = rf"[A-Za-z0-9._+\-]{{1,{CODEC_CHARS_MAX}}}"
_CODEC: Final = re.compile(CODEC_PATTERN, re.ASCII)
_CRC: Final = re.compile(r"[0-9a-fA-F]{8}", re.ASCII)
_COUNT: Final = re.compile(rb"[0-9]{1,19}")


class Pointer(Struct, frozen=True, kw_only=True):
    """The path of a payload, and its attributes. `file_path` is relative to the root."""

    file_path: str
    batch_id: str
    partition_id: str
    size_bytes: int
    crc32c: int
    codec: str
    event_count: int


class OutboxRecord(Struct, frozen=True, kw_only=True):
    """A record for the topic, with a pointer or an inline payload."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size_bytes(self) -> int:
        return len(self.key) + len(self.value)


class Inline(Struct, frozen=True, kw_only=True):
    """Attributes of an inline payload, which are in the record's key and headers."""

    batch_id: str
    partition_id: str
    crc32c: int
    codec: str
    event_count: int


def check_codec(text: object) -> str:
    """Return the name of a codec after checking it. The outbox does not interpret it.

    Raises:
        InvalidPayload: it is not 1 to 32 of `A-Z a-z 0-9 . _ + -`.
    """
    if not isinstance(text, str) or not _CODEC.fullmatch(text):
        raise InvalidPayload(
            f"codec {shown(text)}: must be 1 to {CODEC_CHARS_MAX} characters of A-Z a-z 0-9 . _ + -"
        )
    return text


def check_event_count(count: object) -> int:
    """Return a number of events after checking it.

    Raises:
        InvalidPayload: it is not a whole number from 0 to 2^63 - 1.
    """
    if not _is_count(count):
        raise InvalidPayload(f"event count {shown(count)}: must be 0 to {COUNT_MAX}")
    return int(count)  # type: ignore[call-overload, no-any-return]


def message_id(batch_id: str) -> bytes:
    """Return the message id of a batch, which is the same each time it is published."""
    return b"outbox-" + batch_id.encode()


def encode_pointer(pointer: Pointer) -> bytes:
    """Return a pointer as compact JSON. The CRC32C has 8 hexadecimal digits."""
    return json.dumps(
        {
            "file_path": pointer.file_path,
            "batch_id": pointer.batch_id,
            "partition_id": pointer.partition_id,
            "size_bytes": pointer.size_bytes,
            "crc32c": f"{pointer.crc32c:08x}",
            "codec": pointer.codec,
            "event_count": pointer.event_count,
        },
        separators=(",", ":"),
    ).encode()


def decode_pointer(data: bytes | memoryview) -> Pointer:
    """Decode a pointer. Unknown keys are ignored.

    Raises:
        InvalidPointer: the data is too long or not JSON, a key is missing or of the wrong type, or
            the path contradicts the ids.
    """
    if len(data) > POINTER_BYTES_MAX:
        raise InvalidPointer(f"has {len(data)} bytes; the limit is {POINTER_BYTES_MAX}")
    try:
        fields = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise InvalidPointer(f"is not JSON: {shown(str(error))}") from None
    if not isinstance(fields, dict):
        raise InvalidPointer("is JSON, but not an object")
    crc = _text(fields, "crc32c")
    if not _CRC.fullmatch(crc):
        raise InvalidPointer(f"crc32c is {shown(crc)}: must be 8 hexadecimal digits")
    pointer = Pointer(
        file_path=_text(fields, "file_path"),
        batch_id=_text(fields, "batch_id"),
        partition_id=_text(fields, "partition_id"),
        size_bytes=_count(fields, "size_bytes"),
        crc32c=int(crc, 16),
        codec=_text(fields, "codec"),
        event_count=_count(fields, "event_count"),
    )
    _check_consistent(pointer)
    return pointer


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise InvalidPointer(f"{key} is {shown(value)}: must be text")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX


def _count(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    if not _is_count(value):
        raise InvalidPointer(f"{key} is {shown(value)}: must be 0 to {COUNT_MAX}")
    return int(value)  # type: ignore[arg-type]


def _check_consistent(pointer: Pointer) -> None:
    try:
        location = parse_path(pointer.file_path)
        check_codec(pointer.codec)
    except InvalidError as error:
        raise InvalidPointer(str(error)) from None
    for key, given in (("batch_id", pointer.batch_id), ("partition_id", pointer.partition_id)):
        if getattr(location, key) != given:
            raise InvalidPointer(
                f"{key} is {shown(given)}, but the path has {shown(getattr(location, key))}"
            )


def pointer_record(pointer: Pointer) -> OutboxRecord:
    return OutboxRecord(
        key=pointer.partition_id.encode(),
        value=encode_pointer(pointer),
        headers=(
            (HEADER_KIND, KIND_POINTER),
            (HEADER_MESSAGE_ID, message_id(pointer.batch_id)),
        ),
    )


def inline_record(inline: Inline, payload: bytes) -> OutboxRecord:
    return OutboxRecord(
        key=inline.partition_id.encode(),
        value=payload,
        headers=(
            (HEADER_KIND, KIND_INLINE),
            (HEADER_MESSAGE_ID, message_id(inline.batch_id)),
            (HEADER_BATCH_ID, inline.batch_id.encode()),
            (HEADER_CODEC, inline.codec.encode()),
            (HEADER_EVENT_COUNT, b"%d" % inline.event_count),
            (HEADER_CRC32C, b"%08x" % inline.crc32c),
        ),
    )


def decode_record(
    key: bytes | None, value: bytes | memoryview | None, headers: Sequence[tuple[str, bytes | None]]
) -> Pointer | Inline:
    """Decode a record of the topic. If the result is `Inline`, the payload is `value` itself.

    Raises:
        InvalidPointer: the record was not written by an outbox, or contradicts itself.
    """
    by_name = dict(headers)
    kind = by_name.get(HEADER_KIND)
    if value is None:
        raise InvalidPointer("the record has no value")
    if kind == KIND_POINTER:
        pointer = decode_pointer(value)
        if key != pointer.partition_id.encode():
            raise InvalidPointer(
                f"the record's key is {shown(key)}, but its partition id is"
                f" {shown(pointer.partition_id)}"
            )
        return pointer
    if kind != KIND_INLINE:
        raise InvalidPointer(f"header {HEADER_KIND} is {shown(kind)}: must be pointer or inline")
    crc = by_name.get(HEADER_CRC32C) or b""
    count = by_name.get(HEADER_EVENT_COUNT) or b""
    try:
        if not _CRC.fullmatch(crc.decode()) or not _COUNT.fullmatch(count):
            raise InvalidPointer(f"crc32c {shown(crc)} or event count {shown(count)} is invalid")
        return Inline(
            batch_id=check_batch_id((by_name.get(HEADER_BATCH_ID) or b"").decode()),
            partition_id=check_partition_id((key or b"").decode()),
            crc32c=int(crc, 16),
            codec=check_codec((by_name.get(HEADER_CODEC) or b"").decode()),
            event_count=check_event_count(int(count)),
        )
    except UnicodeDecodeError:
        raise InvalidPointer("a key or header of an inline record is not UTF-8") from None
    except InvalidPointer:
        raise
    except InvalidError as error:
        raise InvalidPointer(str(error)) from None
