"""Errors of connectors, by what the runner does with them.

| error                                  | the runner                                       |
|----------------------------------------|--------------------------------------------------|
| `RowsRejected`                         | writes dead letters, skips the rows, or fails    |
| `SourceUnavailable`, `SinkUnavailable` | starts again after a pause                       |
| any other error                        | fails                                            |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from penstock.base.errors import InvalidError, RetriableError

Stage = Literal["transform", "convert", "write"]
"""Step at which a row failed, as in the header `__connect.errors.stage`."""


class SourceUnavailable(RetriableError):
    """The system that a source reads does not respond."""

    code: ClassVar[str] = "request_timed_out"
    fix: ClassVar[str] = "start the system, or correct its address in the file"


class SinkUnavailable(RetriableError):
    """The system that a sink writes to does not respond, or asks to retry later.

    Attributes:
        pause_seconds: time that the system demands before the next attempt; 0 if it does not.
    """

    code: ClassVar[str] = "request_timed_out"
    fix: ClassVar[str] = SourceUnavailable.fix
    pause_seconds: float = 0.0


class RowsRejected(InvalidError):
    """Rows of a batch that can never be processed.

    Attributes:
        rows: indexes of the rows in the batch, ascending, without duplicates.
        reasons: reason of each row.
    """

    code: ClassVar[str] = "invalid_record"

    def __init__(self, rows: Sequence[int], reasons: Sequence[str]) -> None:
        shown = f"row {rows[0]}: {reasons[0]}" if rows else "no row"
        more = f", and {len(rows) - 1} more rows" if len(rows) > 1 else ""
        super().__init__(f"{shown}{more}")
        self.rows = tuple(rows)
        self.reasons = tuple(reasons)


@contextmanager
def rows_from(first: int) -> Iterator[None]:
    """Add the index of a part's first row in its batch to the indexes of rejected rows."""
    try:
        yield
    except RowsRejected as error:
        raise RowsRejected([first + row for row in error.rows], error.reasons) from error


class ConnectorFailed(InvalidError):
    """Connector that cannot continue; the message has the cause and the remedy."""

    code: ClassVar[str] = "invalid_request"
