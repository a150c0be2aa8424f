"""The writer of a SQLite file that several processes of one machine share.

Write-ahead logging allows concurrent readers and one writer. SQLite's own retries starve waiting
writers: of two processes that wrote for four seconds, one made no commit. So the processes queue
for the right to write, by locks of two bytes of a file. A process holds the first byte's lock while
it waits for the second one, and holds the second one during its commit. The operating system
releases the locks of a process that ends. The locks give fairness only; SQLite itself excludes
concurrent writers. Groups of operations that only read do not queue.

Renewals of broker registrations are in a file of their own, which is not synced, because they are
worthless after a restart.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.base.system import SYSTEM_CLOCK
from penstock.control.drivers.sqlite_writer import Entry, SqliteWriter, open_connection
from penstock.control.errors import DatabaseLocked
from penstock.control.limits import LOCK_TIMEOUT_SECONDS

TURN_PAUSE_SECONDS: Final = 0.0003
"""Pause between attempts to get a lock of the queue."""

RENEWALS: Final = "renewals"
"""Name under which the file of renewals is attached, and the file's name without suffix."""
_QUEUE: Final = 0
_WRITE: Final = 1


class SharedWriter(SqliteWriter):
    """The writer of one process: its thread and its connection."""

    lone_commits = False

    def __init__(
        self,
        path: Path,
        *,
        on_group: Callable[[bool], None],
        on_begin: Callable[[sqlite3.Connection], None],
    ) -> None:
        """Call `on_begin` on the writer's thread at the beginning of each transaction."""
        super().__init__(path, on_group=on_group)
        self._on_begin = on_begin
        self._turns = -1
        self._pause = threading.Event()

    def _open(self) -> sqlite3.Connection:
        self._turns = os.open(f"{self._path}-turns", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        connection = open_connection(self._path, locking="NORMAL")
        connection.execute(f"ATTACH ? AS {RENEWALS}", (str(_renewals_of(self._path)),))
        connection.execute(f"PRAGMA {RENEWALS}.synchronous = OFF")
        return connection

    def _copy_back(self) -> None:
        """Do nothing: SQLite itself checkpoints the write-ahead log of this connection."""

    def _begin(self, connection: sqlite3.Connection, group: list[Entry]) -> None:
        connection.execute("BEGIN" if _reads(group) else "BEGIN IMMEDIATE")
        self._on_begin(connection)

    def _commit(self, connection: sqlite3.Connection, group: list[Entry]) -> list[Any]:
        if _reads(group):
            return super()._commit(connection, group)
        with self._turn():
            return super()._commit(connection, group)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the right to write. Raises DatabaseLocked after `LOCK_TIMEOUT_SECONDS`."""
        deadline = SYSTEM_CLOCK.monotonic() + LOCK_TIMEOUT_SECONDS
        self._lock(_QUEUE, deadline)
        try:
            self._lock(_WRITE, deadline)
        finally:
            self._unlock(_QUEUE)
        try:
            yield
        finally:
            self._unlock(_WRITE)

    def _lock(self, byte: int, deadline: float) -> None:
        while True:
            try:
                fcntl.lockf(self._turns, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except (BlockingIOError, PermissionError):  # either, by the manual
                if SYSTEM_CLOCK.monotonic() >= deadline:
                    raise DatabaseLocked(
                        f"the metadata database {self._path} failed: other processes held its"
                        f" write lock for {LOCK_TIMEOUT_SECONDS:g} s"
                    ) from None
                self._pause.wait(TURN_PAUSE_SECONDS)
            else:
                return

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._turns, fcntl.LOCK_UN, 1, byte)


def new_renewals(path: Path) -> None:
    """Recreate the file of renewals beside a database, as a power loss may have damaged it.

    Call it before the processes start: it sets the journal mode, which fails while others do the
    same.
    """
    file = _renewals_of(path)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


def _renewals_of(path: Path) -> Path:
    return path.with_name(f"{RENEWALS}.sqlite")


def _reads(group: list[Entry]) -> bool:
    return all([entry.reads for entry in group])
