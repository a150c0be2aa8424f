"""Claimants and leaders that break one rule each."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.replication.epoch import Claim, Effects, Epoch, Follower, Phase, Quorum, ToSend
from penstock.replication.messages import (
    Ack,
    Committed,
    EndFound,
    Fenced,
    JoinFirst,
    LogEnd,
    LogStart,
    Position,
)


class CountsRefusals(Epoch):
    __slots__ = ()

    def fenced(self, replica: int, refusal: Fenced) -> Effects:
        if self.phase is not Phase.LEADING:
            return super().fenced(replica, refusal)
        self.followers[replica].durable = self.end
        return self._advance()


class CommitsWithOneLess(Epoch):
    __slots__ = ()

    def _advance(self) -> Effects:
        ends = sorted(follower.durable for follower in self.followers.values())
        reached = ends[1 - self.quorum.acks]
        if self.phase is not Phase.LEADING or reached <= self.mark:
            return super()._advance()
        self.mark = reached
        return (Committed(reached),)


class AnswersClientsEarly(Epoch):
    __slots__ = ()

    def acknowledged(self, replica: int, ack: Ack) -> Effects:
        effects = super().acknowledged(replica, ack)
        if self.phase is not Phase.LEADING:
            return effects
        return (*effects, Committed(max(f.durable for f in self.followers.values())))


class AsksTooFew(Epoch):
    __slots__ = ()

    def _find_end(self) -> Effects:
        quorum = self.quorum
        self.quorum = Quorum(quorum.replicas, quorum.acks + 1)
        effects = super()._find_end()
        self.quorum = quorum
        return effects if self.phase is Phase.CLAIMED else effects + self._advance()


class SealsAtMark(Epoch):
    __slots__ = ()

    def _find_end(self) -> Effects:
        effects = super()._find_end()
        if self.phase is Phase.CLAIMED:
            return effects
        self.phase = Phase.FOUND
        self.end = self.mark
        return (EndFound(self.end, None), *self._advance())


class WritesNothingBack(Epoch):
    __slots__ = ()

    def _advance(self) -> Effects:
        return self._seal() if self.phase is Phase.FOUND else super()._advance()


class CommitsWhatItFound(Epoch):
    __slots__ = ()

    def _find_end(self) -> Effects:
        effects = super()._find_end()
        return effects if self.phase is Phase.CLAIMED else (*effects, Committed(self.end))


class TellsItsEndAsMark(Epoch):
    __slots__ = ()

    def _told_mark(self) -> int:
        return self.end if self.phase is Phase.LEADING else 0


class TellsItsMarkAsEnd(Epoch):
    __slots__ = ()

    def to_send(self, replica: int) -> ToSend:
        message = super().to_send(replica)
        return message._replace(end=self.mark) if isinstance(message, LogEnd) else message


class CountsFormerLives(Epoch):
    """What a replica acknowledged before its disk was lost counts on."""

    __slots__ = ()

    def _in_stream(self, replica: int, message: Position | JoinFirst | Ack) -> Follower | None:
        durable = self.followers[replica].durable
        follower = super()._in_stream(replica, message)
        if follower is not None:
            follower.durable = durable
        return follower


class TellsMarkAndCountsFormerLives(TellsItsMarkAsEnd, CountsFormerLives):
    __slots__ = ()


class CountsAcksOfWriteBack(Epoch):
    """Takes what was acknowledged before its epoch was open for its own epoch."""

    __slots__ = ()

    def _in_stream(self, replica: int, message: Position | JoinFirst | Ack) -> Follower | None:
        return super()._in_stream(replica, message._replace(epoch=self.target))


class CountsLearners(Epoch):
    __slots__ = ()

    def _advance(self) -> Effects:
        reached = self.quorum.reached([stream.durable for stream in self.streams.values()])
        if self.phase is not Phase.LEADING or reached <= self.mark:
            return super()._advance()
        self.mark = reached
        return (Committed(reached),)


class MovesTooEarly(Epoch):
    __slots__ = ()

    def _is_handed_on(self) -> bool:
        return True


class AsksPlacementToCome(Epoch):
    __slots__ = ()

    def __init__(self, claim: Claim) -> None:
        super().__init__(replace(claim, before=claim.terms) if claim.before else claim)


class StartsCopiesAtItsEnd(Epoch):
    __slots__ = ()

    def to_send(self, replica: int) -> ToSend:
        message = super().to_send(replica)
        return message._replace(base=self.end) if isinstance(message, LogStart) else message
