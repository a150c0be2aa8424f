"""Methods of the control plane for the rows of the schema registry.

The registry has one version, which each write raises by one if it is the expected one. Brokers keep
all rows in memory, and read those that changed since their version.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.control.drivers.statements import (
    Each,
    Lock,
    Operation,
    OverDatabase,
    changed,
    operation,
    query,
    rows,
    value,
)
from penstock.control.values.errors import TooLarge
from penstock.control.values.registry import (
    REGISTRY_ROWS_PER_READ,
    REGISTRY_ROWS_PER_WRITE_MAX,
    RegistryPage,
    RegistryRow,
    StaleRegistry,
)

read_registry_version = value("SELECT value FROM counters WHERE name = 'registry_version'")
lock_registry_version = value(
    "SELECT value FROM counters WHERE name = 'registry_version' FOR UPDATE"
)
raise_registry_version = changed("UPDATE counters SET value = $1 WHERE name = 'registry_version'")
read_changed = rows(
    "SELECT changed, kind, key, value FROM registry_rows"
    " WHERE changed > $1 OR (changed = $1 AND (kind, key) > ($2, $3))"
    " ORDER BY changed, kind, key LIMIT $4"
)
write_registry = Each(
    "changed",
    "INSERT INTO registry_rows SELECT n.kind, n.key, $4, n.value"
    " FROM unnest($1::text[], $2::text[], $3::bytea[]) AS n (kind, key, value)"
    " ON CONFLICT (kind, key) DO UPDATE SET changed = $4, value = excluded.value",
    sqlite="INSERT OR REPLACE INTO registry_rows VALUES ($1, $2, $4, $3)",
)

_LAST_KEY = "\U0010ffff"
"""Text that no kind of row reaches in the order of keys."""


class RegistryRows(OverDatabase):
    """Methods of `ControlPlane` for the schema registry."""

    @query
    def registry_version(self) -> Operation[int]:
        """Return the registry's version, which grows by one with each write."""
        found: int = yield read_registry_version()
        return found

    @operation(lock=Lock.SNAPSHOT)
    def registry_rows(
        self, version: int, after: tuple[str, str] | None = None
    ) -> Operation[RegistryPage]:
        """Return up to `REGISTRY_ROWS_PER_READ` rows that changed after a version.

        `after` is the kind and key of the last row of the previous page, whose `changed` is then
        `version`.
        """
        now: int = yield read_registry_version()
        kind, key = (_LAST_KEY, "") if after is None else after
        found = yield read_changed(version, kind, key, REGISTRY_ROWS_PER_READ + 1)
        page = [
            (changed_at, RegistryRow(kind, key, None if stored is None else bytes(stored)))
            for changed_at, kind, key, stored in found[:REGISTRY_ROWS_PER_READ]
        ]
        return RegistryPage(now, page, more=len(found) > REGISTRY_ROWS_PER_READ)

    @operation()
    def write_registry_rows(
        self, changes: Sequence[RegistryRow], *, expected: int
    ) -> Operation[int]:
        """Store rows, all or none, and return the new version.

        A row without a value is deleted.

        Raises:
            StaleRegistry: the registry's version is not `expected`.
            TooLarge: there are more than `REGISTRY_ROWS_PER_WRITE_MAX` rows.
        """
        if len(changes) > REGISTRY_ROWS_PER_WRITE_MAX:
            raise TooLarge(
                f"a change of {len(changes)} registry rows exceeds the limit of"
                f" {REGISTRY_ROWS_PER_WRITE_MAX}; split it"
            )
        found: int = yield lock_registry_version()
        if found != expected:
            raise StaleRegistry(expected, found)
        yield raise_registry_version(expected + 1)
        yield write_registry([tuple(row) for row in changes], expected + 1)
        return expected + 1
