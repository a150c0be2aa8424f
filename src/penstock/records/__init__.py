"""RecordBatch v2: codec of the batch header, and compression.

The columnar codec is in `records.columnar`, which must be imported by its own name: it needs NumPy
and PyArrow, and a broker must not load PyArrow. `records.columnar.validation` loads NumPy, and
`compress` loads the codecs' libraries, when first used.
"""

from typing import TYPE_CHECKING

from penstock.records.errors import (
    CorruptBatch,
    InvalidProducerEpoch,
    InvalidRecord,
    LegacyBatch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordTooLarge,
    TransactionalBatch,
    UnsupportedCodec,
)
from penstock.records.header import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    check_single,
    decode_header,
    empty_batch,
    empty_batches,
    encode_header,
    says_transactional,
    seal,
    split_batches,
    stamp,
    stamp_append_time,
    stamp_identity,
    validate_batch,
    verify_crc,
)

if TYPE_CHECKING:
    from penstock.records.compression import compress, decompress

__all__ = [
    "HEADER_BYTES",
    "BatchHeader",
    "Codec",
    "CorruptBatch",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "LegacyBatch",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "RecordTooLarge",
    "TransactionalBatch",
    "UnsupportedCodec",
    "check_single",
    "compress",
    "decode_header",
    "decompress",
    "empty_batch",
    "empty_batches",
    "encode_header",
    "says_transactional",
    "seal",
    "split_batches",
    "stamp",
    "stamp_append_time",
    "stamp_identity",
    "validate_batch",
    "verify_crc",
]


def __getattr__(name: str) -> object:
    if name in {"compress", "decompress"}:
        from penstock.records import compression

        return getattr(compression, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
