"""RecordBatch v2: header codec and compression; the columnar codec is `records.columnar`.

The columnar codec needs NumPy and PyArrow, which a broker must not load; import it by its own name.
`records.columnar.validation` loads NumPy, and `compress` the codecs' libraries, at first use.
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
