"""Decoding of many pointers in columns, for Spark and for readers of whole topics.

The pointers are joined into lines, and Arrow decodes them as JSON in one call. Arrow's string
functions check ids, paths and checksums. This module imports PyArrow, which `pointer` does not.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.outbox.errors import InvalidPointer, shown
from penstock.outbox.layout import BATCH_PATTERN, DATA_FILE, PARTITION_PATTERN
from penstock.outbox.pointer import CODEC_PATTERN, POINTER_BYTES_MAX

POINTER_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False),
        pa.field("batch_id", pa.string(), nullable=False),
        pa.field("partition_id", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("codec", pa.string(), nullable=False),
        pa.field("event_count", pa.int64(), nullable=False),
    ]
)

_PATH_PATTERN: Final = (
    rf"^(?P<partition>{PARTITION_PATTERN})/year=[0-9]{{4}}/month=(?:0[1-9]|1[0-2])"
    r"/day=(?:0[1-9]|[12][0-9]|3[01])/hour=(?:[01][0-9]|2[0-3])"
    rf"/batch-(?P<batch>{BATCH_PATTERN})/{re.escape(DATA_FILE)}$"
)
_JSON_SCHEMA: Final = pa.schema(
    [
        field if field.name != "crc32c" else pa.field("crc32c", pa.string())
        for field in POINTER_SCHEMA
    ]
)


def decode_pointers(values: Any) -> Any:
    """Decode an array of pointers, binary or string, to a table of `POINTER_SCHEMA`, a row each.

    It accepts impossible dates (30 February), which `decode_pointer` rejects.

    Raises:
        InvalidPointer: a pointer is invalid. The message has the number of the first invalid row.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if len(values) == 0:
        return POINTER_SCHEMA.empty_table()
    table = _parse_lines(_lines(values), len(values))
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    for name, column in columns.items():
        _refuse(pc.is_null(column), f"{name} is missing")
    parts = pc.extract_regex(columns["file_path"], _PATH_PATTERN)
    _refuse(pc.is_null(parts), "file_path does not follow the outbox's layout")
    for key, part in (("partition_id", "partition"), ("batch_id", "batch")):
        _refuse(
            pc.not_equal(parts.field(part), columns[key]), f"{key} differs from that in the path"
        )
    _refuse(pc.is_in(columns["partition_id"], pa.array([".", ".."])), "partition_id is invalid")
    for name in ("size_bytes", "event_count"):
        _refuse(pc.less(columns[name], 0), f"{name} is below 0")
    _refuse(
        pc.invert(pc.match_substring_regex(columns["codec"], f"^{CODEC_PATTERN}$")),
        "codec is invalid",
    )
    columns["crc32c"] = _hex_to_uint32(columns["crc32c"])
    return pa.table([columns[name] for name in POINTER_SCHEMA.names], schema=POINTER_SCHEMA)


def _lines(values: Any) -> Any:
    """Return a buffer with one pointer per line.

    Checks that each value begins and ends like an object. If the buffer then has as many objects as
    there are values, each value is one object.
    """
    _refuse(pc.is_null(values), "the value is null")
    _refuse(pc.greater(pc.binary_length(values), POINTER_BYTES_MAX), "is too long")
    try:
        text = pc.utf8_trim(values.cast(pa.large_string()), " \t\r\n")
    except pa.ArrowInvalid as error:
        raise InvalidPointer(shown(str(error))) from None
    whole = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))
    _refuse(pc.invert(whole), "is not a JSON object")
    text = pc.replace_substring_regex(text, "[\r\n]", " ")
    listed = pa.LargeListArray.from_arrays(pa.array([0, len(text)], pa.int64()), text)
    return pc.binary_join(listed, pa.scalar("\n", pa.large_string()))[0].as_buffer()


def _parse_lines(lines: Any, rows: int) -> Any:
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(lines),
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=max(lines.size + 1, 1 << 16)
            ),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=_JSON_SCHEMA, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        raise InvalidPointer(shown(str(error))) from None
    if table.num_rows != rows:
        raise InvalidPointer(f"{rows} values have {table.num_rows} JSON objects, not one each")
    return table


def _refuse(bad: Any, reason: str) -> None:
    row = pc.index(bad, pa.scalar(True)).as_py()
    if row >= 0:
        raise InvalidPointer(f"row {row}: {reason}")


def _hex_to_uint32(digits: Any) -> Any:
    _refuse(
        pc.invert(pc.match_substring_regex(digits, "^[0-9a-fA-F]{8}$")),
        "crc32c is not 8 hexadecimal digits",
    )
    listed = pa.ListArray.from_arrays([0, len(digits)], digits)
    packed = bytes.fromhex(pc.binary_join(listed, "")[0].as_py())
    return pa.array(np.frombuffer(packed, ">u4").astype(np.uint32))
