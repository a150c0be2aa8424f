"""This broker as the leader of one partition: streams to replicas, responses to producers.

The core (`epoch.py`) determines what each replica needs next. The shell reads it from the log,
durable or not, and sends as much at a time as the link has room for. The leader's own replica
receives the same messages by a method call.

A claimant's own replica may lack records that were found. It then reads them from a replica that
has them, before it writes them back to the others. If that replica's log begins at a higher offset,
the claimant's log restarts there.

Producers with acks=all get their response when the high watermark has passed their records. When
the leadership ends, the outcome of appends in flight is unknown: producers get an error on which
they retry at the next leader, which recognises batches of idempotent producers.

`hand_over` ends a leadership in favour of a successor. The leader appends no more. Once everything
is committed and on the successor's disk, the leader asks the successor to claim. If the successor
does not claim in time, the leader continues (`keep`). The successor may be this broker itself, for
an epoch with other replicas, once the learners have all records.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from penstock.base.errors import PenstockError
from penstock.replication.epoch import Effects, Epoch, Phase
from penstock.replication.messages import (
    Ack,
    Append,
    AskChain,
    Committed,
    EndFound,
    FenceAnswer,
    Fenced,
    JoinFirst,
    LeadershipOver,
    LogStart,
    NotLeading,
    Position,
    SealAndOpen,
    Stopped,
    TooFewReplicas,
)
from penstock.replication.peer_format import LINKS_MAX, Begun, HandOver, Read, ReadAnswer, Said
from penstock.replication.replica import Replica

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.records.appends import AppendResult, Done
    from penstock.storage import PartitionLog
    from penstock.storage.files.values import Buffer

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 1 << 20
"""Maximum bytes of batches in one message."""


class LeaderShell(Protocol):
    """Interface of the broker for a `Leadership`: links to brokers, messages, control plane."""

    @property
    def broker_id(self) -> int: ...

    def reaches(self, broker_id: int) -> bool:
        """Whether there is a connection to a broker."""
        ...

    def lives(self, broker_id: int) -> bool:
        """Whether a broker is registered, and not known to be offline."""
        ...

    def may_be_gone(self) -> bool:
        """Whether other brokers may consider this broker offline."""
        ...

    def room_bytes(self, broker_id: int) -> int:
        """Return how many bytes may be sent to a broker in this turn; 0 without a connection."""
        ...

    def tell(
        self, broker_id: int, message: Said, data: Sequence[Buffer] = (), size_bytes: int = 0
    ) -> None:
        """Send a message to a broker's replica, or pass it to this broker's own replica."""
        ...

    def seal_and_open(self, effect: SealAndOpen) -> None:
        """Perform the compare-and-set; then call `opened` or `lost` of the leadership."""
        ...

    def ask_older(self, below: int) -> None:
        """Request the epochs below `below` from the control plane, to extend the chain."""
        ...

    def stopped(self) -> None:
        """End this leadership. A newer leader may already have truncated uncommitted records."""
        ...

    def committed(self, mark: int) -> None:
        """Let consumers read up to the high watermark `mark`."""
        ...


class Leadership:
    """Shell of `Epoch`: this broker's leadership of one partition, from the reservation on."""

    __slots__ = (
        "_begun",
        "_holder",
        "_log",
        "_pending",
        "_reading",
        "_said",
        "_shell",
        "_successor_notified",
        "_told_waits",
        "_unread",
        "_waits",
        "core",
        "fence",
        "successor",
        "until_ms",
    )  # fmt: skip

    def __init__(self, core: Epoch, log: PartitionLog, shell: LeaderShell) -> None:
        self.core = core
        self._log = log
        self._shell = shell
        self._pending: deque[tuple[int, Done, AppendResult]] = deque()
        self._said: dict[int, Said] = {}
        """Messages that replicas must answer, by broker id."""
        self._begun: dict[int, Begun] = {}
        """Log start offsets that replicas have reported, by broker id."""
        self._holder: int | None = None
        self._reading = self._unread = False
        """Whether a read is running; whether one has failed and waits for `say_again`."""
        self.fence: PenstockError | None = None
        """Error for appends and deletions in this epoch, set by the partition; None allows them."""
        self.successor: int | None = None
        """Broker that should claim the partition next, during a handover."""
        self.until_ms = 0
        """Time limit of the successor's claim, or of this claim, by the broker's clock."""
        self._successor_notified = False
        self._waits: tuple[list[int], list[int]] | None = None
        self._told_waits: tuple[list[int], list[int]] | None = None

    @property
    def leads(self) -> bool:
        return self.core.phase is Phase.LEADING

    def may_append(self, copy: Replica) -> bool:
        """Return whether this broker's log accepts appends in this epoch.

        Its own replica must have all found records, and must have joined the stream of the open
        epoch. The first time, the log's leader epoch is set.
        """
        core, log = self.core, self._log
        if not self.leads or self.successor is not None:
            return False
        if copy.authority != core.epoch or copy.epoch != core.epoch:
            return False
        if log.state.log_end_offset != core.end:
            return False
        if log.state.leader_epoch != core.epoch:
            log.set_leader_epoch(core.epoch)
        return True

    def begin(self) -> None:
        """Begin the claim; must be the first call."""
        self._perform(self.core.begin())

    # -- producers

    def appended(self, base: int, next_offset: int) -> Append:
        """Record an append to the log; return the message for this broker's own replica."""
        self.core.append(next_offset - base)
        own = Append(self.core.epoch, self.core.epoch, base, next_offset, self.core.mark)
        self.core.sent(self._shell.broker_id, own)
        return own

    def answer_at(self, offset: int, done: Done, result: AppendResult) -> None:
        """Call `done` with `result` once everything below `offset` is committed."""
        if offset <= self.core.mark:
            done(result)
        else:
            self._pending.append((offset, done, result))

    def reachable(self) -> int:
        """Return how many replicas can receive appends, this broker's own included."""
        shell = self._shell
        others = [follower for follower in self.core.followers if follower != shell.broker_id]
        own = shell.broker_id in self.core.followers
        return own + sum([shell.reaches(other) for other in others])

    def begins_below(self, offset: int) -> list[int]:
        """Return the other replicas that are online and may still have records below `offset`.

        A deletion of records waits for them.
        """
        shell = self._shell
        others = [
            follower
            for follower in self.core.followers
            if follower != shell.broker_id and shell.lives(follower)
        ]
        return [other for other in others if self._begins(other) < offset]

    def _begins(self, replica: int) -> int:
        """Return the log start offset that a replica's current incarnation has reported, or 0."""
        begun = self._begun.get(replica)
        known = begun is not None and begun.incarnation == self.core.followers[replica].incarnation
        return begun.base if begun is not None and known else 0

    def check_reachable(self) -> None:
        """Check, before an append, that enough replicas can be reached to acknowledge it.

        Raises:
            NotLeading: another broker may lead by now.
            TooFewReplicas: no other broker can lead.
        """
        found, where = self.reachable(), self._log.topic_partition
        needed = max(self.core.quorum.acks, self._log.config.min_insync_replicas)
        if found < needed:
            if self.may_be_over():
                raise NotLeading(f"{where}: this broker is cut off, and another one may lead now")
            raise TooFewReplicas(
                f"{where}: {found} of {len(self.core.followers)} replicas can be reached, but"
                f" {needed} must acknowledge"
            )

    def may_be_over(self) -> bool:
        """Return whether another broker may lead while this broker is cut off from the others."""
        return self._shell.may_be_gone() and self.reachable() < self.core.quorum.acks

    # -- the next leader

    def may_inherit(self, replica: int) -> bool:
        """Return whether another replica can be reached and has all committed records."""
        shell = self._shell
        if not self.leads or replica == shell.broker_id:
            return False
        return self.has_up_to(replica, self.core.mark) and shell.reaches(replica)

    def has_up_to(self, replica: int, offset: int) -> bool:
        """Return whether a replica has joined and has everything below `offset` durably."""
        follower = self.core.followers.get(replica)
        return follower is not None and follower.joined and follower.durable >= offset

    def holders(self, offset: int) -> list[int]:
        """Return the other replicas that can be reached and have everything below `offset`."""
        shell = self._shell
        others = [follower for follower in self.core.followers if follower != shell.broker_id]
        return [other for other in others if self.has_up_to(other, offset) and shell.reaches(other)]

    def hand_over(self, successor: int) -> None:
        """Stop appends, and let `successor` claim the partition once it has all records."""
        self.successor, self._successor_notified = successor, False

    def keep(self) -> None:
        """Continue to lead if the successor did not claim in time and no other broker leads."""
        self.successor = None

    def _notify_successor(self, successor: int) -> None:
        core = self.core
        follower = core.followers.get(successor)
        if self._successor_notified or not self.leads or follower is None:
            return
        if successor == self._shell.broker_id and not core.has_learnt():
            return
        if core.mark == core.end == follower.durable:
            self._successor_notified = True
            self._shell.tell(successor, HandOver(core.epoch))

    # -- other replicas

    def learn(self, replicas: Sequence[int]) -> bool:
        """Send the log to these learners; return whether they differ from the previous ones."""
        core = self.core
        gone = core.streams.keys() - core.followers.keys() - {*replicas}
        if not gone and core.streams.keys() >= {*replicas}:
            return False
        core.learn(replicas)
        for replica in gone:
            self._said.pop(replica, None)
        return True

    def has_learnt(self) -> bool:
        """Return whether all learners can be reached and have all committed records."""
        core = self.core
        return core.has_learnt() and all(
            [stream in core.followers or self._shell.reaches(stream) for stream in core.streams]
        )

    def keep_placement(self) -> None:
        """Continue the claim with the former replicas, because the new ones take too long."""
        if self.core.phase in (Phase.CLAIMED, Phase.FOUND) and self.core.moves:
            logger.warning(
                "%s: keeping the replicas, because a quorum of the new ones, %s, did not receive"
                " the whole log in time",
                self._log.topic_partition, self.core.terms.placement,
            )  # fmt: skip
            self._perform(self.core.keep_placement())

    def claim_uncleanly(self) -> bool:
        """Start an unclean election of this claim; return False if that is not possible now."""
        core = self.core
        if core.phase is not Phase.CLAIMED or not any(
            [follower.answer is not None for follower in core.followers.values()]
        ):
            return False
        self._perform(core.claim_uncleanly())
        return True

    # -- replicas

    @property
    def asks(self) -> bool:
        """Whether a replica must still answer a message."""
        return bool(self._said) or self._unread or self.core.phase is Phase.CLAIMED

    def fill(self) -> list[int]:
        """Send each replica its next messages, as far as its connection has room.

        Returns the brokers to which more must be sent once there is room.
        """
        core, log, own = self.core, self._log, self._shell.broker_id
        if core.base != log.log_start_offset:
            core.base, core.floor = log.log_start_offset, log.replica.boundary(log.log_start_offset)
        replicas = sorted(core.streams, key=lambda replica: replica != own)
        reached = [
            replica for replica in replicas if replica == own or self._shell.reaches(replica)
        ]
        short = [replica for replica in reached if self._fill(replica)]
        if self.successor is not None:
            self._notify_successor(self.successor)
        return short

    def _fill(self, replica: int) -> bool:
        """Send a replica its next messages; return whether more remain."""
        while (message := self.core.to_send(replica)) is not None:
            if isinstance(message, Append):
                return self._send_range(replica, message)
            if isinstance(message, LogStart):
                self._tell_start(replica, message)
                continue
            if self._said.get(replica) == message:
                return False
            self._said[replica] = message
            self.core.sent(replica, message)
            self._shell.tell(replica, message)
        return False

    def _tell_start(self, replica: int, start: LogStart) -> None:
        """Send the log start offset; with the producers below it, if the log restarts there."""
        anew = self.core.streams[replica].next < start.base
        producers = self._log.replica.producers_below(start.base) if anew else b""
        self.core.sent(replica, start)
        self._shell.tell(replica, start, (producers,), len(producers))

    def _send_range(self, replica: int, wanted: Append) -> bool:
        """Send a part of the records that a replica lacks; return whether the log has more."""
        shell = self._shell
        if wanted.base == wanted.next:
            self.core.sent(replica, wanted)
            shell.tell(replica, wanted)
            return False
        if replica == shell.broker_id:
            self._read_on(wanted)
            return False
        own = self.core.followers.get(shell.broker_id)
        have = self._log.log_end_offset if own is None or own.joined else 0
        if wanted.base >= have:
            return False
        room = min(shell.room_bytes(replica), CHUNK_BYTES)
        if not room:
            return True
        base = max(wanted.base, self._log.log_start_offset)  # may be within the batch
        read = self._log.read(base, max_bytes=room, end_offset=wanted.next, appended=True)
        if not read.size_bytes:
            return False
        part = wanted._replace(next=read.next_offset)
        self.core.sent(replica, part)
        shell.tell(replica, part, read.buffers, read.size_bytes)
        return read.next_offset < min(wanted.next, have)

    def _read_on(self, wanted: Append) -> None:
        """Request records that this broker's own replica lacks from another replica."""
        holder = self._source(wanted.base)
        if self._reading or self._unread or holder is None:
            return
        self._reading = True
        asked = Read(self.core.epoch, self.core.target, wanted.base, wanted.next)
        self._shell.tell(holder, asked)

    def _source(self, base: int) -> int | None:
        """Return a reachable broker that has the log from an offset on, or None.

        It is the replica that has the found records, or one that has joined the stream and so has
        truncated its log by the chain.
        """
        own, shell = self._shell.broker_id, self._shell
        ends = {
            one: follower.next
            for one, follower in self.core.followers.items()
            if one != own and follower.joined and follower.next > base and shell.reaches(one)
        }
        holder = self._holder
        if holder is not None and holder != own and shell.reaches(holder):
            return holder
        return max(ends, key=lambda replica: ends[replica], default=None)

    def read_answered(self, holder: int, answer: ReadAnswer, data: memoryview) -> None:
        """Handle a part of the records that `_read_on` has requested."""
        core = self.core
        if answer.authority != core.epoch or core.phase is Phase.STOPPED:
            return
        self._reading = False
        own = self._shell.broker_id
        if answer.base < answer.next:
            part = Append(core.epoch, core.target, answer.base, answer.next, 0)
            core.sent(own, part)
            self._shell.tell(own, part, (data,), len(data))
        elif core.streams[own].next < answer.base <= core.end:
            start = LogStart(core.epoch, core.target, answer.base)
            core.sent(own, start)
            self._shell.tell(own, start, (data,), len(data))
        else:
            self._said.clear()
            self._holder, self._unread = None, True  # any other replica may answer
            self._perform(core.unreadable(holder))

    def heard(self, replica: int, message: Said) -> None:
        """Handle a message of a replica."""
        core = self.core
        if isinstance(message, Ack):
            self._perform(core.acknowledged(replica, message))
            return
        if isinstance(message, Begun):
            if message.authority == core.epoch:
                self._begun[replica] = message
            return
        if isinstance(message, AskChain):  # the join follows with a new chain
            if message.authority == core.epoch and len(core.chain) < LINKS_MAX:
                self._shell.ask_older(core.chain[0].epoch)
            return
        self._said.pop(replica, None)
        if isinstance(message, Position):
            self._perform(core.positioned(replica, message))
        elif isinstance(message, FenceAnswer):
            self._perform(core.fence_answered(replica, message))
        elif isinstance(message, JoinFirst):
            self._perform(core.not_joined(replica, message))
        elif isinstance(message, Fenced):
            self._perform(core.fenced(replica, message))

    def say_again(self) -> bool:
        """Have unanswered messages sent again; return whether there are any.

        A broker may have received a message before it knew the partition.
        """
        self._tell_why_not()
        said, self._said = self._said, {}
        unread, self._unread = self._unread, False
        return bool(said) or unread or self.core.phase is Phase.CLAIMED

    def _tell_why_not(self) -> None:
        """Log why a claim waits, if the reason is the same as at the previous call."""
        core = self.core
        if core.phase is not Phase.CLAIMED:
            return
        doubtful = sorted(core.doubtful)
        silent = sorted(
            [follower for follower in core.followers if core.followers[follower].answer is None]
        )
        waits = doubtful, silent
        if waits == self._waits and waits != self._told_waits:
            self._told_waits = waits
            logger.warning(
                "%s: waiting for %d of %d replicas to report their log end offsets before"
                " electing a leader; brokers %s may have lost acknowledged records, brokers"
                " %s do not answer",
                self._log.topic_partition, core.quorum.fences, len(core.followers),
                ", ".join(map(str, doubtful)) or "none", ", ".join(map(str, silent)) or "none",
            )  # fmt: skip
        self._waits = waits

    def link_changed(self, replica: int) -> None:
        """Handle a made or lost connection: messages to and from the replica may be lost."""
        core = self.core
        if replica in core.streams:
            self._said.pop(replica, None)
            core.rewind(replica)
            self._reading = False
        learner = replica in core.streams and replica not in core.followers
        if replica == self.successor or (learner and self.successor == self._shell.broker_id):
            self.until_ms = 0

    # -- outcomes

    def opened(self) -> None:
        """Begin to lead, because the compare-and-set has succeeded."""
        self._said.clear()
        self._perform(self.core.opened())
        if self.core.unclean:
            logger.error(
                "%s: an unclean election may have discarded records from offset %d of epoch %d on",
                self._log.topic_partition, self.core.start, self.core.chain[-2].epoch,
            )  # fmt: skip

    def lost(self) -> None:
        """End this leadership, because a later epoch is reserved or this broker cannot lead."""
        self._perform(self.core.lost())

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Committed):
                self._answer(effect.mark)
                self._shell.committed(effect.mark)
            elif isinstance(effect, EndFound):
                self._holder = effect.holder
                self._said.clear()
            elif isinstance(effect, SealAndOpen):
                self._shell.seal_and_open(effect)
            elif isinstance(effect, Stopped):
                self.give_up(LeadershipOver(self._log.topic_partition, self.core.epoch))
                self._shell.stopped()

    def _answer(self, mark: int) -> None:
        pending = self._pending
        while pending and pending[0][0] <= mark:
            _, done, result = pending.popleft()
            done(result)

    def give_up(self, error: PenstockError) -> None:
        """Fail the appends in flight with `error`, because their outcome is unknown."""
        pending, self._pending = self._pending, deque()
        for _, done, _ in pending:
            done(error)
