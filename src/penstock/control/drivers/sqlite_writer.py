"""A thread that owns a SQLite connection and commits queued operations in groups.

All operations of a group share one transaction, and each runs in a savepoint of it unless it is the
only one. A rejected operation undoes only itself, and one sync makes the whole group durable. The
future of an operation completes after the commit. If the commit fails, every operation of the group
fails with `ControlUnavailable`.

The writer continues after a full disk. After a failed read, write or sync it rejects everything
until a restart: the state of the disk is unknown, and a repeated sync may succeed without having
written.

Source: SQLite's documentation of WAL, `synchronous` and savepoints; "Can applications recover from
fsync failures?" (USENIX ATC 2020).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import queue
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from penstock.base.errors import BugError
from penstock.base.system import SYSTEM_CLOCK
from penstock.control.drivers.statements import (
    Answer,
    Database,
    Each,
    Lock,
    Operation,
    Rows,
    Scan,
    Statement,
    Together,
    Values,
)
from penstock.control.values.errors import (
    LOCK_TIMEOUT_SECONDS,
    OPERATION_TIMEOUT_SECONDS,
    WAITING_OPERATIONS_MAX,
    ControlBusy,
    ControlUnavailable,
    DatabaseDamaged,
    DatabaseFull,
    DatabaseLocked,
    DatabaseStopped,
    StaleClusterEpoch,
)

T = TypeVar("T")

sqlite3.register_adapter(UUID, lambda value: value.bytes)


def run(connection: sqlite3.Connection, operation: Operation[T]) -> T:
    answer: Any = None
    try:
        while True:
            statement, values = operation.send(answer)
            if type(statement) is Each:
                answer = _each(connection, statement, *values)
            elif type(statement) is Scan:
                answer = _scans(connection, statement, values[0])
            elif type(statement) is Together:
                for part, rows in zip(statement.parts, values, strict=True):
                    answer = _each(connection, part, rows, ())
            else:
                answer = _one(connection, statement, values)
    except StopIteration as end:
        value: T = end.value
        return value


def _value(cursor: sqlite3.Cursor) -> Any:
    found = cursor.fetchone()
    return None if found is None else found[0]


_ANSWERS: Final[dict[Answer, Callable[[sqlite3.Cursor], Any]]] = {
    "rows": sqlite3.Cursor.fetchall,
    "row": sqlite3.Cursor.fetchone,
    "value": _value,
    "changed": lambda cursor: cursor.rowcount,
}


def _one(connection: sqlite3.Connection, statement: Statement, values: Values) -> Any:
    for text, count in statement.sqlite:
        cursor = connection.execute(text, values[:count])
    return _ANSWERS[statement.answer](cursor)


def _each(
    connection: sqlite3.Connection, statement: Each, rows: list[Values], shared: Values
) -> Any:
    [(text, _)] = statement.sqlite
    if shared:
        rows = [(*row, *shared) for row in rows]
    if statement.answer == "rows":
        return [found for row in rows for found in connection.execute(text, row)]
    return connection.executemany(text, rows).rowcount if rows else 0


def _scans(
    connection: sqlite3.Connection, statement: Scan, rows: list[Values]
) -> Iterator[sqlite3.Cursor]:
    [(text, _)] = statement.sqlite
    for row in rows:
        cursor = connection.execute(text, row)
        yield cursor
        cursor.close()  # lets the next execution reuse the compiled text


class SqliteDatabase(ABC):
    """A `Database` in SQLite, whose writer runs operations one after the other."""

    @abstractmethod
    async def run(
        self,
        operation: Callable[[sqlite3.Connection], Any],
        *,
        reads: bool = False,
        rows: Rows = None,
        synced: bool = True,
    ) -> Any:
        """Run a function in a transaction of the connection; return its value once it is durable.

        `reads` means that the function changes nothing, so nothing is synced. `rows` and `synced`
        are as in `Database.change`.
        """

    async def read(
        self,
        make: Callable[[], Operation[T]],
        *,
        within_seconds: float = OPERATION_TIMEOUT_SECONDS,
    ) -> T:
        found: T = await self.run(lambda connection: run(connection, make()), reads=True)
        return found

    async def change(
        self,
        make: Callable[[], Operation[T]],
        *,
        lock: Lock = Lock.NONE,
        cluster_epoch: int | None = None,
        rows: Rows = None,
        synced: bool = True,
    ) -> T:
        def operation(connection: sqlite3.Connection) -> T:
            if cluster_epoch is not None:
                check_cluster_epoch(connection, cluster_epoch)
            return run(connection, make())

        value: T = await self.run(operation, rows=rows, synced=synced)
        return value


def check_cluster_epoch(connection: sqlite3.Connection, expected: int) -> None:
    """Raise StaleClusterEpoch unless the stored cluster epoch is `expected`."""
    (found,) = connection.execute("SELECT membership FROM image_version").fetchone()
    if found != expected:
        raise StaleClusterEpoch(expected, found)


GROUP_OPERATIONS_MAX: Final = 512
"""Operations in one group, which share a transaction and a sync."""

BUSY_TIMEOUT_SECONDS: Final = 2.0
"""SQLite's busy timeout: how long to wait for another owner of the database."""

LOOP_ROWS_MAX: Final = 64
"""Rows up to which the operations of one turn may be committed on the callers' event loop."""

LOOP_COMMIT_SECONDS_MAX: Final = 0.002
"""Duration of the last commit above which the event loop commits nothing itself."""

CHECKPOINT_OPERATIONS: Final = 250
"""Operations between checkpoints of the write-ahead log: about 1,000 pages, SQLite's default."""

logger = logging.getLogger(__name__)

QueuedOperation = Callable[[sqlite3.Connection], Any]
_Future = asyncio.Future[Any]
_Outcome = tuple[Any, Exception | None]


class Entry(NamedTuple):
    """A queued operation, with the future and event loop of its caller."""

    operation: QueuedOperation
    future: _Future
    loop: asyncio.AbstractEventLoop
    reads: bool
    rows: Rows
    synced: bool


_KINDS: Final[dict[int, type[ControlUnavailable]]] = {
    sqlite3.SQLITE_FULL: DatabaseFull,
    sqlite3.SQLITE_BUSY: DatabaseLocked,
    sqlite3.SQLITE_LOCKED: DatabaseLocked,
    sqlite3.SQLITE_CORRUPT: DatabaseDamaged,
    sqlite3.SQLITE_NOTADB: DatabaseDamaged,
    sqlite3.SQLITE_IOERR: DatabaseStopped,
}
_OF_ONE_OPERATION: Final = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH}
)
"""Failures that concern a single operation, not the whole group."""


class Writer(Database, Protocol):
    """Interface of a writer, which runs operations on one connection in the order of submission."""

    @property
    def closed(self) -> bool: ...

    def start(self) -> None: ...

    async def run(
        self,
        operation: QueuedOperation,
        *,
        reads: bool = False,
        rows: Rows = None,
        synced: bool = True,
    ) -> Any:
        """Run one operation and return its value once it is durable.

        The arguments are those of `SqliteDatabase.run`.

        Raises:
            ControlBusy: too many operations wait.
            ControlUnavailable: the database failed, or the writer is closed.
            PenstockError: the operation's own error.
        """
        ...

    async def close(self) -> None:
        """Finish queued operations and close the connection. Idempotent."""
        ...


class SqliteWriter(SqliteDatabase):
    """The writer of a SQLite file, which commits on a thread of its own.

    The operations of one turn of the event loop are committed on the loop itself if they are small,
    commits are fast, and nothing is queued. The thread would contend with the loop for Python's
    lock at each statement.
    """

    commits_on_loop = True
    """Whether small operations may be committed on the event loop.

    False if other processes may hold locks.
    """

    def __init__(self, path: Path, *, on_group: Callable[[bool], None]) -> None:
        """Call `on_group(committed)` after each group, on the thread that ran it."""
        self._path = path
        self._on_group = on_group
        self._queue: queue.Queue[Entry | None] = queue.Queue(WAITING_OPERATIONS_MAX)
        self._thread = threading.Thread(target=self._run, name="penstock-control", daemon=True)
        self._stopped: ControlUnavailable | None = None
        self._connection: sqlite3.Connection | None = None
        self._connection_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathered: list[Entry] = []
        """Entries submitted during this turn of the event loop."""
        self._queued = 0
        self._taken = 0
        """Numbers of entries that were ever queued, and of those that have ended."""
        self._commit_seconds = 0.0
        self._syncs = True
        """Whether commits are synced at present; checkpoints of the write-ahead log always are."""
        self._uncopied = 0
        """Operations since the last checkpoint of the write-ahead log."""
        self.closed = False

    def start(self) -> None:
        self._thread.start()

    async def run(
        self,
        operation: QueuedOperation,
        *,
        reads: bool = False,
        rows: Rows = None,
        synced: bool = True,
    ) -> Any:
        if self.closed:
            raise ControlUnavailable("the metadata database is closed")
        loop = asyncio.get_running_loop()
        future: _Future = loop.create_future()
        entry = Entry(operation, future, loop, reads, rows, synced)
        if self._loop is None:
            self._loop = loop
        if loop is not self._loop or not self.commits_on_loop:
            self._put(entry)
        else:
            if not self._gathered:
                loop.call_soon(self._end_of_turn)
            self._gathered.append(entry)
        return await future

    def _put(self, entry: Entry) -> None:
        """Queue an entry for the thread; fail its future with ControlBusy if the queue is full."""
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            _set_results([(entry.future, (None, ControlBusy(WAITING_OPERATIONS_MAX)))])
        else:
            self._queued += 1

    def _end_of_turn(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered and self._commit_here(gathered):
            return
        for entry in gathered:
            self._put(entry)

    def _commit_here(self, group: list[Entry]) -> bool:
        """Commit a group on the event loop.

        Return False, and do nothing, if the group is not small or that might block for long.
        """
        if self._taken != self._queued or self._commit_seconds > LOOP_COMMIT_SECONDS_MAX:
            return False
        if self._uncopied >= CHECKPOINT_OPERATIONS:
            return False
        if not self._connection_lock.acquire(blocking=False):
            return False
        try:
            if self._connection is None or self._stopped is not None:
                return False
            if not _is_small(group, self._connection):
                return False
            outcomes = self._outcomes(group)
        finally:
            self._connection_lock.release()
        futures = [entry.future for entry in group]
        _set_results(list(zip(futures, outcomes, strict=True)))
        return True

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._end_of_turn()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._queue.put, None)
        await loop.run_in_executor(None, self._thread.join)

    # The methods below run on the thread, or on the loop for small operations.

    def _run(self) -> None:
        last = False
        while not last:
            entry = self._queue.get()
            if entry is None:
                break
            group, last = self._gather(entry)
            with self._connection_lock:
                outcomes = self._outcomes(group)
                self._copy_back()
                self._taken += len(group)
            _resolve(group, outcomes)
        if self._connection is not None:
            self._connection.close()

    def _outcomes(self, group: list[Entry]) -> list[_Outcome]:
        if self._stopped is not None:
            return _all_failed(group, self._stopped)
        begun = SYSTEM_CLOCK.monotonic()
        try:
            if self._connection is None:
                self._connection = self._open()
            outcomes = self._commit(self._connection, group)
        except Exception as error:  # the thread outlives every failure of a group
            return _all_failed(group, self._failed(self._connection, error))
        self._commit_seconds = SYSTEM_CLOCK.monotonic() - begun
        self._uncopied += len(group)
        return outcomes

    def _copy_back(self) -> None:
        """Copy the write-ahead log into the database file, once per `CHECKPOINT_OPERATIONS`."""
        if self._uncopied < CHECKPOINT_OPERATIONS or self._connection is None:
            return
        self._uncopied = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            logger.error("%s", self._failed(self._connection, error))

    def _gather(self, first: Entry) -> tuple[list[Entry], bool]:
        """Return `first` and further queued operations, and whether the queue was closed."""
        group = [first]
        while len(group) < GROUP_OPERATIONS_MAX:
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return group, False
            if entry is None:
                return group, True
            group.append(entry)
        return group, False

    def _open(self) -> sqlite3.Connection:
        connection = open_connection(self._path, locking="EXCLUSIVE")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def _begin(self, connection: sqlite3.Connection, group: list[Entry]) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def _commit(self, connection: sqlite3.Connection, group: list[Entry]) -> list[_Outcome]:
        syncs = any([entry.synced for entry in group])
        if syncs != self._syncs:
            connection.execute(f"PRAGMA synchronous = {'FULL' if syncs else 'NORMAL'}")
            self._syncs = syncs
        self._begin(connection, group)
        if len(group) == 1:
            outcomes = [self._attempt(connection, group[0].operation)]
            connection.execute("ROLLBACK" if outcomes[0][1] is not None else "COMMIT")
        else:
            outcomes = [self._in_savepoint(connection, entry.operation) for entry in group]
            connection.execute("COMMIT")
        self._on_group(True)
        return outcomes

    def _in_savepoint(self, connection: sqlite3.Connection, operation: QueuedOperation) -> _Outcome:
        connection.execute("SAVEPOINT operation")
        outcome = self._attempt(connection, operation)
        if outcome[1] is not None:
            connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")
        return outcome

    def _attempt(self, connection: sqlite3.Connection, operation: QueuedOperation) -> _Outcome:
        """Return the outcome of one operation. Raises failures that concern the whole group."""
        try:
            return operation(connection), None
        except sqlite3.Error as cause:
            if not connection.in_transaction or _code(cause) not in _OF_ONE_OPERATION:
                raise
            error = BugError(f"{self._path} rejected a row: {cause}")
            error.__cause__ = cause
            return None, error
        except Exception as refusal:
            return None, refusal

    def _failed(self, connection: sqlite3.Connection | None, cause: Exception) -> Exception:
        """Roll the transaction back; return the error for the operations of its group."""
        self._on_group(False)
        try:
            if connection is not None and connection.in_transaction:
                connection.rollback()
        except sqlite3.Error as second:
            cause = second
        if not isinstance(cause, sqlite3.Error):
            return cause
        kind = _KINDS.get(_code(cause), ControlUnavailable)
        full = ". Free space on its disk." if _code(cause) == sqlite3.SQLITE_FULL else ""
        error = kind(f"the metadata database {self._path} failed: {cause}{full}")
        error.__cause__ = cause
        if kind in (DatabaseStopped, DatabaseDamaged):
            self._stopped = error
        return error


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def open_connection(path: Path, *, locking: str) -> sqlite3.Connection:
    """Open a database in WAL mode with synced commits. `locking` is SQLite's locking mode."""
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute(f"PRAGMA locking_mode = {locking}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _all_failed(group: list[Entry], error: Exception) -> list[_Outcome]:
    """Return a failure per operation, each with its own exception object."""
    if not isinstance(error, ControlUnavailable):
        return [(None, error)] * len(group)
    outcomes: list[_Outcome] = []
    for _ in group:
        own = type(error)(str(error))
        own.__cause__ = error.__cause__
        outcomes.append((None, own))
    return outcomes


def _resolve(group: list[Entry], outcomes: list[_Outcome]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Future, _Outcome]]] = {}
    for entry, outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(entry.loop, []).append((entry.future, outcome))
    for loop, results in by_loop.items():
        try:
            loop.call_soon_threadsafe(partial(_set_results, results))
        except RuntimeError:  # the loop was closed, and its callers with it
            continue


def _set_results(results: list[tuple[_Future, _Outcome]]) -> None:
    for future, (value, error) in results:
        if future.done():  # its caller was cancelled
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


# The writer of a SQLite file that several processes of one machine share.
#
# Write-ahead logging allows concurrent readers and one writer. SQLite's own retries starve waiting
# writers: of two processes that wrote for four seconds, one made no commit. So the processes queue
# for the right to write, by locks of two bytes of a file. A process holds the first byte's lock
# while it waits for the second one, and holds the second one during its commit. The operating
# system releases the locks of a process that ends. The locks give fairness only; SQLite itself
# excludes concurrent writers. Groups of operations that only read do not queue.
#
# Renewals of broker registrations are in a file of their own, which is not synced, because they are
# worthless after a restart.


TURN_PAUSE_SECONDS: Final = 0.0003
"""Pause between attempts to get a lock of the queue."""

RENEWALS: Final = "renewals"
"""Name under which the file of renewals is attached, and the file's name without suffix."""
_QUEUE: Final = 0
_WRITE: Final = 1


class SharedWriter(SqliteWriter):
    """The writer of one process, for a SQLite file that other processes also write.

    Before it commits changes, it queues for its turn with the writers of these processes.
    """

    commits_on_loop = False

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
        """Wait in the queue of processes, then hold the lock for a commit.

        Raises DatabaseLocked after `LOCK_TIMEOUT_SECONDS`.
        """
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
    """Recreate the file that has the times at which brokers renewed their registrations.

    The file is beside the database and is never synced, so a power loss may have damaged it. Call
    this before the broker processes start: setting the journal mode fails if two do it at once.
    """
    file = _renewals_of(path)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


def _renewals_of(path: Path) -> Path:
    return path.with_name(f"{RENEWALS}.sqlite")


def _is_small(group: list[Entry], connection: sqlite3.Connection) -> bool:
    left = LOOP_ROWS_MAX
    for entry in group:
        rows = entry.rows
        if rows is not None and not isinstance(rows, int):
            try:
                rows = run(connection, rows())
            except sqlite3.Error:  # the operation itself reports it
                return False
        if rows is None:
            return False
        left -= max(1, rows)
    return left >= 0


def _reads(group: list[Entry]) -> bool:
    return all([entry.reads for entry in group])
