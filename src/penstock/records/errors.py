"""What can be wrong with a record batch, and whose fault it is.

`CorruptBatch` says that bytes are damaged or cut; most `InvalidError`s say that the bytes are
whole but ask for something that this log does not do. The last two are of idempotent producers,
whose batches come in the order of their sequences or not at all.

Source: Kafka's `CorruptRecordException`, `RecordTooLargeException`,
`UnsupportedCompressionTypeException`, `UnsupportedForMessageFormatException` and
`InvalidRecordException`.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import CorruptError, FencedError, InvalidError


class CorruptBatch(CorruptError):
    """The bytes of a batch contradict themselves, their length or their checksum."""

    code: ClassVar[str] = "corrupt_message"


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
    """A batch or a column that is well formed but may not be produced as it is."""

    code: ClassVar[str] = "invalid_record"


class OutOfOrderSequence(InvalidError):
    """An idempotent producer's batch does not follow its last one."""

    code: ClassVar[str] = "out_of_order_sequence_number"


class InvalidProducerEpoch(FencedError):
    """A producer with a newer epoch has written to the partition."""

    code: ClassVar[str] = "invalid_producer_epoch"
