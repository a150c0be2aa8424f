"""Results of appends to a log on disk or to the batch index."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from penstock.base.errors import PenstockError


class AppendResult(NamedTuple):
    """Offset of an append, or its error. A duplicate has the offset of its original.

    `log_append_time_ms` is -1 if the records keep the times of their producers; `error` is a Kafka
    error name, lower case. Databases keep it as an array of these fields.
    """

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    error: str | None = None
    message: str | None = None


NO_APPEND: Final = AppendResult(-1, -1, -1)
"""Result for callers that wait until the appends of others are committed."""

_Fields = tuple[int, int, int, bool, str | None, str | None]
placed: Final[Callable[[_Fields], AppendResult]] = partial(tuple.__new__, AppendResult)
"""`AppendResult._make` in C: a log makes one for each append."""

Outcome = AppendResult | PenstockError
"""Result of an append, or the exception by which it may not be there."""

Done = Callable[[Outcome], None]


class Opening(Enum):
    """Thread in which an append decompresses batches, or walks many records."""

    HERE = "here"
    """The calling one, which waits or is no event loop."""
    BESIDE = "beside"
    """Another one: the append raises `NeedsOpening`; the caller opens them there and retries."""
    DONE = "done"
    """None: they have been opened; only headers and checksums are checked."""


class NeedsOpening(Exception):
    """Rejection of batches that have to be opened first; nothing was appended."""
