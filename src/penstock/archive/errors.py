"""Errors of archived data, each with Kafka's error name."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import CorruptError


class CorruptObject(CorruptError):
    """Object whose bytes are not what was written."""

    code: ClassVar[str] = "kafka_storage_error"


class CutFooter(CorruptObject):
    """Footer of which only the end was read; the object's last `needed_bytes` contain all of it."""

    def __init__(self, given_bytes: int, needed_bytes: int) -> None:
        super().__init__(f"the footer takes {needed_bytes} bytes, but there are {given_bytes}")
        self.needed_bytes = needed_bytes
