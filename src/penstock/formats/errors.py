"""What a value format can be told when its settings or its schema cannot be used."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError


class InvalidFormat(InvalidError):
    """A value format that is incomplete, or whose schema is malformed or not supported.

    `name` is the setting (schema, schema_file, message, …), `value` what it was.
    """

    code: ClassVar[str] = "invalid_config"

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{name} = {str(value)!r}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason
