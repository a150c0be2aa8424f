"""Bugs to be found: each breaks one rule, and the checks have to notice within some seeds.

Two more live where they belong: "accept early" in `sink.py` (an agent that accepts before the log
has it, and then dies) and "reuse ring" in `producer.py` (a ring that serves two connections).
"""

from __future__ import annotations

from penstock.host.client_machine import Event
from penstock.host.credits import Credit, CreditWindow
from penstock.host.delivery import Delivery, ProducerPartition
from penstock.host.port import ACCEPTED, NO_LOG_SEQUENCE, Chunks, Failed, FinalVerdict
from penstock.host.publication import Publication
from penstock.host.ring import RingSpace
from penstock.host.server_machine import ServerMachine
from penstock.wire.frames import Frame


class KeepsCredit(ServerMachine):
    """An agent that forgets to restore the credit of a frame that failed."""

    def completed(self, chunks: Chunks, verdict: FinalVerdict) -> None:
        taken = self.window.taken
        super().completed(chunks, verdict)
        if isinstance(verdict, Failed) and self.window.taken != taken:
            self.window.try_acquire(1, 0, 0)


class RestoresTwice(ServerMachine):
    """An agent that restores more than was taken."""

    def completed(self, chunks: Chunks, verdict: FinalVerdict) -> None:
        known = chunks.first_sequence in self.in_flight
        super().completed(chunks, verdict)
        if known and self.window.taken.slots:
            self.window.restore(1, 0, 0)


class SwallowsVerdicts(ServerMachine):
    """An agent that does not say what failed."""

    def completed(self, chunks: Chunks, verdict: FinalVerdict) -> None:
        if isinstance(verdict, Failed) and verdict.reason == "saturated":
            return
        super().completed(chunks, verdict)


class CallsFailedAccepted(ServerMachine):
    """An agent that mixes up its verdicts."""

    def completed(self, chunks: Chunks, verdict: FinalVerdict) -> None:
        super().completed(chunks, ACCEPTED if isinstance(verdict, Failed) else verdict)


class GrantsUnderHand(ServerMachine):
    """An agent that narrows a window and does not say so."""

    def grant(self, more: Credit) -> None:
        super().grant(more)
        if self.window.available.slots > 1:
            self.window.granted = self.window.granted._replace(slots=1 + self.window.taken.slots)
            self.window._slots = 1


class _LaneNumbersAnew(ProducerPartition):
    """Numbers again whatever was lost."""

    __slots__ = ()

    def returned(self, publication: Publication) -> None:
        if publication.log_sequence != NO_LOG_SEQUENCE:
            self.batches -= publication.batches
            publication.log_sequence = NO_LOG_SEQUENCE
        super().returned(publication)


class _LaneKnowsBetter(ProducerPartition):
    """Takes every frame behind a gap for one that cannot be in the log."""

    __slots__ = ()

    def given_up(self, publication: Publication, *, refused: bool = False) -> None:
        publication.in_doubt = False
        super().given_up(publication, refused=True)


class _LaneFillsGaps(ProducerPartition):
    """Goes on numbering after a gap, with the number of what was given up."""

    __slots__ = ()

    def given_up(self, publication: Publication, *, refused: bool = False) -> None:
        super().given_up(publication, refused=refused)
        if publication.log_sequence != NO_LOG_SEQUENCE and not self.batches:
            self._gap_at = -1
            self._next = publication.log_sequence


class _Laned(Delivery):
    lane_type: type[ProducerPartition] = ProducerPartition

    def submit(self, publication: Publication, now_ms: float) -> None:
        lanes = self._producer_partitions
        if self.resend and lanes._idempotent and publication.partition >= 0:
            key = (publication.topic, publication.partition)
            lanes._producer_partitions.setdefault(key, self.lane_type(numbered=True))
        super().submit(publication, now_ms)


class NumbersAnew(_Laned):
    lane_type = _LaneNumbersAnew


class KnowsBetter(_Laned):
    lane_type = _LaneKnowsBetter


class FillsGaps(_Laned):
    lane_type = _LaneFillsGaps


class ForgetsLost(Delivery):
    """A client that takes what was lost for delivered."""

    def disconnected(self, reason: str, now_ms: float, chance: float) -> None:
        for publication in list(self.machine.in_flight.values()):
            self._end(publication, None)
        super().disconnected(reason, now_ms, chance)


class DropsLost(Delivery):
    """A client that loses one frame when its connection ends."""

    def disconnected(self, reason: str, now_ms: float, chance: float) -> None:
        if self.resend and self.machine.in_flight:
            lost = self.machine.in_flight.popitem()[1]
            lost.producer_partition.answered()
        super().disconnected(reason, now_ms, chance)


class KeepsEpoch(Delivery):
    """A client that starts its lanes over without a new epoch."""

    def _raise_epoch(self) -> None:
        epoch = self.machine.producer_epoch
        super()._raise_epoch()
        self.machine.producer_epoch = epoch


class _Lavish(CreditWindow):
    def restore(self, slots: int, events: int, payload_bytes: int) -> None:
        super().restore(slots, events, payload_bytes)
        self._slots = min(self._slots + 1, self.granted.slots)


class RestoresTooMuch(Delivery):
    """A client that gives itself more credit than it gets back."""

    def receive(self, frame: Frame, now_ms: float) -> list[Event]:
        events = super().receive(frame, now_ms)
        window = self.machine.window
        if type(window) is CreditWindow and window.granted.slots:
            lavish = _Lavish(window.granted)
            lavish._slots, lavish._events, lavish._payload_bytes = window.available
            self.machine.window = lavish
        return events


class _Overlapping(RingSpace):
    def take(self, size_bytes: int) -> int | None:
        position = super().take(size_bytes)
        return position and position - 1


class OverlapsInRing(Delivery):
    """A client that places payloads one byte too early in the ring."""

    def receive(self, frame: Frame, now_ms: float) -> list[Event]:
        events = super().receive(frame, now_ms)
        space = self.machine.space
        if type(space) is RingSpace:
            self.machine.space = _Overlapping(space.size_bytes)
        return events


SERVERS: dict[str, type[ServerMachine]] = {
    "keep credit": KeepsCredit,
    "restore twice": RestoresTwice,
    "swallow verdicts": SwallowsVerdicts,
    "call failed accepted": CallsFailedAccepted,
    "narrow the window": GrantsUnderHand,
}
DELIVERIES: dict[str, type[Delivery]] = {
    "number anew": NumbersAnew,
    "know better": KnowsBetter,
    "fill gaps": FillsGaps,
    "forget lost": ForgetsLost,
    "drop lost": DropsLost,
    "keep epoch": KeepsEpoch,
    "restore too much": RestoresTooMuch,
    "overlap in the ring": OverlapsInRing,
}
ALL = (*SERVERS, *DELIVERIES, "accept early", "reuse ring")
