"""A bounded pool of PostgreSQL connections that survives restarts and fail-overs of the server.

The pool runs an operation (`statements.py`), or a coroutine over one connection, in one
transaction. It repeats the whole transaction after a lost connection, a deadlock or a serialisation
failure, with jittered pauses, up to `OPERATION_ATTEMPTS_MAX` times. It never repeats a transaction
once COMMIT was sent. Callers get an error only after `OPERATION_TIMEOUT_SECONDS`, or if the
connection was lost during COMMIT.

Connections are opened one at a time, and after a failure only after a pause, to protect a server
that restarts. A connection in an unknown state is closed: one that failed, or whose statement was
cancelled. If the URL names several hosts, the host that accepts writes is chosen. asyncpg's own
pool is not used, because its release resets the session, which costs a round trip per operation.

Source: PostgreSQL's documentation of libpq, "Specifying Multiple Hosts"; asyncpg's `connect`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from penstock.base.errors import BugError, PenstockError
from penstock.base.pause import pause
from penstock.base.system import Randomness
from penstock.base.urls import without_credentials
from penstock.control.drivers.statements import (
    Again,
    Each,
    Lock,
    Operation,
    Rows,
    Scan,
    Together,
    Values,
)
from penstock.control.values.errors import (
    BACKOFF,
    CONNECT_TIMEOUT_SECONDS,
    LOCK_TIMEOUT_SECONDS,
    OPERATION_TIMEOUT_SECONDS,
    WAITING_OPERATIONS_MAX,
    ControlBusy,
    ControlUnavailable,
    DatabaseDamaged,
    DatabaseFull,
    DatabaseLocked,
    DatabaseRefused,
    DatabaseSlow,
    StaleClusterEpoch,
    UnstorableText,
)

# Classification of PostgreSQL failures: is the transaction repeated, and the connection kept?
#
# | SQLSTATE            | cause                                  | transaction     | connection    |
# |---------------------|----------------------------------------|-----------------|---------------|
# | 40…                 | deadlock, serialisation failure        | repeated        | kept          |
# | 08…, 57P…, none     | lost connection, restart, fail-over    | repeated¹       | closed        |
# | 25006               | the server became a read-only standby  | repeated¹       | closed        |
# | 53300               | too many connections                   | repeated        | closed        |
# | 55P03               | lock timeout                           | fails           | kept          |
# | 57014               | statement timeout, or cancelled        | fails           | kept          |
# | 53100               | the disk is full                       | fails           | kept          |
# | 22…                 | a value cannot be stored               | rejected        | kept          |
# | 23…, 42…            | constraint or syntax: Penstock's fault | bug             | kept          |
# | PK001               | Penstock's fence: a new cluster epoch  | rejected        | kept          |
#
# ¹ unless COMMIT was sent: then the outcome is unknown, and the error says so. A transaction that
# PostgreSQL ended because it was idle (25P03) did not take effect, so it is repeated.
#
# Source: PostgreSQL's appendix A, "PostgreSQL Error Codes".


FENCED: Final = "PK001"
_REPEATED_CLASS: Final = "40"
_LOST_CLASSES: Final = ("08", "57P")
_IDLE: Final = "25P03"
_LOST_STATES: Final = frozenset({"25006", "53300", _IDLE})
_UNAVAILABLE: Final[dict[str, type[ControlUnavailable]]] = {
    "55P03": DatabaseLocked,
    "57014": DatabaseSlow,
    "53100": DatabaseFull,
    "58030": DatabaseDamaged,
    "XX001": DatabaseDamaged,
    "XX002": DatabaseDamaged,
    "42P01": DatabaseDamaged,
    "42883": DatabaseDamaged,
    "42501": DatabaseRefused,
}

DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # TimeoutError is one
)


class Failure(NamedTuple):
    """The outcome of a failed transaction.

    `error` is raised to the caller. A `lost` connection must not be reused. `repeat` means that the
    work had no effect and may be retried.
    """

    error: PenstockError
    lost: bool
    repeat: bool


def classify(cause: BaseException, *, where: str, in_doubt: bool) -> Failure:
    """Classify a failure of work on a connection.

    `in_doubt` means that the work may have taken effect. `where` names the database in messages,
    without its password.
    """
    state = getattr(cause, "sqlstate", None) or ""
    if isinstance(cause, asyncpg.PostgresError) and not _is_loss(cause, state):
        return _of_statement(cause, state, where)
    if isinstance(cause, (asyncpg.DataError, UnicodeEncodeError)):
        return Failure(
            UnstorableText(f"{where} cannot store a value: {_text(cause)}"), False, False
        )
    reason = _text(cause) or type(cause).__name__
    # The driver reports a lost connection and keeps PostgreSQL's reason as the cause.
    in_doubt = in_doubt and _IDLE not in (state, getattr(cause.__cause__, "sqlstate", None))
    doubt = "; whether the change took effect is not known" if in_doubt else ""
    error = ControlUnavailable(f"{where} cannot be used now: {reason}{doubt}")
    error.__cause__ = cause
    return Failure(error, True, not in_doubt)


def of_connecting(cause: BaseException, *, where: str) -> Failure:
    """Classify a failure to connect. A failure that needs an administrator is not retried."""
    state = getattr(cause, "sqlstate", None) or ""
    reason = _text(cause) or type(cause).__name__
    final = state.startswith("28") or state == "3D000"
    kind = DatabaseRefused if final else ControlUnavailable
    error = kind(f"cannot connect to {where}: {reason}")
    error.__cause__ = cause
    return Failure(error, True, not final)


def _is_loss(cause: asyncpg.PostgresError, state: str) -> bool:
    if state.startswith(_LOST_CLASSES) or state in _LOST_STATES:
        return True
    # Plans from before a migration; a new connection makes new ones.
    return isinstance(cause, asyncpg.InvalidCachedStatementError)


def _of_statement(cause: asyncpg.PostgresError, state: str, where: str) -> Failure:
    text = f"{where}: {_text(cause)}"
    error: PenstockError
    if state.startswith(_REPEATED_CLASS):
        return Failure(_caused(ControlUnavailable(text), cause), False, True)
    if state in _UNAVAILABLE:
        error = _UNAVAILABLE[state](text)
    elif state.startswith("22"):
        error = UnstorableText(f"{where} cannot store a value: {_text(cause)}")
    elif state == FENCED:
        expected, found = (int(number) for number in str(cause.detail).split())
        error = StaleClusterEpoch(expected, found)
    elif state.startswith(("23", "42")):
        error = BugError(text)
    else:
        error = ControlUnavailable(text)
    return Failure(_caused(error, cause), False, False)


def _caused(error: PenstockError, cause: BaseException) -> PenstockError:
    error.__cause__ = cause
    return error


def _text(cause: BaseException) -> str:
    return str(cause).split("\n", 1)[0]


OPERATION_ATTEMPTS_MAX: Final = 12
"""Attempts at an operation after lost connections, deadlocks and serialisation failures."""

STATEMENT_TIMEOUT_SECONDS: Final = 10.0
"""PostgreSQL's `statement_timeout`; the client's own timeout is slightly longer."""

IDLE_TRANSACTION_SECONDS: Final = 2.0
"""PostgreSQL's `idle_in_transaction_session_timeout`."""

_CLIENT_GRACE_SECONDS: Final = 2.0
_PLANNER: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
}
"""Planner settings that make every statement use an index, whatever the server's statistics."""
_BEGIN: Final = Lock.NONE.value
BEGIN_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""All statements of the transaction see one state of the database."""

T = TypeVar("T")


class Connection(Protocol):
    async def execute(self, query: str, /, *arguments: Any) -> str: ...

    async def executemany(self, query: str, arguments: Any, /) -> None: ...

    async def fetch(self, query: str, /, *arguments: Any) -> list[Any]: ...

    async def fetchrow(self, query: str, /, *arguments: Any) -> Any: ...

    async def fetchval(self, query: str, /, *arguments: Any) -> Any: ...


Work = Callable[[Connection], Awaitable[T]]
_Asyncpg = asyncpg.Connection


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def database_name(url: str) -> str:
    """Return the hosts and name of a database for messages, without the password."""
    hosts, _, name = without_credentials(url).partition("://")[2].partition("/")
    return f"the PostgreSQL database {name or '(default)'} on {hosts or 'the local server'}"


async def connect(url: str, settings: Mapping[str, str] | None = None) -> _Asyncpg:
    """Connect to the host of the URL that accepts writes.

    Settings in the URL override those of Penstock.
    """
    limits = {
        "statement_timeout": STATEMENT_TIMEOUT_SECONDS,
        "lock_timeout": LOCK_TIMEOUT_SECONDS,
        "idle_in_transaction_session_timeout": IDLE_TRANSACTION_SECONDS,
    }
    own = {name: str(int(seconds * 1000)) for name, seconds in limits.items()}
    own |= {"application_name": "penstock", **_PLANNER, **(settings or {})}
    chosen = parse_qs(urlsplit(url).query)
    attempt = asyncio.ensure_future(
        asyncpg.connect(
            url,
            timeout=CONNECT_TIMEOUT_SECONDS,
            command_timeout=STATEMENT_TIMEOUT_SECONDS + _CLIENT_GRACE_SECONDS,
            server_settings={name: value for name, value in own.items() if name not in chosen},
            target_session_attrs=(
                None if "target_session_attrs" in chosen else SessionAttribute.read_write
            ),
        )
    )
    try:
        return await asyncio.shield(attempt)
    except asyncio.CancelledError:
        # The driver leaks a connection if its opening is cancelled at the wrong moment.
        attempt.add_done_callback(_abandon)
        raise


def _abandon(attempt: asyncio.Future[_Asyncpg]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().terminate()


class Connections:
    """A pool of at most `size` connections to one database. It belongs to one event loop."""

    def __init__(self, url: str, *, size: int, randomness: Randomness) -> None:
        self.where = database_name(url)
        self._url = url
        self._size = size
        self._randomness = randomness
        self._slots = asyncio.Semaphore(size)
        self._idle: list[_Asyncpg] = []
        self._running = 0
        self._finished = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._failure: BaseException | None = None
        self._failures = 0
        self._not_before = 0.0
        self.closed = False

    async def transaction(self, work: Work[T], *, begin: str = _BEGIN) -> T:
        """Run work in one transaction; return its value after the commit.

        `begin` is the statement that opens the transaction. It may take locks in the same round
        trip.

        Raises:
            ControlUnavailable: the database failed. The message says if the outcome is unknown.
            ControlBusy: too many operations are running or waiting.
            PenstockError: the work was rejected and changed nothing.
        """
        return await self._repeated(
            lambda connection: _in_transaction(connection, work, begin, self.where)
        )

    async def statement(
        self, work: Work[T], *, within_seconds: float = OPERATION_TIMEOUT_SECONDS
    ) -> T:
        """Run one repeatable statement without a transaction, in `within_seconds` at most."""

        async def once(connection: _Asyncpg) -> T:
            return await work(connection)

        return await self._repeated(once, within_seconds)

    async def read(
        self,
        make: Callable[[], Operation[T]],
        *,
        within_seconds: float = OPERATION_TIMEOUT_SECONDS,
    ) -> T:
        return await self.statement(
            lambda connection: run(connection, make()), within_seconds=within_seconds
        )

    async def change(
        self,
        make: Callable[[], Operation[T]],
        *,
        lock: Lock = Lock.NONE,
        cluster_epoch: int | None = None,
        rows: Rows = None,
        synced: bool = True,
    ) -> T:
        begin = lock.value
        if lock is Lock.TOPICS:
            expected = "NULL" if cluster_epoch is None else str(int(cluster_epoch))
            begin = f"BEGIN; SELECT penstock_fence({expected})"
        return await self.transaction(lambda connection: run(connection, make()), begin=begin)

    async def close(self) -> None:
        """Wait for running work, within a time limit, and close the connections. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self._running:
            await _within(OPERATION_TIMEOUT_SECONDS, self._finished.wait())
        for connection in self._idle:
            await _within(CONNECT_TIMEOUT_SECONDS, connection.close())
        self._idle.clear()

    async def _repeated(
        self,
        once: Callable[[_Asyncpg], Awaitable[T]],
        within_seconds: float = OPERATION_TIMEOUT_SECONDS,
    ) -> T:
        if self.closed:
            raise ControlUnavailable(f"{self.where} is closed")
        if self._running >= WAITING_OPERATIONS_MAX:
            raise ControlBusy(WAITING_OPERATIONS_MAX)
        self._running += 1
        self._finished.clear()
        try:
            return await self._attempts(once, within_seconds)
        finally:
            self._running -= 1
            if not self._running:
                self._finished.set()

    async def _attempts(self, once: Callable[[_Asyncpg], Awaitable[T]], within_seconds: float) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_seconds
        last: PenstockError | None = None
        for number in range(OPERATION_ATTEMPTS_MAX):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._slots.acquire()
            except TimeoutError:
                break
            try:
                return await self._on_connection(once, deadline)
            except _Failed as failed:
                last = failed.failure.error
                if not failed.failure.repeat:
                    break
            finally:
                self._slots.release()
            seconds = BACKOFF.pause_seconds(number + 1, chance=self._randomness.uniform())
            if loop.time() + seconds >= deadline:
                break
            await pause(seconds)
        raise last or self._no_connection(within_seconds)

    def _no_connection(self, seconds: float) -> PenstockError:
        """Return the error of an operation that timed out without a connection."""
        if self._failure is not None:
            return of_connecting(self._failure, where=self.where).error
        return DatabaseSlow(
            f"all {self._size} connections to {self.where} were in use for {seconds:g} s"
        )

    async def _on_connection(self, once: Callable[[_Asyncpg], Awaitable[T]], deadline: float) -> T:
        connection = await self._acquire(deadline)
        kept = False
        try:
            value = await once(connection)
            kept = True
            return value
        except PenstockError:
            kept = True
            raise
        except _Failed as failed:
            kept = not failed.failure.lost
            raise
        except DATABASE_ERRORS as cause:
            failure = classify(cause, where=self.where, in_doubt=False)
            kept = not failure.lost
            raise _Failed(failure) from cause
        finally:
            if kept and not self.closed and not connection.is_closed():
                self._idle.append(connection)
            else:
                connection.terminate()

    async def _acquire(self, deadline: float) -> _Asyncpg:
        while True:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            try:
                async with asyncio.timeout_at(deadline):
                    await self._connecting.acquire()
            except TimeoutError as cause:
                raise _Failed(of_connecting(self._failure or cause, where=self.where)) from cause
            try:
                if not self._idle:
                    return await self._connect(deadline)
            finally:
                self._connecting.release()

    async def _connect(self, deadline: float) -> _Asyncpg:
        loop = asyncio.get_running_loop()
        if self._failure is not None:
            await pause(min(self._not_before, deadline) - loop.time())
            if loop.time() >= deadline:
                raise _Failed(of_connecting(self._failure, where=self.where))
        try:
            connection = await connect(self._url)
        except DATABASE_ERRORS as cause:
            self._failure = cause
            self._failures += 1
            chance = self._randomness.uniform()
            self._not_before = loop.time() + BACKOFF.pause_seconds(self._failures, chance=chance)
            raise _Failed(of_connecting(cause, where=self.where)) from cause
        self._failure, self._failures = None, 0
        return connection


async def run(connection: Connection, operation: Operation[T]) -> T:
    """Run an operation over a connection, with one round trip per statement."""
    answer: Any = None
    while True:
        try:
            statement, values = operation.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        if type(statement) is Each:
            rows, shared = values
            if not rows or not statement.postgres:
                answer = [] if statement.answer == "rows" else 0
                continue
            values = (*zip(*rows, strict=True), *shared)
        elif type(statement) is Scan:
            answer = await _scans(connection, statement, *values)
            continue
        elif type(statement) is Together:
            values = tuple(statement.columns(values))
        if statement.answer == "rows":
            answer = await connection.fetch(statement.postgres, *values)
        elif statement.answer == "row":
            answer = await connection.fetchrow(statement.postgres, *values)
        elif statement.answer == "value":
            answer = await connection.fetchval(statement.postgres, *values)
        else:
            answer = int((await connection.execute(statement.postgres, *values)).split()[-1])


async def _scans(
    connection: Connection, statement: Scan, rows: Sequence[Values], shared: Values
) -> list[Iterator[Any]]:
    scans: list[list[Any]] = [[] for _ in rows]
    if rows:
        columns = zip(*rows, strict=True)
        for found in await connection.fetch(
            statement.postgres, *columns, range(len(rows)), *shared
        ):
            scans[found[-1]].append(found)
    return list(map(iter, scans))


async def _in_transaction(connection: _Asyncpg, work: Work[T], begin: str, where: str) -> T:
    """Run work between `begin` and COMMIT. No transaction is open afterwards."""
    committing = False
    try:
        await connection.execute(begin)
        value = await work(connection)
        committing = not connection.is_closed()
        if await connection.execute("COMMIT") != "COMMIT":
            raise BugError(f"a failed transaction of {where} was committed instead of rolled back")
    except Again as again:
        await _roll_back(connection)
        raise _Failed(Failure(ControlUnavailable(f"{where}: {again}"), False, True)) from again
    except PenstockError:
        await _roll_back(connection)
        raise
    except DATABASE_ERRORS as cause:
        failure = classify(cause, where=where, in_doubt=committing)
        if not failure.lost:
            await _roll_back(connection)
        raise _Failed(failure) from cause
    return value


async def _roll_back(connection: _Asyncpg) -> None:
    try:
        if connection.is_in_transaction():
            await connection.execute("ROLLBACK")
    except DATABASE_ERRORS:
        connection.terminate()


async def _within(seconds: float, work: Awaitable[Any]) -> None:
    """Wait up to `seconds` for one step of a close, and ignore its failure."""
    with suppress(*DATABASE_ERRORS):
        await asyncio.wait_for(work, seconds)


logger = logging.getLogger(__name__)


FIRST_LOG_SECONDS: Final = 2.0
LOG_SECONDS: Final = 10.0
"""Interval of the log lines during the wait."""
RETRY_SECONDS: Final = 0.5
LASTING: Final = (DatabaseDamaged, DatabaseFull, DatabaseRefused)
"""Failures that need an administrator, so that waiting is pointless."""


async def when_answering(attempt: Callable[[], Awaitable[T]], *, where: str, seconds: float) -> T:
    """Repeat an attempt until the database answers; return the value of the attempt.

    Raises:
        ControlUnavailable: the failure of the last attempt, after `seconds` without success.
        PenstockError: a failure that waiting cannot end, raised at once.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    failures: deque[PenstockError] = deque(maxlen=1)
    logging_on = loop.create_task(_log_on(where, seconds, failures)) if seconds else None
    try:
        while True:
            try:
                return await attempt()
            except ControlUnavailable as error:
                if isinstance(error, LASTING) or loop.time() + RETRY_SECONDS >= until:
                    if seconds and not isinstance(error, LASTING):
                        error.add_note(
                            f"the broker waited for {seconds:g} s (control.start.timeout.ms)"
                        )
                    raise
                failures.append(error)
            await pause(RETRY_SECONDS)
    finally:
        if logging_on is not None:
            logging_on.cancel()


async def _log_on(where: str, seconds: float, failures: Iterable[PenstockError]) -> None:
    waited = FIRST_LOG_SECONDS
    await pause(FIRST_LOG_SECONDS)
    while True:
        logger.warning(
            "waiting for %s, which has not answered for %d s; the broker stops after %d s"
            " (control.start.timeout.ms)%s", where, waited, seconds,
            "".join([f"; the last attempt: {failure}" for failure in failures]),
        )  # fmt: skip
        await pause(LOG_SECONDS)
        waited += LOG_SECONDS
