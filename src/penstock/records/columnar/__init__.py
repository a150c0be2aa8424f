"""Columnar codec: vectorised conversion between batch bytes and columns.

`arrays`, `batches`, `rows`, `encode`, `shortening` and `validation` use NumPy alone, since brokers
and host agents run without PyArrow. `decode`, `inputs`, `fitting` and `schema` convert to and from
Arrow columns; they need the extra `client`, and are loaded when first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.records.columnar.decode import decode_batches
    from penstock.records.columnar.encode import EncodedBatch, encode_batches
    from penstock.records.columnar.inputs import read_input
    from penstock.records.columnar.schema import HEADERS_TYPE, RECORD_SCHEMA

__all__ = [
    "HEADERS_TYPE",
    "RECORD_SCHEMA",
    "EncodedBatch",
    "decode_batches",
    "encode_batches",
    "read_input",
]

_HOMES = {
    "HEADERS_TYPE": "schema",
    "RECORD_SCHEMA": "schema",
    "EncodedBatch": "encode",
    "decode_batches": "decode",
    "encode_batches": "encode",
    "read_input": "inputs",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from penstock.base.extras import required

        return getattr(required(f"{__name__}.{_HOMES[name]}", "client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
