"""Errors of tiers, for consumers and operators."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import CorruptError, RetriableError


class TiersUnknown(RetriableError):
    """The start and end of a partition's tiers are not known yet; the request is under way."""

    code: ClassVar[str] = "kafka_storage_error"


class TierHole(CorruptError):
    """Neither the archive nor the log has an offset that they should have."""

    code: ClassVar[str] = "kafka_storage_error"


class CopyTruncated(CorruptError):
    """An object in the store differs from what was written."""

    code: ClassVar[str] = "kafka_storage_error"
