"""Schema of a record's columns, in Arrow types.

`timestamp` is a plain integer, in milliseconds since 1970, because a log may contain -1 (none) and
values outside of the range of Arrow's timestamps. A record without headers has an empty list.
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
"""Columns that are decoded only on request; `timestamp_type` is 0 (create) or 1 (log append)."""
