"""Operations of the control plane, each written once for both databases.

An operation is a generator: it yields a statement with its values, gets the answer of the database,
decides by the rules of its subject, and returns what its caller gets.

    read = row("SELECT version, owner FROM things WHERE name = $1 FOR UPDATE")
    write = changed("UPDATE things SET version = $2, owner = $3 WHERE name = $1")

    def rename(name: str, owner: str) -> Operation[int]:
        found = yield read(name)
        version = next_version(found)
        yield write(name, version, owner)
        return version

It runs in one transaction, on SQLite's thread, at once in memory, or over a connection to
PostgreSQL; there it is run again from its beginning after a lost connection or race, so it changes
nothing but rows. An operation calls another one by `yield from`.

**Texts** are PostgreSQL's. SQLite gets the same one with `?1` for `$1` and without row locks, which
its one owner does not need; where the dialects differ more it has a text of its own, or several
with the same values, of which the last one answers (it knows no RETURNING before version 3.35).

**Round trips** are kept by statements over sets: `Each` takes rows, and PostgreSQL gets them as a
list for each column in one statement, SQLite one after the other. `Together` makes one of several.
A connection of asyncpg has one statement under way.

**Values** go in as they are: UUIDs, too, which SQLite keeps as 16 bytes. What comes out is the
database's: `uuid_of` and `bool` make of it what a value holds.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar
from uuid import UUID

from penstock.control.limits import OPERATION_TIMEOUT_SECONDS

T = TypeVar("T")
Values = tuple[Any, ...]
Answer = Literal["rows", "row", "value", "changed"]

_PARAMETER: Final = re.compile(r"\$(\d+)")
_ONE_LIST: Final = re.compile(r"= ANY\((\$1)::\w+\[\]\)")
_ROW_LOCK: Final = re.compile(r" FOR (?:NO KEY )?UPDATE(?: OF \w+)?(?: SKIP LOCKED)?")


class SqliteText(NamedTuple):
    """One text for SQLite, and how many of its statement's values it takes."""

    text: str
    values: int


class Statement:
    """A statement's texts, and what is answered: rows, one or None, a value or None, a count."""

    __slots__ = ("answer", "postgres", "sqlite")

    def __init__(self, answer: Answer, postgres: str, sqlite: str | tuple[str, ...] | None) -> None:
        own = postgres if sqlite is None else sqlite
        texts = [_ROW_LOCK.sub("", one) for one in ((own,) if isinstance(own, str) else own)]
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
    """A statement for one set of values; made by `rows`, `row`, `value` and `changed`."""

    def __call__(self, *values: Any) -> Call:
        return self, values


class Each(Statement):
    """A statement for any number of rows of values; with none, or no text, it is not executed.

    PostgreSQL's text takes a list for each column (`unnest($1::uuid[], $2::int[])`), then the
    values that all rows share; SQLite's takes a row, then those, and is derived where PostgreSQL's
    compares with one list (`= ANY($1::uuid[])`). Answered rows come in any order; a "changed" sums.
    """

    def __init__(
        self, answer: Literal["rows", "changed"], postgres: str, *, sqlite: str | None = None
    ) -> None:
        super().__init__(answer, postgres, sqlite or _ONE_LIST.sub(r"= \1", postgres))

    def __call__(self, rows: Iterable[Values], *shared: Any) -> Call:
        return self, (list(rows), shared)


class Scan(Statement):
    """A read for any number of rows of values, whose answers may be taken in part.

    What is answered is an iterator for each row, in their order, to be taken before the next one.
    PostgreSQL's text takes a list for each column and one of the rows' places, then the values
    that all rows share; what it answers ends with the place. SQLite's takes a row alone, and reads
    what is taken.
    """

    __slots__ = ()

    def __init__(self, postgres: str, *, sqlite: str) -> None:
        super().__init__("rows", postgres, sqlite)

    def __call__(self, rows: Sequence[Values], *shared: Any) -> Call:
        return self, (rows, shared)


class Together(Statement):
    """Statements over sets that PostgreSQL gets as one; SQLite gets one after the other.

    They change rows of different tables: none sees what the others do. The last one answers.
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
        """The values for PostgreSQL: of each set the columns, which are empty if it is."""
        columns: list[Sequence[Any]] = []
        for part, rows in zip(self.parts, sets, strict=True):
            columns += zip(*rows, strict=True) if rows else [()] * part.sqlite[0].values
        return columns


def _moved(parameter: re.Match[str], by: int) -> str:
    return f"${int(parameter[1]) + by}"


Call = tuple[Statement, Values]
Operation = Generator[Call, Any, T]


def rows(postgres: str, sqlite: str | tuple[str, ...] | None = None) -> One:
    """A statement whose answer is a list of rows."""
    return One("rows", postgres, sqlite)


def row(postgres: str, sqlite: str | tuple[str, ...] | None = None) -> One:
    """A statement whose answer is its first row, or None."""
    return One("row", postgres, sqlite)


def value(postgres: str, sqlite: str | tuple[str, ...] | None = None) -> One:
    """A statement whose answer is the first column of its first row, or None."""
    return One("value", postgres, sqlite)


def changed(postgres: str, sqlite: str | tuple[str, ...] | None = None) -> One:
    """A statement whose answer is how many rows it inserted, updated or deleted."""
    return One("changed", postgres, sqlite)


def uuid_of(stored: Any) -> UUID:
    """A plain UUID of SQLite's bytes, or of the class of asyncpg, which prints in another way."""
    return UUID(bytes=stored if type(stored) is bytes else stored.bytes)


class Again(Exception):
    """Raised by an operation that lost a race and is to be run again from its beginning."""


class Lock(Enum):
    """What stands still while an operation runs, where other brokers use the database, too."""

    NONE = "BEGIN"
    TOPICS = "topics and brokers; a cluster epoch that is named is compared under this lock"
    METADATA = "BEGIN; SELECT pg_advisory_xact_lock(1346719315, 2)"
    SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Database(Protocol):
    """Runs operations; `make` makes the generator, for every attempt anew.

    Both raise ControlUnavailable, ControlBusy, and whatever the operation refuses with; nothing
    was changed then.
    """

    async def read(
        self,
        make: Callable[[], Operation[T]],
        *,
        within_seconds: float = OPERATION_TIMEOUT_SECONDS,
    ) -> T:
        """Run an operation of one statement, which may be repeated without harm.

        `within_seconds` is how long it waits and is tried again, in all.
        """
        ...

    async def change(
        self,
        make: Callable[[], Operation[T]],
        *,
        lock: Lock = Lock.NONE,
        cluster_epoch: int | None = None,
        rows: int | None = None,
    ) -> T:
        """Run an operation in one transaction; its value once that is durable.

        `rows` is about how many it touches, where that is known to be few.

        Raises:
            StaleClusterEpoch: a cluster epoch is given, and is not the current one.
        """
        ...


class OverDatabase(ABC):
    """A part of the control plane whose methods run operations."""

    @property
    @abstractmethod
    def _database(self) -> Database:
        """The open database; raises ControlUnavailable if it is closed."""
