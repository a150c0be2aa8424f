"""Counters of a sink, which its owner reads for metrics."""

from __future__ import annotations

from msgspec import Struct

from penstock.host.port import Accepted, Chunks, FinalVerdict


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
