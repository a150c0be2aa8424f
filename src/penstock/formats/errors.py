"""Errors of value formats with unusable settings or schemas."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError


class InvalidFormat(InvalidError):
    """Value format that is incomplete, or whose schema is malformed or not supported.

    `name` is the setting (schema, schema_file, message, …), `value` its value.
    """

    code: ClassVar[str] = "invalid_config"

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{name} = {str(value)!r}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason
