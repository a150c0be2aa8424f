"""Group commit over requests: what one turn of the event loop appends is synced together.

Appends of one request are one callback of the store (`flush`), because the store writes a lone
request on the spot and hands several to its thread; all requests of a turn are committed at its
end (`soon`), with one journal write and one sync.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.records.appends import AppendResult, Done
    from penstock.storage import LogStore, StorageError

    Appends = list[tuple[Done, AppendResult]]


class GroupCommits:
    """See the module's text. Belongs to the event loop."""

    __slots__ = ("_call_soon", "_store", "appends", "scheduled")

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.appends: Appends = []
        """What `done(result)`, or `done(error)`, is called of when it is durable; once something is
        put here, `schedule` is to be called, unless it is `scheduled`."""
        self.scheduled = False
        self._call_soon: Callable[[Callable[[], None]], object] | None = None

    def attach(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Name the loop whose turns count; without one, every request is committed by `flush`."""
        self._call_soon = call_soon

    def flush(self) -> None:
        """End a request: what is added after this belongs to another one."""
        appends = self.appends
        if appends:
            self.appends = []
            self._store.flush(partial(_tell, appends))
            if self._call_soon is None:
                self._store.commit_pending()

    def flush_then(self, on_durable: Callable[[StorageError | None], None]) -> None:
        """As `LogStore.flush`, at the end of this turn."""
        self._store.flush(on_durable)
        self.schedule()
        if self._call_soon is None:
            self._store.commit_pending()

    def schedule(self) -> None:
        """Have what is appended committed at the end of this turn."""
        if self._call_soon is not None and not self.scheduled:
            self.scheduled = True
            self._call_soon(self._commit)

    def _commit(self) -> None:
        self.scheduled = False
        self.flush()
        self._store.commit_pending()


def _tell(appends: Appends, error: StorageError | None) -> None:
    if error is None:
        for done, result in appends:
            done(result)
        return
    for done, _ in appends:
        done(error)
