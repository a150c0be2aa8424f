"""Result types of appends to a log, on disk or in the batch index."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final, NamedTuple, Protocol

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError


class AppendResult(NamedTuple):
    """Result of one append: its offset, or an error.

    `base_offset` is the offset of the first record; for a duplicate it is that of the original.
    `log_append_time_ms` is -1 if the records keep their producers' timestamps. `error` is the name
    of a Kafka error in lower case. Databases store the fields as an array, so their order is fixed.
    """

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    error: str | None = None
    message: str | None = None


NO_APPEND: Final = AppendResult(-1, -1, -1)
"""Result for callers that appended nothing and only wait until earlier appends are committed."""

_Fields = tuple[int, int, int, bool, str | None, str | None]
placed: Final[Callable[[_Fields], AppendResult]] = partial(tuple.__new__, AppendResult)
"""Fast form of `AppendResult._make`, because every append creates a result."""

Outcome = AppendResult | PenstockError
"""Result of an append, or the error after which it is unknown whether the append succeeded."""

Done = Callable[[Outcome], None]


class Opening:
    """Choice of the thread in which an append checks the records of its batches.

    Decompressing batches and checking many records would block a broker's event loop. This is no
    Enum, because reading a member of an Enum takes 0.1 µs, and every append reads four.
    """

    HERE: ClassVar[Opening]
    """The calling thread, which may block."""
    BESIDE: ClassVar[Opening]
    """Another thread: the append raises `NeedsOpening`, and the caller checks the batches there and
    then appends with `DONE`.
    """
    DONE: ClassVar[Opening]
    """None: the records have been checked already; the append checks headers and checksums."""


Opening.HERE, Opening.BESIDE, Opening.DONE = Opening(), Opening(), Opening()


class IdReader(Protocol):
    """Reader of the schema ids of a batch, which also checks the batch's records."""

    def read(self, section: Readable, count: int) -> None:
        """Read the ids of exactly `count` records.

        Raises:
            CorruptBatch: a record is invalid; the error has its index.
            PenstockError: the reader rejects the ids.
        """
        ...


class NeedsOpening(Exception):
    """Rejection of batches that must first be checked in another thread; nothing was appended."""
