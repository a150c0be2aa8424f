"""Errors of record batches.

`CorruptBatch` reports damaged or cut bytes. Most `InvalidError`s report bytes that are valid but
not allowed here. The last classes concern idempotent producers, transactions and offsets.

Source: Kafka's `CorruptRecordException`, `RecordTooLargeException`,
`UnsupportedCompressionTypeException`, `UnsupportedForMessageFormatException` and
`InvalidRecordException`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from penstock.base.errors import CorruptError, FencedError, InvalidError, RetriableError


class CorruptBatch(CorruptError):
    """Batch whose bytes contradict its header, its length or its checksum.

    `record` is the index of the invalid record in its batch, counted from 0; None if unknown.
    """

    code: ClassVar[str] = "corrupt_message"

    def __init__(self, message: str, *, record: int | None = None) -> None:
        super().__init__(message)
        self.record = record


class LegacyBatch(CorruptBatch):
    """Message set in a format from before Kafka 0.11 (magic 0 or 1), which is not supported."""

    code: ClassVar[str] = "unsupported_for_message_format"


class RecordTooLarge(InvalidError):
    """Batch that exceeds a limit, either as it is or when decompressed."""

    code: ClassVar[str] = "message_too_large"


class UnsupportedCodec(InvalidError):
    """Compression codec that Kafka does not define, or a level that a codec does not have."""

    code: ClassVar[str] = "unsupported_compression_type"


class InvalidRecord(InvalidError):
    """Batch or column that is not allowed to be produced.

    `records` are the indexes of invalid records in their batch, counted from 0.
    """

    code: ClassVar[str] = "invalid_record"

    def __init__(self, message: str, *, records: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)


class TransactionalBatch(InvalidError):
    """Transactional batch in a request that has no transactional id."""

    code: ClassVar[str] = "transactional_id_authorization_failed"


class InvalidTxnState(InvalidError):
    """Batch that contradicts the state of its producer's transaction."""

    code: ClassVar[str] = "invalid_txn_state"


class VerificationOutdated(RetriableError):
    """Batch whose transaction has ended since it was verified; the producer may send it again."""

    code: ClassVar[str] = "not_enough_replicas"


class TransactionCoordinatorFenced(FencedError):
    """Marker of a coordinator with an older epoch than the partition has seen."""

    code: ClassVar[str] = "transaction_coordinator_fenced"


class OutOfOrderSequence(InvalidError):
    """Batch of an idempotent producer whose sequence does not follow that of the previous batch."""

    code: ClassVar[str] = "out_of_order_sequence_number"


class InvalidProducerEpoch(FencedError):
    """Batch of a producer that is fenced by a newer epoch."""

    code: ClassVar[str] = "invalid_producer_epoch"


class OffsetOutOfRange(InvalidError):
    """Offset outside of the partition; the error has the partition's start and end offsets."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, where: object, offset: int, start: int, end: int) -> None:
        super().__init__(f"{where}: offset {offset} is not within [{start}, {end}]")
        self.offset = offset
        self.log_start_offset = start
        self.log_end_offset = end
