"""Errors of archived data, each with Kafka's error name."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import CorruptError


class CorruptObject(CorruptError):
    """The bytes of an object are not what was written."""

    code: ClassVar[str] = "kafka_storage_error"


class CutFooter(CorruptObject):
    """The footer begins before the given bytes; the object's last `needed_bytes` are needed."""

    def __init__(self, given_bytes: int, needed_bytes: int) -> None:
        super().__init__(f"the footer takes {needed_bytes} bytes, {given_bytes} are there")
        self.needed_bytes = needed_bytes
