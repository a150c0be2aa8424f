"""Bugs to be found: each breaks one rule of a share partition, or of what brokers do with it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.share.partition import (
    ACQUIRED,
    ARCHIVING,
    AVAILABLE,
    RESOLVED,
    SharePartition,
)
from penstock.broker.share.values import Acknowledge, Acknowledged, Cause, Run, Undeliverable
from sim.share.model import DEAD_LETTERS, ONE_BROKER, Bounds, Plant

PAIRS = DEAD_LETTERS._replace(crashes=0, brokers=1, depth=10)
TWO_HOLD = Bounds(time_ms=1, crashes=0, attempts=2, brokers=1, depth=8)


class GivesWhatOthersHave(SharePartition):
    """Acquired records count as available."""

    def _acquirable(self, first: int, last: int) -> list[tuple[int, int]]:
        return [(max(first, self.start), last)] if last >= self.start else []

    def next_offset(self) -> int | None:
        return self.start


class DoesNotCount(SharePartition):
    """A delivery leaves the count as it is."""

    def _released(
        self, run: Run, undeliverable: list[Undeliverable], *, delivered: bool = True
    ) -> Run:
        return super()._released(run, undeliverable, delivered=False)


class ForgetsAccepts(SharePartition):
    """An accepted record is available again."""

    def acknowledge(
        self, member: str, said: Sequence[Acknowledged], *, now_ms: int
    ) -> list[Undeliverable]:
        forgotten = [
            acknowledgement._replace(kind=Acknowledge.RELEASE)
            if acknowledgement.kind == Acknowledge.ACCEPT
            else acknowledgement
            for acknowledgement in said
        ]
        return super().acknowledge(member, forgotten, now_ms=now_ms)


class StartsTooFar(SharePartition):
    """The start is put behind the first record that is resolved, whatever lies before it."""

    def _take(self, left: list[Run], *, begin: int) -> None:
        resolved = next((index for index, run in enumerate(left) if run.state == RESOLVED), None)
        super()._take(left if resolved is None else left[resolved:], begin=begin)


class NeverExpires(SharePartition):
    """Locks do not end."""

    def expire(self, now_ms: int) -> list[Undeliverable]:
        return []


class ExpiresEarly(SharePartition):
    """Locks end a moment before they do."""

    def expire(self, now_ms: int) -> list[Undeliverable]:
        return super().expire(now_ms + 1)


class DoesNotRenew(SharePartition):
    """A renewal is taken, and changes nothing."""

    def acknowledge(
        self, member: str, said: Sequence[Acknowledged], *, now_ms: int
    ) -> list[Undeliverable]:
        before = list(self.runs)
        undeliverable = super().acknowledge(member, said, now_ms=now_ms)
        if any(acknowledgement.kind == Acknowledge.RENEW for acknowledgement in said):
            self._take(before, begin=self.start)
        return undeliverable


class TakesAnybodysWord(SharePartition):
    """Whoever acknowledges a record that is acquired is believed."""

    def acknowledge(
        self, member: str, said: Sequence[Acknowledged], *, now_ms: int
    ) -> list[Undeliverable]:
        held = {run.member for run in self.runs if run.state == ACQUIRED} - {member}
        for other in held:
            self._take([run._replace(member=member) for run in self.runs], begin=self.start)
            del other
        return super().acknowledge(member, said, now_ms=now_ms)


class ReleasesOthers(SharePartition):
    """With one member, what all have is released."""

    def release(self, member: str, *, delivered: bool) -> list[Undeliverable]:
        held = [run for run in self.runs if run.state == ACQUIRED]
        return self._release_all(held, delivered=delivered)


class HasNoLimit(SharePartition):
    """A record is delivered for ever."""

    def _released(
        self, run: Run, undeliverable: list[Undeliverable], *, delivered: bool = True
    ) -> Run:
        return Run(run.first, run.last, AVAILABLE, run.deliveries)


class GivesUpEarly(SharePartition):
    """A record has one delivery less than the limit says."""

    def _released(
        self, run: Run, undeliverable: list[Undeliverable], *, delivered: bool = True
    ) -> Run:
        after = super()._released(run, undeliverable, delivered=delivered)
        if after.deliveries == self.limits.delivery_count_limit - 1:
            return Run(run.first, run.last, RESOLVED)
        return after


class ResolvesWhatIsRejected(SharePartition):
    """What is given up waits for no dead letter."""

    def _undeliverable(
        self, run: Run, count: int, cause: Cause, undeliverable: list[Undeliverable]
    ) -> Run:
        super()._undeliverable(run, count, cause, undeliverable)
        return Run(run.first, run.last, RESOLVED)


class ForgetsWhatWaits(SharePartition):
    """A leader that has just read the row writes no dead letters of what waits."""

    def awaiting_dead_letters(self) -> list[Undeliverable]:
        return []


class ResolvesNeighbours(SharePartition):
    """Resolves all waiting records once one dead letter is written."""

    def archived(self, first: int, last: int) -> int:
        return super().archived(self.start, self.end - 1)


class GivesOutWhatWaits(SharePartition):
    """What waits for its dead letter may be acquired."""

    def _acquirable(self, first: int, last: int) -> list[tuple[int, int]]:
        before = list(self.runs)
        self.runs = [
            run._replace(state=AVAILABLE) if run.state == ARCHIVING else run for run in self.runs
        ]
        found = super()._acquirable(first, last)
        self.runs = before
        return found

    def next_offset(self) -> int | None:
        waiting = self.awaiting_dead_letters()
        return waiting[0].first if waiting else super().next_offset()


PLANTS = {
    "acquired-by-two": Plant("an acquired record is acquired", share=GivesWhatOthersHave),
    "not-counted": Plant("the delivery count is not raised", share=DoesNotCount),
    "accepted-again": Plant("an accepted record is delivered again", share=ForgetsAccepts),
    "start-too-far": Plant("the start lies behind what is not resolved", share=StartsTooFar),
    "no-expiry": Plant("a lock never ends", share=NeverExpires),
    "early-expiry": Plant("a lock ends early", share=ExpiresEarly),
    "no-renewal": Plant("a renewed lock ends as before", ONE_BROKER, DoesNotRenew),
    "anybody": Plant("another member's record is acknowledged", share=TakesAnybodysWord),
    "releases-others": Plant("a member's end releases others' records", TWO_HOLD, ReleasesOthers),
    "no-limit": Plant("the delivery limit is not held", ONE_BROKER, HasNoLimit),
    "gives-up-early": Plant("a record is given up before its limit", share=GivesUpEarly),
    "no-compare": Plant("two leaders overwrite each other", cas=False),
    "tells-early": Plant("members are told what is not stored yet", tells_early=True),
    "keeps-refused": Plant("what was refused is stored over another's", keeps_refused=True),
    "no-dead-letter": Plant(
        "a record is archived without a dead letter", DEAD_LETTERS, ResolvesWhatIsRejected
    ),
    "forgets-dead-letters": Plant(
        "what waits is not known any more", DEAD_LETTERS, ForgetsWhatWaits
    ),
    "one-dead-letter-for-all": Plant(
        "a dead letter resolves others' records", PAIRS, ResolvesNeighbours
    ),
    "gives-out-what-waits": Plant("a record is delivered again", DEAD_LETTERS, GivesOutWhatWaits),
    "resolves-first": Plant(
        "a record is resolved before its dead letter", DEAD_LETTERS, resolves_first=True
    ),
    "early-dead-letters": Plant(
        "a dead letter of a record that is not stored", DEAD_LETTERS, early_dead_letters=True
    ),
    "forgets-locks": Plant("locks end with their broker", forgets_locks=True),
}
