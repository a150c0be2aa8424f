"""The columnar codec: batch bytes to Arrow and back, vectorised."""

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
