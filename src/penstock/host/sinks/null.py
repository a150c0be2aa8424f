"""Sink that counts frames and drops them, to measure the transport alone.

It guarantees nothing: an accepted chunk is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.base.system import SYSTEM_RANDOMNESS, Randomness
from penstock.host.port import ACCEPTED, NO_PRODUCER_ID, Chunks, Completion, Introduction, Verdict
from penstock.host.sinks import limits
from penstock.host.sinks.counting import Counts


class NullSink:
    """Sink that accepts every frame and keeps none."""

    name = "null"
    stands_on = ""

    def __init__(
        self,
        *,
        frame_bytes_max: int = limits.FRAME_BYTES_MAX,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.counts = Counts()
        self._randomness = randomness

    @property
    def retained_bytes(self) -> int:
        return 0

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self, deadline_seconds: float) -> None:
        """Do nothing."""

    async def check(self) -> None:
        """Do nothing, because every frame is accepted."""

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        """Return a random id for a producer without one; topics have no meaning here."""
        if producer_id == NO_PRODUCER_ID:
            producer_id = self._randomness.bits(limits.PRODUCER_ID_BITS)
        return Introduction(producer_id=producer_id)

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        return self.counts.frame(chunks, ACCEPTED)
