"""Rows with odd values for tests of files, as PyArrow tables and as Python values."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("number", pa.float64()),
        ("price", pa.decimal128(38, 10)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
        ("name", pa.string()),
        ("octets", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)
INT64 = 2**63
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
DIGITS = 10**38 - 1
_FIELDS = {
    "id": st.integers(-INT64, INT64 - 1),
    "number": st.floats(),
    "price": st.integers(-DIGITS, DIGITS).map(lambda units: Decimal(f"{units}E-10")),
    "at": st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(
        lambda moment: moment.replace(tzinfo=UTC)
    ),
    "day": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "flag": st.booleans(),
    "name": TEXTS | st.sampled_from(["", '"', "a,b", "\r\n", "0", "NaN", "null", "\x00", "🙂"]),
    "octets": st.binary(max_size=8),
    "tags": st.lists(st.none() | TEXTS, max_size=3),
    "inner": st.fixed_dictionaries(
        {"x": st.none() | st.integers(-(2**31), 2**31 - 1), "y": st.none() | TEXTS}
    ),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, values in _FIELDS.items()}),
    min_size=1,
    max_size=12,
)


def column(rows: list[dict[str, Any]]) -> Any:
    return pa.array(rows, KIND)


def same(found: Any, expected: Any) -> bool:
    """Compare values; NaN equals NaN, -0.0 differs from 0.0, and fields may have any order."""
    return bool(_sorted(found) == _sorted(expected))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(part) for name, part in sorted(value.items())}
    if isinstance(value, datetime):
        value = value.astimezone(UTC).replace(fold=0)
    return [_sorted(part) for part in value] if isinstance(value, list) else repr(value)
