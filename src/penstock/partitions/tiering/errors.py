"""What can go wrong with tiers, as consumers and operators are told."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import CorruptError, RetriableError


class TiersUnknown(RetriableError):
    """Where a partition's tiers begin and end is not known yet; it is asked for."""

    code: ClassVar[str] = "kafka_storage_error"


class TierHole(CorruptError):
    """Neither the archive nor the log has an offset that they should have."""

    code: ClassVar[str] = "kafka_storage_error"


class CopyTruncated(CorruptError):
    """The store has other bytes than were written to it."""

    code: ClassVar[str] = "kafka_storage_error"
