"""Columns of a record, in Arrow types.

`timestamp` is milliseconds since the epoch as a plain integer, because -1 (none) and values outside
Arrow's own range are legal in a log. A record without headers has an empty list.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

RECORD_SCHEMA: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)

EXTRA_FIELDS: Final = {"timestamp_type": pa.field("timestamp_type", pa.int8())}
"""Optional columns: 0 create time, 1 log append time."""
