"""Replicas that break one rule each."""

from __future__ import annotations

from penstock.replication.chain import Chain, history_of
from penstock.replication.messages import Ack, Append, Fence, FenceAnswer, Fenced, Join
from penstock.replication.replica import Effects, Replica, Sync

FIRST = 1
"""The epoch whose leader has its own copy where a plant tells copies apart."""


class AcksBeforeSync(Replica):
    __slots__ = ()

    def append(self, append: Append) -> Effects:
        effects = super().append(append)
        if self.authority != append.authority or self.halted or not self._is_early(append):
            return effects
        return (*effects, Ack(self.authority, self.epoch, self.incarnation, self.end))

    def _is_early(self, append: Append) -> bool:
        return True


class LeaderAcksBeforeSync(AcksBeforeSync):
    __slots__ = ()

    def _is_early(self, append: Append) -> bool:
        return append.authority == FIRST


class LeaderSkipsItsFence(Replica):
    __slots__ = ()

    def _refuses(self, authority: int) -> bool:
        return authority != FIRST and super()._refuses(authority)


class AcceptsLowerEpochs(Replica):
    __slots__ = ()

    def _refuses(self, authority: int) -> bool:
        return self.halted


class AnswersBeforePromiseIsSynced(Replica):
    __slots__ = ()

    def fence(self, fence: Fence) -> Effects:
        effects = super().fence(fence)
        if self.asked is None:
            return effects
        self.asked = None
        return (*effects, self._fence_answer(fence))


class AnswersWithEndOfBeforeSync(Replica):
    """What it holds is looked up when it is asked, and told after the sync."""

    __slots__ = ()

    def fence(self, fence: Fence) -> Effects:
        effects = super().fence(fence)
        if self.asked is fence:
            self.asked = self._fence_answer(fence)  # type: ignore[assignment]
        return effects

    def _fence_answer(self, asked: Fence) -> FenceAnswer | Fenced:
        return asked if isinstance(asked, FenceAnswer) else super()._fence_answer(asked)


class AnswersWithoutPromise(Replica):
    __slots__ = ()

    def fence(self, fence: Fence) -> Effects:
        return () if self._refuses(fence.authority) else (self._fence_answer(fence),)


class AnswersBelowPromise(Replica):
    __slots__ = ()

    def fence(self, fence: Fence) -> Effects:
        if self.halted or fence.authority >= self.promised:
            return super().fence(fence)
        self.asked, self.asked_after = fence, self.writes
        return self._answers()

    def _fence_answer(self, asked: Fence) -> FenceAnswer | Fenced:
        answer = super()._fence_answer(asked._replace(authority=self.promised))
        return answer._replace(authority=asked.authority)


class AnswersByOffset(Replica):
    """Tells of all that it holds as if it were of the epoch that was asked for."""

    __slots__ = ()

    def _fence_answer(self, asked: Fence) -> FenceAnswer | Fenced:
        answer = super()._fence_answer(asked)
        return answer if isinstance(answer, Fenced) else answer._replace(end=self.durable)


class AnswersAbsent(Replica):
    __slots__ = ()

    def _fence_answer(self, asked: Fence) -> FenceAnswer | Fenced:
        answer = super()._fence_answer(asked)
        return answer if isinstance(answer, Fenced) else answer._replace(limbo=0)


class LosesPromise(Replica):
    __slots__ = ()

    def lose(self, *, reserved: int, opened: int) -> Effects:
        return super().lose(reserved=0, opened=opened)


class _KeepsWhatItHas(Replica):
    """Knows its history as it becomes without all the cuts."""

    __slots__ = ()

    def _take(self, base: int, next_offset: int) -> Effects:
        history, end = self.history, self.end
        effects = super()._take(base, next_offset)
        if self.history is not history:
            more = history_of(self.chain, max(end, self.base), self.end)
            same = history and more and history[-1].epoch == more[0].epoch
            self.history = history + (more[1:] if same else more)
        return effects


class NeverTruncates(_KeepsWhatItHas):
    __slots__ = ()

    def _confirmed(self, chain: Chain) -> int:
        return self.end

    def differs(self) -> Effects:
        return ()


class TruncatesAtNewestStart(_KeepsWhatItHas):
    __slots__ = ()

    def _confirmed(self, chain: Chain) -> int:
        of_newest = self.epoch_of_end == chain[-1].epoch
        return self.end if of_newest else max(self.base, min(self.end, chain[-1].start))


class TruncatesToMark(Replica):
    __slots__ = ()

    def join(self, join: Join) -> Effects:
        newer = join.authority > self.promised
        effects = super().join(join)
        keep = max(self.base, self.mark)
        if newer and self.authority == join.authority and keep < self.end:
            effects += self._cut(keep)
            self.joined_after = self.writes
        return effects


class TakesMarkBeforeCut(Replica):
    __slots__ = ()

    def append(self, append: Append) -> Effects:
        if not self._refuses(append.authority):
            self.mark = max(self.mark, append.mark)
        return super().append(append)


class ReadsToItsEnd(Replica):
    __slots__ = ()

    @property
    def readable(self) -> int:
        return self.end


class KeepsStreamAfterPromise(Replica):
    __slots__ = ()

    def _promise(self, authority: int) -> Effects:
        stream = self.authority, self.epoch, self.chain
        effects = super()._promise(authority)
        self.authority, self.epoch, self.chain = stream
        return effects


class TakesLateJoins(Replica):
    """Joins the stream of before its leader opened its epoch, and cuts what came since."""

    __slots__ = ()

    @property
    def epoch_of_end(self) -> int:
        return min(super().epoch_of_end, self.epoch)


class AcknowledgesWhatItCut(Replica):
    __slots__ = ()

    def _cut(self, keep: int) -> Effects:
        durable = self.durable
        effects = super()._cut(keep)
        self.durable = durable
        return effects


class SyncCoversAll(Replica):
    """Takes the end of a sync for the end of everything that was written meanwhile."""

    __slots__ = ()

    def synced(self, sync: Sync) -> Effects:
        return super().synced(self.begin_sync())
