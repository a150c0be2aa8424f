"""What can be wrong with a record batch, and whose fault it is.

`CorruptBatch` says that bytes are damaged or cut; most `InvalidError`s say that the bytes are
whole but ask for something that this log does not do. The last ones are of idempotent producers,
whose batches come in the order of their sequences or not at all, and of their transactions.

Source: Kafka's `CorruptRecordException`, `RecordTooLargeException`,
`UnsupportedCompressionTypeException`, `UnsupportedForMessageFormatException` and
`InvalidRecordException`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from penstock.base.errors import CorruptError, FencedError, InvalidError, RetriableError


class CorruptBatch(CorruptError):
    """The bytes of a batch contradict themselves, their length or their checksum.

    `record` is the record where that shows, counted from 0 in its batch, if it is known.
    """

    code: ClassVar[str] = "corrupt_message"

    def __init__(self, message: str, *, record: int | None = None) -> None:
        super().__init__(message)
        self.record = record


class LegacyBatch(CorruptBatch):
    """A message set of the formats before Kafka 0.11 (magic 0 or 1), which are not read."""

    code: ClassVar[str] = "unsupported_for_message_format"


class RecordTooLarge(InvalidError):
    """A batch is larger, or unpacks to more, than the limit allows."""

    code: ClassVar[str] = "message_too_large"


class UnsupportedCodec(InvalidError):
    """A compression codec that Kafka does not define, or a level that a codec does not have."""

    code: ClassVar[str] = "unsupported_compression_type"


class InvalidRecord(InvalidError):
    """A batch or a column that may not be produced as it is.

    `records` are the records that are at fault, counted from 0 in their batch.
    """

    code: ClassVar[str] = "invalid_record"

    def __init__(self, message: str, *, records: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)


class TransactionalBatch(InvalidError):
    """A batch of a transaction that nobody has begun."""

    code: ClassVar[str] = "transactional_id_authorization_failed"


class InvalidTxnState(InvalidError):
    """A batch does not belong where its producer's transaction stands."""

    code: ClassVar[str] = "invalid_txn_state"


class VerificationOutdated(RetriableError):
    """What was verified of a batch's transaction has ended since; the batch may be sent again."""

    code: ClassVar[str] = "not_enough_replicas"


class TransactionCoordinatorFenced(FencedError):
    """A marker of a coordinator, of which the partition has seen a newer one."""

    code: ClassVar[str] = "transaction_coordinator_fenced"


class OutOfOrderSequence(InvalidError):
    """An idempotent producer's batch does not follow its last one."""

    code: ClassVar[str] = "out_of_order_sequence_number"


class InvalidProducerEpoch(FencedError):
    """A producer with a newer epoch has written to the partition."""

    code: ClassVar[str] = "invalid_producer_epoch"


class OffsetOutOfRange(InvalidError):
    """An offset outside of what the partition holds; carries the partition's bounds."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, where: object, offset: int, start: int, end: int) -> None:
        super().__init__(f"{where}: offset {offset} is not within [{start}, {end}]")
        self.offset = offset
        self.log_start_offset = start
        self.log_end_offset = end
