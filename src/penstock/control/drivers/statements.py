"""Operations of the control plane, each written once for SQLite and PostgreSQL.

An operation is a generator. It yields a statement with its values, receives the database's result,
decides by the rules of its subject, and returns the caller's result.

    read = row("SELECT version, owner FROM things WHERE name = $1 FOR UPDATE")
    write = changed("UPDATE things SET version = $2, owner = $3 WHERE name = $1")

    def rename(name: str, owner: str) -> Operation[int]:
        found = yield read(name)
        version = next_version(found)
        yield write(name, version, owner)
        return version

An operation runs in one transaction. PostgreSQL reruns it from its beginning after a lost
connection or a race, so it must change nothing but rows. It calls another operation with `yield
from`. The decorators below turn an operation into a method.

**SQL text** is PostgreSQL's. SQLite gets the same text, with `?1` for `$1` and without row locks.
If the dialects differ more, a statement has its own text for SQLite. It may be a tuple of texts,
which get the same values, and the last of which gives the result: SQLite has no RETURNING before
version 3.35.

**Round trips** are saved by statements over many rows. `Each` takes rows of values: PostgreSQL gets
them as a list per column in one statement, SQLite runs the statement once per row. `Together`
combines several statements.

**Values** are passed unchanged, UUIDs too. Results have the database's types: `uuid_of` and `bool`
convert them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from enum import Enum
from functools import partial, wraps
from typing import (
    Any,
    Concatenate,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
)
from uuid import UUID

from penstock.control.values.errors import OPERATION_TIMEOUT_SECONDS

T = TypeVar("T")
P = ParamSpec("P")
Owner = TypeVar("Owner", bound="OverDatabase")
Values = tuple[Any, ...]
Answer = Literal["rows", "row", "value", "changed"]

_PARAMETER: Final = re.compile(r"\$(\d+)")
_ONE_LIST: Final = re.compile(r"= ANY\((\$1)::\w+\[\]\)")
_ROW_LOCK: Final = re.compile(r" FOR (?:NO KEY )?UPDATE(?: OF \w+)?(?: SKIP LOCKED)?")


class SqliteText(NamedTuple):
    text: str
    values: int


class Statement:
    """A statement: its SQL text for each database, and the form of its result."""

    __slots__ = ("answer", "postgres", "sqlite")

    def __init__(self, answer: Answer, postgres: str, sqlite: str | tuple[str, ...] | None) -> None:
        own = postgres if sqlite is None else sqlite
        texts = [_ROW_LOCK.sub("", text) for text in ((own,) if isinstance(own, str) else own)]
        self.answer = answer
        self.postgres = postgres
        self.sqlite = tuple(
            SqliteText(
                _PARAMETER.sub(r"?\1", text),
                max((int(number) for number in _PARAMETER.findall(text)), default=0),
            )
            for text in texts
        )


class One(Statement):
    """A statement that takes one row of values. Made by `rows`, `row`, `value` and `changed`."""

    def __call__(self, *values: Any) -> Call:
        return self, values


class Each(Statement):
    """A statement that takes any number of rows of values. Without rows or text it is not executed.

    PostgreSQL's text takes a list per column (`unnest($1::uuid[], $2::int[])`), then the shared
    values. SQLite's text takes one row, then the shared values. It is derived from PostgreSQL's
    text if that compares with one list (`= ANY($1::uuid[])`). Result rows come in any order; a
    "changed" result is the total.
    """

    def __init__(
        self, answer: Literal["rows", "changed"], postgres: str, *, sqlite: str | None = None
    ) -> None:
        super().__init__(answer, postgres, sqlite or _ONE_LIST.sub(r"= \1", postgres))

    def __call__(self, rows: Iterable[Values], *shared: Any) -> Call:
        return self, (list(rows), shared)


class Scan(Statement):
    """A read that takes any number of rows of values, and returns an iterator for each, in order.

    An iterator must be consumed before the next one, but not to its end. PostgreSQL's text takes a
    list per column, a list of the rows' numbers, then the shared values; its results end with the
    number. SQLite's text takes one row only, without the shared values.
    """

    __slots__ = ()

    def __init__(self, postgres: str, *, sqlite: str) -> None:
        super().__init__("rows", postgres, sqlite)

    def __call__(self, rows: Sequence[Values], *shared: Any) -> Call:
        return self, (rows, shared)


class Together(Statement):
    """Statements on different tables, which PostgreSQL executes as one.

    The result is that of the last one.
    """

    __slots__ = ("parts",)

    def __init__(self, *parts: Each) -> None:
        self.parts = parts
        texts: list[str] = []
        before = 0
        for part in parts:
            texts.append(_PARAMETER.sub(partial(_moved, by=before), part.postgres))
            before += part.sqlite[0].values
        named = [f"part_{place} AS ({text})" for place, text in enumerate(texts[:-1], 1)]
        super().__init__(parts[-1].answer, f"WITH {', '.join(named)} {texts[-1]}", ())

    def __call__(self, *sets: Sequence[Values]) -> Call:
        return self, sets

    def columns(self, sets: Sequence[Sequence[Values]]) -> list[Sequence[Any]]:
        """Return PostgreSQL's values: for each statement, the columns of its rows."""
        columns: list[Sequence[Any]] = []
        for part, rows in zip(self.parts, sets, strict=True):
            columns += zip(*rows, strict=True) if rows else [()] * part.sqlite[0].values
        return columns


def _moved(parameter: re.Match[str], by: int) -> str:
    return f"${int(parameter[1]) + by}"


Call = tuple[Statement, Values]
Operation = Generator[Call, Any, T]
Rows = int | Callable[[], Operation[int]] | None


def rows(postgres: str, sqlite: str | tuple[str, ...] | None = None) -> One:
    """Return a statement whose result is a list of rows."""
    return One("rows", postgres, sqlite)


def row(postgres: str, sqlite: str | tuple[str, ...] | None = None) -> One:
    """Return a statement whose result is its first row, or None."""
    return One("row", postgres, sqlite)


def value(postgres: str, sqlite: str | tuple[str, ...] | None = None) -> One:
    """Return a statement whose result is the first column of its first row, or None."""
    return One("value", postgres, sqlite)


def changed(postgres: str, sqlite: str | tuple[str, ...] | None = None) -> One:
    """Return a statement whose result is the number of changed rows."""
    return One("changed", postgres, sqlite)


def uuid_of(stored: Any) -> UUID:
    """Return a plain `UUID` for SQLite's bytes or asyncpg's own class, whose repr differs."""
    return UUID(bytes=stored if type(stored) is bytes else stored.bytes)


class Again(Exception):
    """Raised by an operation that lost a race.

    The driver reruns the operation from its beginning.
    """


class Lock(Enum):
    """State that other brokers must not change while an operation runs.

    The values are the statements by which PostgreSQL begins the transaction, except that of TOPICS,
    which depends on the cluster epoch.
    """

    NONE = "BEGIN"
    TOPICS = "topics and brokers; a cluster epoch that is named is compared under this lock"
    METADATA = "BEGIN; SELECT pg_advisory_xact_lock(1346719315, 2)"
    SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Database(Protocol):
    """Runs operations. `make` creates the generator of an operation for each attempt.

    Both methods raise ControlUnavailable, ControlBusy, and the errors of the operation itself. The
    operation's own errors change nothing.
    """

    async def read(
        self,
        make: Callable[[], Operation[T]],
        *,
        within_seconds: float = OPERATION_TIMEOUT_SECONDS,
    ) -> T:
        """Run an operation of one repeatable statement without a transaction.

        `within_seconds` limits its total time.
        """
        ...

    async def change(
        self,
        make: Callable[[], Operation[T]],
        *,
        lock: Lock = Lock.NONE,
        cluster_epoch: int | None = None,
        rows: Rows = None,
        synced: bool = True,
    ) -> T:
        """Run an operation in one transaction; return its value once it is durable.

        `rows` is the approximate number of rows that it touches, or a cheap operation that counts
        them; None if they may be many. Without `synced`, a loss of power may undo the change unless
        a later change was synced; a crash of the process cannot. PostgreSQL ignores it.

        Raises:
            StaleClusterEpoch: `cluster_epoch` is given, and is not the current one.
        """
        ...


class OverDatabase(ABC):
    """Base of the parts of the control plane, whose methods run operations on a database."""

    @property
    @abstractmethod
    def _database(self) -> Database:
        """The open database. Raises ControlUnavailable if it is closed."""


Method = Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]
"""Method that runs an operation and returns its value."""


def query(
    make: Callable[Concatenate[Owner, P], Operation[T]],
) -> Method[Owner, P, T]:
    """Decorate an operation of one repeatable statement, as a method without a transaction."""

    @wraps(make)
    async def method(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await owner._database.read(partial(make, owner, *args, **kwargs))

    return method


def operation(
    *, lock: Lock = Lock.NONE
) -> Callable[[Callable[Concatenate[Owner, P], Operation[T]]], Method[Owner, P, T]]:
    """Decorate an operation, as a method that runs it in one transaction with a lock."""

    def made(make: Callable[Concatenate[Owner, P], Operation[T]]) -> Method[Owner, P, T]:
        @wraps(make)
        async def method(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await owner._database.change(partial(make, owner, *args, **kwargs), lock=lock)

        return method

    return made
