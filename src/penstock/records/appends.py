"""What becomes of an append, whatever keeps the partition: a log on disk or the batch index."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from penstock.base.errors import PenstockError


class AppendResult(NamedTuple):
    """Where an append went, or why it was refused. A duplicate has the offset of its original.

    `log_append_time_ms` is -1 where the records keep the times of their producers; `error` is a
    Kafka error name, lower case. Databases keep it as an array of these fields.
    """

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    error: str | None = None
    message: str | None = None


NO_APPEND: Final = AppendResult(-1, -1, -1)
"""The outcome for who waits until the appends of others are committed."""

_Fields = tuple[int, int, int, bool, str | None, str | None]
placed: Final[Callable[[_Fields], AppendResult]] = partial(tuple.__new__, AppendResult)
"""`AppendResult._make` in C: a log makes one for each append."""

Outcome = AppendResult | PenstockError
"""Where an append went, or was refused; or why it may not be there."""

Done = Callable[[Outcome], None]


class Opening(Enum):
    """The place where an append unpacks batches, or walks many records."""

    HERE = "here"
    """It does: the caller waits, or is no event loop."""
    BESIDE = "beside"
    """It raises `NeedsOpening` instead; the caller opens them in a thread and appends again."""
    DONE = "done"
    """They have been opened; only their headers and checksums are checked."""


class NeedsOpening(Exception):
    """A refusal to append batches that have to be opened first; nothing was appended."""
