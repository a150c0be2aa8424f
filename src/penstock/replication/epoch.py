"""Leader's core of one partition, without I/O: from a claim to the end of the leadership.

f and a are the sizes of fence quorum and acknowledgement quorum (`Quorum`).

| phase   | action                                                  | until                       |
|---------|---------------------------------------------------------|-----------------------------|
| CLAIMED | fences replicas of the last epoch                       | f answers, none in limbo    |
| FOUND   | writes the found records back to those replicas ¹       | durable on a replicas       |
| SEALING | one compare-and-set seals that epoch and opens this one | its outcome                 |
| LEADING | sends appends to all replicas of the new placement      | a replica has promised more |
| STOPPED | nothing; a new claim is a new object                    |                             |

¹ and to the new placement if it has other replicas: a quorum of each must have all records.

**Presence.** A batch of the epoch to be sealed is present if one replica has it durably. It is
absent only if f fenced replicas lack it: if a replicas had acknowledged it, one of those f would
have it. Replicas that are in limbo, do not answer or cannot be read prove no absence.

**Streams.** Every replica has its own stream, which begins at the end of its log, also below the
high watermark. A new replica, or one whose disk was lost, receives the whole log while the others
form the quorum. If the beginning of the log was deleted, it receives the rest. `to_send` returns
the next message; the shell determines when to send it, and reports it with `sent`. `rewind`
restarts a stream after a lost connection or a timeout. The leader's own replica is like the others,
and counts once it has acknowledged.

**Learners** receive the stream and count in no quorum: they are replicas of a future placement. A
leader sets them with `learn`. A claimant with another placement has learners from FOUND on. It
opens its epoch once a quorum of them has all records, so that the old replicas are not needed any
more. If they do not catch up, `keep_placement` opens the epoch on the old placement.

**Unclean election.** If too few replicas are left for f answers, the replicas that answered
determine the end of the log. Only this step may lose acknowledged records, and only an operator or
a setting starts it.

**Commit.** The high watermark is the highest offset below which a replicas hold everything durably.
A claimant stops if its compare-and-set fails or a replica has promised a higher epoch. A later
epoch may then keep or truncate what was appended above the high watermark.

Source: BookKeeper (ledger recovery); `min.insync.replicas`; KIP-966 for the reason of limbo.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import ClassVar, Final

from msgspec import Struct

from penstock.base.errors import BugError, InvalidError
from penstock.replication.chain import Chain, Link
from penstock.replication.messages import (
    Ack,
    Append,
    Committed,
    EndFound,
    Fence,
    FenceAnswer,
    Fenced,
    Join,
    JoinFirst,
    LogEnd,
    LogStart,
    Position,
    SealAndOpen,
    Stopped,
)

# Quorum sizes: of n replicas, a must acknowledge a record, and f must be fenced.
#
# With f = n − a + 1, any a replicas and any f replicas have one in common. So f replicas cannot all
# lack a record that a replicas have acknowledged. With 2a > n, any two sets of a replicas have one
# in common, too.
#
# Source: BookKeeper's write, ack and fence quorums; Kafka's `min.insync.replicas`.


class InvalidQuorum(InvalidError):
    """Number of acknowledgements that is not a valid quorum of the replicas."""

    code: ClassVar[str] = "invalid_replication_factor"

    def __init__(self, replicas: int, acks: int) -> None:
        super().__init__(
            f"{acks} acknowledgements are not a valid quorum of {replicas} replicas: the number"
            " must be more than half of them, and at most all of them"
        )
        self.replicas = replicas
        self.acks = acks


class Quorum(Struct, frozen=True):
    """Quorum sizes of an epoch: an offset is committed once `acks` of `replicas` have it.

    Raises:
        InvalidQuorum: `acks` is not more than half of `replicas`, or above `replicas`.
    """

    replicas: int
    acks: int

    def __post_init__(self) -> None:
        if not self.replicas >= self.acks > self.replicas // 2:
            raise InvalidQuorum(self.replicas, self.acks)

    @property
    def fences(self) -> int:
        """Number of fenced replicas that must lack a record before it counts as absent."""
        return self.replicas - self.acks + 1

    def reached(self, ends: Iterable[int]) -> int:
        """Return the offset below which `acks` replicas have all records: the acks-th highest."""
        return sorted(ends)[-self.acks]


def quorum_of(replicas: int, min_insync_replicas: int) -> Quorum:
    """Return the quorum for a replication factor and a topic's `min.insync.replicas`.

    Raises:
        InvalidQuorum: `min_insync_replicas` is above `replicas`, so no append could be committed.
    """
    return Quorum(replicas, max(min_insync_replicas, replicas // 2 + 1))


Effect = EndFound | SealAndOpen | Committed | Stopped
Effects = tuple[Effect, ...]
ToSend = Fence | Join | LogStart | LogEnd | Append | None

NOTHING: Final[Effects] = ()


class Phase(Enum):
    """Phase of a claim, from its reservation to the end of the leadership."""

    CLAIMED = "claimed"
    FOUND = "found"
    SEALING = "sealing"
    LEADING = "leading"
    STOPPED = "stopped"


class Terms(Struct, frozen=True):
    """Replicas of an epoch, and the number of acknowledgements that commit a record.

    Raises:
        InvalidQuorum: see `Quorum`.
    """

    placement: tuple[int, ...]
    acks: int

    def __post_init__(self) -> None:
        self.quorum  # noqa: B018

    @property
    def quorum(self) -> Quorum:
        return Quorum(len(set(self.placement)), self.acks)


class Claim(Struct, frozen=True):
    """The control plane's answer to a reservation.

    `chain` has the epochs opened so far. `before` has the terms of the last one, None if there is
    none. `terms` are those of the epoch to be opened. `move` is the number of the reassignment that
    they perform, 0 if the replicas stay.
    """

    epoch: int
    chain: Chain
    before: Terms | None
    terms: Terms
    move: int = 0


class Follower:
    """State of one replica at the leader. `next` is the offset at which its stream continues."""

    __slots__ = (
        "answer",
        "asks_end",
        "durable",
        "gap",
        "incarnation",
        "joined",
        "mark",
        "next",
        "start",
    )

    def __init__(self) -> None:
        self.incarnation = 0
        self.durable = 0
        self.next = 0
        self.start = 0
        """Log start offset that was sent to the replica."""
        self.mark = 0
        """High watermark that was sent to the replica."""
        self.joined = False
        self.gap = -1
        """Offset to which the stream last went back because records were missing; -1 for none."""
        self.asks_end = False
        self.answer: FenceAnswer | None = None


class Epoch:
    """Core of a leadership claim. `end` is the log end offset, `mark` the high watermark."""

    __slots__ = (
        "base",
        "chain",
        "end",
        "epoch",
        "floor",
        "followers",
        "mark",
        "move",
        "phase",
        "quorum",
        "start",
        "streams",
        "target",
        "terms",
        "unclean",
    )

    def __init__(self, claim: Claim) -> None:
        if bool(claim.chain) != (claim.before is not None):
            raise BugError(f"the claim of epoch {claim.epoch} has only one of chain and terms")
        self.epoch = claim.epoch
        self.chain = claim.chain
        self.target = claim.chain[-1].epoch if claim.chain else 0
        """Newest epoch of the chain: the epoch to be sealed, then this epoch; 0 without any."""
        self.terms = claim.terms
        self.move = claim.move
        self.unclean = False
        """Whether records are discarded that only replicas without an answer have."""
        before = claim.before or claim.terms
        self.quorum = before.quorum
        self.followers = {replica: Follower() for replica in before.placement}
        """Replicas that count in the quorum."""
        self.streams = self.followers
        """Replicas that receive the log: followers and learners."""
        self.phase = Phase.CLAIMED
        self.base = self.floor = 0
        """Log start offset, and base offset of the batch that holds it. Nothing is sent below the
        latter. The shell moves both."""
        self.start = self.end = self.mark = claim.chain[-1].start if claim.chain else 0

    @property
    def moves(self) -> bool:
        """Whether the epoch to be opened has other replicas than the one to be sealed."""
        return self.followers.keys() != set(self.terms.placement)

    @property
    def doubtful(self) -> list[int]:
        """Replicas that have answered, but may have lost records that they acknowledged."""
        answers = ((replica, one.answer) for replica, one in self.followers.items())
        target = self.target
        return [
            one for one, answer in answers if answer and answer.limbo and answer.limbo >= target
        ]

    def begin(self) -> Effects:
        """Begin the claim. A partition's first epoch is opened at once, without any fencing."""
        return NOTHING if self.chain else self._seal()

    # -- messages of replicas

    def fence_answered(self, replica: int, answer: FenceAnswer) -> Effects:
        """Handle a replica's promise and its report of what it holds."""
        follower = self._follower(replica, answer.authority)
        if follower is None or self.phase is not Phase.CLAIMED:
            return NOTHING
        if follower.answer is None or follower.answer.incarnation <= answer.incarnation:
            follower.answer = answer
        return self._find_end()

    def fenced(self, replica: int, refusal: Fenced) -> Effects:
        """Handle a replica's report that it has promised a higher epoch."""
        if self._follower(replica, refusal.authority) is None:
            return NOTHING
        return self._stop()

    def positioned(self, replica: int, position: Position) -> Effects:
        """Handle a replica that has joined, or that reports where its log ends because records are
        missing."""
        follower = self._in_stream(replica, position)
        if follower is None or (follower.joined and follower.gap == position.end):
            return NOTHING  # each append that was in flight reports the same gap
        follower.gap = position.end if follower.joined else -1
        if not follower.joined:
            follower.joined, follower.start = True, 0
        follower.mark = 0
        follower.asks_end = position.asks_end
        follower.next = min(position.end, self.end)
        return self._give_up() if self.unclean and self.phase is Phase.FOUND else NOTHING

    def not_joined(self, replica: int, answer: JoinFirst) -> Effects:
        """Handle the report that a replica has restarted, or has not received the join."""
        follower = self._in_stream(replica, answer)
        if follower is not None:
            follower.joined = False
        return NOTHING

    def acknowledged(self, replica: int, ack: Ack) -> Effects:
        """Record that everything below `ack.durable` is durable on a replica."""
        follower = self._in_stream(replica, ack)
        if follower is None or ack.durable <= follower.durable:
            return NOTHING
        durable = follower.durable = min(ack.durable, self.end)
        if durable > follower.next:
            follower.next = durable
        moved = durable > self.mark or self.phase is Phase.FOUND
        return self._advance() if moved else NOTHING

    # -- events of the shell

    def append(self, offsets: int) -> int:
        """Append a batch with this number of offsets; return its base offset.

        Raises:
            BugError: this epoch does not lead.
        """
        if self.phase is not Phase.LEADING:
            raise BugError(f"epoch {self.epoch} cannot append: its phase is {self.phase.value}")
        base = self.end
        self.end = base + offsets
        return base

    def unreadable(self, replica: int) -> Effects:
        """Discard the answer of a replica whose records cannot be read.

        The end is determined again from the other answers, including later ones.
        """
        if self.phase not in (Phase.CLAIMED, Phase.FOUND):
            return NOTHING
        self.phase = Phase.CLAIMED
        self.streams = self.followers
        self.followers[replica].answer = None
        return self._find_end()

    def opened(self) -> Effects:
        """Begin to lead after a successful compare-and-set: all found records are committed."""
        if self.phase is not Phase.SEALING:
            return NOTHING
        self.chain = (*self.chain, Link(self.epoch, self.end))
        self.target = self.epoch
        self.start = self.mark = self.end
        self.quorum = self.terms.quorum
        former, self.followers = self.streams, {}
        for replica in self.terms.placement:
            follower = self.followers[replica] = former.get(replica) or Follower()
            follower.joined = False
            follower.answer = None
        self.streams = self.followers
        self.phase = Phase.LEADING
        return (Committed(self.mark),)

    def lost(self) -> Effects:
        """End this claim, because a later epoch is reserved or this broker cannot lead."""
        return self._stop()

    def learn(self, replicas: Iterable[int]) -> None:
        """Set the learners to `replicas`, except for followers; former learners get no messages."""
        kept = {replica: self.streams.get(replica) or Follower() for replica in replicas}
        self.streams = {**kept, **self.followers} if kept else self.followers

    def has_learnt(self) -> bool:
        """Return whether all learners have joined, and have all committed records."""
        learners = [self.streams[stream] for stream in self.streams if stream not in self.followers]
        return all([learner.joined and learner.durable >= self.mark for learner in learners])

    def claim_uncleanly(self) -> Effects:
        """Use only the replicas that have answered: an unclean election.

        Records that only other replicas have are lost, even acknowledged ones of sealed epochs. The
        epoch is opened for the replicas that answered, once a quorum of them has the found records.
        """
        answered = tuple(
            [follower for follower in self.followers if self.followers[follower].answer]
        )
        if self.phase is not Phase.CLAIMED or not answered:
            return NOTHING
        self.unclean, self.move = True, 0
        self.terms = Terms(answered, len(answered) // 2 + 1)
        return self._find_end()

    def keep_placement(self) -> Effects:
        """Change the claim so that it keeps the replicas of the epoch to be sealed."""
        claims = self.phase in (Phase.CLAIMED, Phase.FOUND)
        if not claims or self.unclean or not self.moves:
            return NOTHING
        self.terms = Terms(tuple(self.followers), self.quorum.acks)
        self.move = 0
        return self._advance() if self.phase is Phase.FOUND else NOTHING

    def to_send(self, replica: int) -> ToSend:
        """Return the next message for a replica, or None.

        A shell may send a shorter range, which must end with a batch. The same message is returned
        until `sent` or an answer changes the state of the replica.
        """
        follower = self.streams[replica]
        if self.phase is Phase.STOPPED or not self.chain:
            return None
        if self.phase is Phase.CLAIMED:
            return None if follower.answer is not None else Fence(self.epoch, self.target)
        if not follower.joined:
            return Join(self.epoch, self.chain)
        if follower.start < self.base:
            if follower.next < self.floor:
                return LogStart(self.epoch, self.target, self.floor)
            if follower.durable >= self.base:
                return LogStart(self.epoch, self.target, self.base)
        if follower.asks_end:
            return LogEnd(self.epoch, self.target, follower.incarnation, self.end)
        if follower.next < self.end or follower.mark < self._told_mark():
            return Append(self.epoch, self.target, follower.next, self.end, self._told_mark())
        return None

    def sent(self, replica: int, message: ToSend) -> None:
        """Record that a message of `to_send`, or a shorter one, was sent."""
        follower = self.streams[replica]
        if isinstance(message, Append):
            follower.next = message.next
            follower.mark = message.mark
        elif isinstance(message, LogStart):
            follower.start = message.base
            follower.next = max(follower.next, message.base)
        elif isinstance(message, LogEnd):
            follower.asks_end = False

    def extend(self, older: Chain) -> None:
        """Add epochs that are older than those of the claim; later joins contain them."""
        if self.chain and older[-1].epoch < self.chain[0].epoch:
            self.chain = (*older, *self.chain)

    def rewind(self, replica: int) -> None:
        """Restart the stream of a replica, because it is unknown which messages it received."""
        self.streams[replica].joined = False

    # -- rules

    def _follower(self, replica: int, authority: int) -> Follower | None:
        """Return the sender's state if it answers this claim and the claim is still valid."""
        if authority != self.epoch or self.phase is Phase.STOPPED:
            return None
        return self.streams.get(replica)

    def _in_stream(self, replica: int, message: Position | JoinFirst | Ack) -> Follower | None:
        """Return the sender's state if the message belongs to its current stream, otherwise None.

        A new incarnation may lack records that the previous one acknowledged, so its acknowledged
        offset begins again at 0. Messages of earlier incarnations are dropped.
        """
        follower = self._follower(replica, message.authority)
        if follower is None or message.epoch != self.target or self.phase is Phase.CLAIMED:
            return None
        if message.incarnation != follower.incarnation:
            if message.incarnation < follower.incarnation:
                return None
            follower.incarnation = message.incarnation
            follower.durable = 0
            follower.joined = False
        return follower

    def _find_end(self) -> Effects:
        answers = [(r, f.answer) for r, f in self.followers.items() if f.answer is not None]
        if not self.unclean and len(answers) - len(self.doubtful) < self.quorum.fences:
            return NOTHING
        ends = {replica: answer.end for replica, answer in answers}
        end = max(self.start, *ends.values())
        known = max(self.start, *(answer.mark for _, answer in answers))
        if end < known and not self.unclean:  # a replica with committed records is missing
            return NOTHING
        self.end, self.mark = end, min(known, end)
        self.phase = Phase.FOUND
        for follower in self.followers.values():
            follower.joined = False
            follower.durable = 0
            if follower.answer is not None:
                follower.incarnation = follower.answer.incarnation
                follower.durable = min(follower.answer.end, end)
        if self.moves:
            self.learn(self.terms.placement)
        holder = max(ends, key=lambda replica: ends[replica]) if end > self.start else None
        return (EndFound(end, holder), *self._advance())

    def _advance(self) -> Effects:
        """Advance the high watermark or seal the epoch, if the last answer completed a quorum."""
        if self.phase is Phase.SEALING:
            return NOTHING
        reached = self.quorum.reached([follower.durable for follower in self.followers.values()])
        if self.phase is Phase.FOUND:
            done = self.unclean or max(reached, self.mark) >= self.end
            return self._seal() if done and self._is_handed_on() else NOTHING
        if reached <= self.mark:
            return NOTHING
        self.mark = reached
        return (Committed(reached),)

    def _give_up(self) -> Effects:
        """End the epoch to be sealed where the longest remaining log ends, if that is lower.

        Happens only in an unclean election.
        """
        left = [self.streams[replica] for replica in self.terms.placement]
        end = max(follower.next for follower in left)
        if end < self.end and all([follower.joined for follower in left]):
            self.start = self.end = end
            self.mark = min(self.mark, end)
            self.chain = tuple([Link(epoch, min(start, end)) for epoch, start in self.chain])
        return self._advance()

    def _is_handed_on(self) -> bool:
        """Return whether a quorum of the new placement has the whole log."""
        if not self.moves and not self.unclean:
            return True
        ends = [self.streams[replica].durable for replica in self.terms.placement]
        return self.terms.quorum.reached(ends) >= self.end

    def _told_mark(self) -> int:
        """Return the high watermark to send to replicas; 0 before the epoch is open."""
        return self.mark if self.phase is Phase.LEADING else 0

    def _seal(self) -> Effects:
        self.phase = Phase.SEALING
        return (SealAndOpen(self.epoch, self.target, self.end),)

    def _stop(self) -> Effects:
        if self.phase is Phase.STOPPED:
            return NOTHING
        self.phase = Phase.STOPPED
        return (Stopped(self.mark, self.end),)
