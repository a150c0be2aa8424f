"""Conversion of errors to verdicts, for all sinks.

| error                                              | verdict                              |
|----------------------------------------------------|--------------------------------------|
| retriable, unavailable                             | failed as retryable                  |
| fenced: out of order, or this sink is closed       | failed as retryable                  |
| fenced for another reason: a newer epoch exists    | failed permanently                   |
| invalid, corrupt, bug                              | failed permanently                   |
"""

from __future__ import annotations

from typing import Final

from penstock.base.errors import FencedError, PenstockError, RetriableError, UnavailableError
from penstock.host import limits as host_limits
from penstock.host.port import Failed

_PASSING_FENCES: Final = frozenset({"out_of_order_sequence_number", "network_exception"})


def retryable(error: PenstockError) -> bool:
    """Whether the same frame may be accepted later."""
    if isinstance(error, FencedError):
        return error.code in _PASSING_FENCES
    return isinstance(error, (RetriableError, UnavailableError))


def failure(error: PenstockError, *, retry_after_ms: int = 0) -> Failed:
    """Return the verdict for an error."""
    again = retryable(error)
    reason = str(error)[: host_limits.REASON_CHARS_MAX]
    fenced = isinstance(error, FencedError) and not again
    return Failed(reason, again, retry_after_ms if again else 0, fenced)
