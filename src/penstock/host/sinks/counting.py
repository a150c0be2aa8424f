"""Counters of a sink, which its owner reads for metrics."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.base.errors import FencedError, PenstockError, RetriableError, UnavailableError
from penstock.host.errors import REASON_CHARS_MAX
from penstock.host.port import Accepted, Chunks, Failed, FinalVerdict


class Counts(Struct):
    """Numbers of accepted frames, chunks, events and payload bytes, and of failed frames."""

    accepted_frames: int = 0
    accepted_chunks: int = 0
    accepted_events: int = 0
    accepted_bytes: int = 0
    failed_frames: int = 0
    """Frames that failed as retryable."""
    refused_frames: int = 0
    """Failed permanently."""

    def completed(
        self, verdict: FinalVerdict, *, chunks: int, events: int, size_bytes: int
    ) -> None:
        """Count one frame's verdict."""
        if isinstance(verdict, Accepted):
            self.accepted_frames += 1
            self.accepted_chunks += chunks
            self.accepted_events += events
            self.accepted_bytes += size_bytes
        elif verdict.retryable:
            self.failed_frames += 1
        else:
            self.refused_frames += 1

    def frame(self, chunks: Chunks, verdict: FinalVerdict) -> FinalVerdict:
        """Count a frame's verdict and return it."""
        self.completed(
            verdict,
            chunks=chunks.count,
            events=chunks.event_count,
            size_bytes=len(chunks.payload),
        )
        return verdict


# Conversion of errors to verdicts, for all sinks.
#
# | error                                              | verdict                              |
# |----------------------------------------------------|--------------------------------------|
# | retriable, unavailable                             | failed as retryable                  |
# | fenced: out of order, or this sink is closed       | failed as retryable                  |
# | fenced for another reason: a newer epoch exists    | failed permanently                   |
# | invalid, corrupt, bug                              | failed permanently                   |


_PASSING_FENCES: Final = frozenset({"out_of_order_sequence_number", "network_exception"})


def retryable(error: PenstockError) -> bool:
    """Whether the same frame may be accepted later."""
    if isinstance(error, FencedError):
        return error.code in _PASSING_FENCES
    return isinstance(error, (RetriableError, UnavailableError))


def failure(error: PenstockError, *, retry_after_ms: int = 0) -> Failed:
    """Return the verdict for an error."""
    again = retryable(error)
    reason = str(error)[:REASON_CHARS_MAX]
    fenced = isinstance(error, FencedError) and not again
    return Failed(reason, again, retry_after_ms if again else 0, fenced)


FRAME_BYTES_MAX: Final = 16 << 20
"""Maximum frame of the null and memory sinks; that of the log sink follows from its log."""

RETAINED_BYTES_MAX: Final = 64 << 20
"""Maximum payload bytes that a sink holds without a verdict; further frames are failed as
retryable.
"""
RETAINED_FRAMES_MAX: Final = 65_536
"""Maximum number of such frames, because small frames cost more than their payload."""
RETRY_AFTER_MS: Final = 50
"""Time in milliseconds after which a producer may retry a frame that found the sink full."""

PRODUCER_ID_BITS: Final = 62
"""Bits of the random producer ids that sinks without a log assign."""
