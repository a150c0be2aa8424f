"""Values of the schema registry's rows in the control plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from penstock.base.errors import FencedError

REGISTRY_ROWS_PER_READ: Final = 5_000
"""Most rows that one read returns."""
REGISTRY_ROWS_PER_WRITE_MAX: Final = 20_000
"""Most rows that one write stores."""


class RegistryRow(NamedTuple):
    """Row of the registry. `value` is None in a row that was deleted."""

    kind: str
    key: str
    value: bytes | None


class RegistryPage(NamedTuple):
    """Changed rows in the order of their changes, and the registry's version that was read.

    With `more`, further rows follow: read again from `version` and behind the last row.
    """

    version: int
    rows: Sequence[tuple[int, RegistryRow]]
    more: bool


class StaleRegistry(FencedError):
    """Another broker changed the registry after the caller read it. Read again, and repeat."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(
            f"the schema registry is at version {found}, but the change expected {expected}"
        )
        self.found = found
