"""Changes of the schema registry that wait to be stored, decided by the newest state.

The committed state is what requests read. A second state is ahead of it by the changes that are
being stored, so that each decision knows those before it. It is set back if they are not stored.
Nothing here performs I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from penstock.control.values.registry import REGISTRY_ROWS_PER_WRITE_MAX, RegistryRow
from penstock.registry.decisions import Change
from penstock.registry.state import RegistryState

Decide = Callable[[RegistryState], Change[Any]]


class Decided(Struct, frozen=True):
    """Results of the first decisions of a batch, or their errors, and the rows to store."""

    results: Sequence[Any]
    rows: Sequence[RegistryRow]


class StagedRegistry:
    """The registry of a process: its committed state, and the changes that are being stored."""

    def __init__(self) -> None:
        self.state = RegistryState()
        """Committed state, which requests read."""
        self.version = 0
        """Version of the registry in the control plane, as far as `state` has it."""
        self.generation = 0
        """Number of changes of `state`; responses that depend on it can be cached."""
        self._staged = RegistryState()

    def decide(self, decisions: Iterable[Decide]) -> Decided:
        """Decide changes in order, until the rows are enough for one write.

        The caller then calls `commit` or `set_back` with the rows.
        """
        results: list[Any] = []
        rows: dict[tuple[str, str], RegistryRow] = {}
        for decide in decisions:
            if len(rows) > REGISTRY_ROWS_PER_WRITE_MAX // 2:
                break
            try:
                change = decide(self._staged)
            except Exception as error:
                results.append(error)
                continue
            self._staged.apply(change.rows)
            rows.update({(changed.kind, changed.key): changed for changed in change.rows})
            results.append(change.result)
        return Decided(results, list(rows.values()))

    def commit(self, rows: Sequence[RegistryRow], version: int) -> None:
        """Take staged rows over into the committed state; they were stored as `version`."""
        self.version = version
        self._advance(rows)

    def set_back(self, rows: Sequence[RegistryRow]) -> None:
        """Forget staged rows, which were not stored."""
        # Versions must leave before the schemas that they refer to.
        self._staged.apply([self.state.current(row.kind, row.key) for row in reversed(rows)])

    def receive(self, rows: Sequence[RegistryRow]) -> None:
        """Apply rows that were read from the control plane, while nothing is staged."""
        self._staged.apply(rows)
        self._advance(rows)

    def _advance(self, rows: Sequence[RegistryRow]) -> None:
        if rows:
            self.state.apply(rows)
            self.generation += 1
