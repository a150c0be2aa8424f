"""Errors of record batches.

`CorruptBatch` reports damaged or cut bytes; most `InvalidError`s report valid bytes that this log
does not support. The last ones concern idempotent producers and their transactions.

Source: Kafka's `CorruptRecordException`, `RecordTooLargeException`,
`UnsupportedCompressionTypeException`, `UnsupportedForMessageFormatException` and
`InvalidRecordException`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from penstock.base.errors import CorruptError, FencedError, InvalidError, RetriableError


class CorruptBatch(CorruptError):
    """Batch whose bytes contradict themselves, their length or their checksum.

    `record` is the wrong record, counted from 0 in its batch, if it is known.
    """

    code: ClassVar[str] = "corrupt_message"

    def __init__(self, message: str, *, record: int | None = None) -> None:
        super().__init__(message)
        self.record = record


class LegacyBatch(CorruptBatch):
    """Message set of the formats before Kafka 0.11 (magic 0 or 1), which are not read."""

    code: ClassVar[str] = "unsupported_for_message_format"


class RecordTooLarge(InvalidError):
    """Batch that is larger, or unpacks to more, than the limit."""

    code: ClassVar[str] = "message_too_large"


class UnsupportedCodec(InvalidError):
    """Compression codec that Kafka does not define, or a level that a codec does not have."""

    code: ClassVar[str] = "unsupported_compression_type"


class InvalidRecord(InvalidError):
    """Batch or column that may not be produced.

    `records` are the wrong records, counted from 0 in their batch.
    """

    code: ClassVar[str] = "invalid_record"

    def __init__(self, message: str, *, records: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)


class TransactionalBatch(InvalidError):
    """Batch of a transaction in a request without a transactional id."""

    code: ClassVar[str] = "transactional_id_authorization_failed"


class InvalidTxnState(InvalidError):
    """Batch that does not match the state of its producer's transaction."""

    code: ClassVar[str] = "invalid_txn_state"


class VerificationOutdated(RetriableError):
    """Batch whose transaction has ended since it was verified; it may be sent again."""

    code: ClassVar[str] = "not_enough_replicas"


class TransactionCoordinatorFenced(FencedError):
    """Marker of a coordinator older than the partition's newest."""

    code: ClassVar[str] = "transaction_coordinator_fenced"


class OutOfOrderSequence(InvalidError):
    """Batch of an idempotent producer that does not follow its last one."""

    code: ClassVar[str] = "out_of_order_sequence_number"


class InvalidProducerEpoch(FencedError):
    """Batch of a producer that a newer epoch has fenced."""

    code: ClassVar[str] = "invalid_producer_epoch"


class OffsetOutOfRange(InvalidError):
    """Offset outside of the partition; carries the partition's bounds."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, where: object, offset: int, start: int, end: int) -> None:
        super().__init__(f"{where}: offset {offset} is not within [{start}, {end}]")
        self.offset = offset
        self.log_start_offset = start
        self.log_end_offset = end
