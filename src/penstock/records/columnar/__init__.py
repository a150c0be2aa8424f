"""Columnar codec: vectorised conversion between batch bytes and Arrow columns.

The parts that need Arrow are loaded when first used, because a broker needs only `validation`,
which uses NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.records.columnar.decode import decode_batches
    from penstock.records.columnar.encode import EncodedBatch, encode_batches, read_input
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
    "read_input": "encode",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
