"""Core of one replica, without I/O: promises, appends, truncations, acknowledgements.

The leader's own replica is like any other: it passes the same checks, and its acknowledgement
counts after the same sync.

**Promise.** A replica accepts messages only from the highest authority (claimed epoch) that it has
promised. It answers lower authorities that they are fenced. **Join.** A stream begins with the
chain of epochs: the log is truncated where it diverges from the chain. Before the join, nothing of
the stream is accepted, not even a high watermark. **Append.** A batch must follow the log's end; a
batch that the log already has is compared. **Sync.** The shell takes a token with `begin_sync`,
syncs everything written until then, and passes the token to `synced`. Everything that the token
covers is then acknowledged. A fence is answered after the sync of a token that was taken after it.
So an append before a promise is either reported in the answer, or never acknowledged.

**Start.** Records that the leader has deleted were committed. A log that ends below the leader's
start restarts there, empty; this is durable before any append to it is acknowledged. To a
broker that claims leadership, an empty log reports its start offset as its end, so that no epoch
ends below the deleted records.

**Limbo.** A replica that may have lost durable records reports this. The records that it has count
as present, but those that it lacks do not count as absent. The leader sends the log end offset
that it had when it learned of this start of the replica; the replica has acknowledged nothing above
that offset. Limbo ends when everything up to it is durable.

Counters and offsets are plain values in slots, so that an append costs little more than the effects
that it returns.

Source: BookKeeper's fencing and recovery; KIP-101, KIP-279; Viewstamped Replication Revisited, 4.3.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.replication.chain import (
    Chain,
    cut_history,
    end_within,
    history_from,
    history_of,
    parts_at,
)
from penstock.replication.messages import (
    Ack,
    Append,
    AskChain,
    Compare,
    Fence,
    FenceAnswer,
    Fenced,
    Halt,
    Join,
    JoinFirst,
    LogEnd,
    LogStart,
    MarkMoved,
    MoveStart,
    PersistLimbo,
    PersistPromise,
    Position,
    StartAt,
    TruncateTo,
    Write,
)

Effect = (
    PersistPromise
    | PersistLimbo
    | TruncateTo
    | StartAt
    | MoveStart
    | Write
    | Compare
    | MarkMoved
    | Halt
    | Position
    | JoinFirst
    | AskChain
    | Fenced
    | FenceAnswer
    | Ack
)
Effects = tuple[Effect, ...]

NOTHING: Final[Effects] = ()


class Disk(NamedTuple):
    """State of a replica at its start: its log holds [base, end), of the epochs in `history`."""

    promised: int = 0
    base: int = 0
    end: int = 0
    history: Chain = ()
    mark: int = 0
    limbo: int = 0


class Sync(NamedTuple):
    """Token of a sync, which covers everything that was written before the token was taken."""

    writes: int
    cuts: int
    end: int
    mark: int


class Replica:
    """Core of a replica. Each restart has a higher `incarnation` than all previous ones."""

    __slots__ = (
        "acked",
        "asked",
        "asked_after",
        "authority",
        "base",
        "chain",
        "cuts",
        "durable",
        "end",
        "epoch",
        "halted",
        "history",
        "incarnation",
        "joined_after",
        "kept_mark",
        "limbo",
        "mark",
        "needed",
        "owed",
        "owed_after",
        "promised",
        "synced_writes",
        "writes",
    )

    def __init__(self, incarnation: int, disk: Disk) -> None:
        self.incarnation = incarnation
        self.halted = False
        self.promised = disk.promised
        self.limbo = disk.limbo
        self.needed = -1
        """Log end offset at which limbo ends; -1 until the leader has reported it."""
        self.base = disk.base
        self.end = self.durable = disk.end
        self.history = disk.history
        self.mark = self.kept_mark = disk.mark
        """Known high watermark, and the one that may be reported to claimants: all truncations
        before the latter are durable."""
        self.writes = self.synced_writes = 0
        """Number of changes that need a sync, and how many of them a sync has covered."""
        self.cuts = 0
        # The stream that was joined; authority 0: none.
        self.authority = self.epoch = 0
        self.chain: Chain = ()
        self.joined_after = 0
        self.acked = 0
        # Answers that wait for a sync, and the value of `writes` that it must cover.
        self.asked: Fence | None = None
        self.asked_after = 0
        self.owed: Ack | None = None
        self.owed_after = 0

    @property
    def readable(self) -> int:
        """Offset below which consumers may read."""
        return min(self.mark, self.end)

    @property
    def epoch_of_end(self) -> int:
        """Epoch of the log's last batch; 0 without one."""
        return self.history[-1].epoch if self.history else 0

    def lose(self, *, reserved: int, opened: int) -> Effects:
        """Record that durable records may be missing; must be the first event after such a start.

        `reserved` and `opened` are the highest reserved and opened epochs in the control plane,
        read after this incarnation began. The shell ignores all messages before this call.
        """
        self.writes += 1
        self.limbo = max(self.limbo, opened)
        self.promised = max(self.promised, reserved)
        return (PersistPromise(self.promised), PersistLimbo(self.limbo))

    # -- messages of the leader

    def fence(self, fence: Fence) -> Effects:
        """Promise an epoch; the answer follows the sync of everything written before."""
        if self._refuses(fence.authority):
            return self._refusal(fence.authority)
        effects = self._promise(fence.authority)
        self.asked, self.asked_after = fence, self.writes
        return effects + self._answers()

    def join(self, join: Join) -> Effects:
        """Join a stream, possibly again."""
        if self._refuses(join.authority):
            return self._refusal(join.authority)
        if join.epoch < self.epoch_of_end or (
            join.authority == self.authority and join.epoch < self.epoch
        ):
            return NOTHING  # sent before its epoch was opened: it would truncate newer records
        if join.chain[0].start and self.history and self.epoch_of_end < join.chain[0].epoch:
            newest = self.epoch_of_end  # older epochs show where this log diverges
            return (AskChain(join.authority, join.epoch, self.incarnation, newest),)
        if self.history and parts_at(self.history, self.end, join.chain) < self.base:
            return self.differs()  # discarded records begin below this log
        effects = self._promise(join.authority)
        self.authority, self.epoch, self.chain = join.authority, join.epoch, join.chain
        keep = self._confirmed(join.chain)
        if keep < self.end:
            effects += self._cut(keep)
        self.joined_after = self.writes
        self.acked = -1
        return (*effects, self._position(), *self._answers())

    def append(self, append: Append) -> Effects:
        """Write the batches that follow the log's end, and compare those that the log already has.

        If records are missing in between, report the log end offset instead. If a shell finds a
        difference in a comparison, it skips the effects after it.

        The code avoids calls, because it runs for thousands of partitions.
        """
        authority, epoch, base, next_offset, mark = append
        if authority != self.authority or epoch != self.epoch:
            return self._refusal(authority, epoch)
        before = self.mark if self.mark < self.end else self.end
        if mark > self.mark:
            self.mark = mark
        effects = self._take(base, next_offset)
        after = self.mark if self.mark < self.end else self.end
        return (*effects, MarkMoved(after)) if after > before else effects

    def log_start(self, told: LogStart) -> Effects:
        """Move the log's start to that of the leader's log, as far as this log is durable."""
        if told.authority != self.authority or told.epoch != self.epoch:
            return self._refusal(told.authority, told.epoch)
        before = self.readable
        self.mark = max(self.mark, told.base)
        if self.end < told.base:
            effects: Effects = (self._begin_at(told.base),)
        else:
            moved = self.started(min(told.base, self.durable))
            effects = (MoveStart(self.base),) if moved else NOTHING
        return (*effects, MarkMoved(self.readable)) if self.readable > before else effects

    def log_end(self, told: LogEnd) -> Effects:
        """Record the log end offset that the log must reach to leave limbo."""
        if told.authority != self.authority or told.epoch != self.epoch:
            return self._refusal(told.authority, told.epoch)
        if not self._asks_end() or told.incarnation != self.incarnation:
            return NOTHING
        self.needed = told.end
        return self._leave_limbo()

    # -- what the shell reports

    def begin_sync(self) -> Sync:
        """Return the token of a sync that begins now, after everything that was written."""
        return Sync(self.writes, self.cuts, self.end, self.mark)

    def synced(self, sync: Sync) -> Effects:
        """Record a completed sync; return the messages that it permits."""
        if self.halted:
            return NOTHING
        writes, cuts, end, mark = sync
        if writes > self.synced_writes:
            self.synced_writes = writes
        if mark > self.kept_mark:
            self.kept_mark = mark
        if cuts == self.cuts and end > self.durable:  # no truncation since the token
            self.durable = end
        return self._leave_limbo() + self._answers() if self.limbo else self._answers()

    def started(self, base: int) -> bool:
        """Record that the log now starts at `base`, because the records below it were deleted.

        `base` is committed and durable. Return False if the log started there or above already.
        """
        if base <= self.base:
            return False
        self.base = base
        self.history = history_from(self.history, base, self.end)
        return True

    def differs(self) -> Effects:
        """Record that a `Compare` found another batch at an offset of the same epoch."""
        self.halted = True
        self.authority = self.epoch = 0
        self.asked = self.owed = None
        return (Halt(self.end),)

    # -- rules

    def _refuses(self, authority: int) -> bool:
        return self.halted or authority < self.promised

    def _refusal(self, authority: int, epoch: int = 0) -> Effects:
        if self.halted:
            return NOTHING
        if authority < self.promised:
            return (Fenced(authority, self.promised),)
        return (JoinFirst(authority, epoch, self.incarnation),)

    def _promise(self, authority: int) -> Effects:
        if authority <= self.promised:
            return NOTHING
        if self.authority and self.end > self.acked:  # not yet acknowledged to the former leader
            self.owed = Ack(self.authority, self.epoch, self.incarnation, self.end)
            self.owed_after = self.writes
        self.authority = self.epoch = 0
        self.chain = ()
        self.promised = authority
        self.writes += 1
        return (PersistPromise(authority),)

    def _confirmed(self, chain: Chain) -> int:
        """Return the offset below which this log agrees with the chain."""
        return max(self.base, parts_at(self.history, self.end, chain))

    def _cut(self, keep: int) -> Effects:
        self.end = keep
        self.durable = min(self.durable, keep)
        # Only after an unclean election does the log diverge below committed records.
        self.mark, self.kept_mark = min(self.mark, keep), min(self.kept_mark, keep)
        self.history = cut_history(self.history, keep)
        if self.owed is not None and self.owed.durable > keep:
            self.owed = None
        self.cuts += 1
        self.writes += 1
        return (TruncateTo(keep),)

    def _begin_at(self, base: int) -> StartAt:
        """Discard the log, because the leader's log begins above its end."""
        self.base = self.end = base
        self.durable = self.acked = 0
        self.history = ()
        self.cuts += 1
        self.writes += 1
        return StartAt(base)

    def _take(self, base: int, next_offset: int) -> Effects:
        """Return the effects of the leader's batches [base, next_offset) on the log.

        New batches are written, and those that the log already has are compared. If the batches do
        not adjoin the log's end, the end is reported instead.
        """
        effects = NOTHING
        if base != self.end:
            if base > self.end:
                return (self._position(),)
            if base < next_offset:
                effects = (Compare(base, min(next_offset, self.end)),)
                if next_offset <= self.durable:
                    self.acked = -1  # sent again: the acknowledgement may have been lost
                    return effects + self._answers()
        if next_offset <= self.end:
            return effects
        write = Write(self.end, next_offset)
        self.end = next_offset
        self.writes += 1
        if not self.history or self.history[-1].epoch != self.epoch:
            older = cut_history(self.history, self.chain[0].start)
            self.history = older + history_of(self.chain, self.base, next_offset)
        return (*effects, write) if effects else (write,)

    def _position(self) -> Position:
        return Position(self.authority, self.epoch, self.incarnation, self.end, self._asks_end())

    def _asks_end(self) -> bool:
        """Return whether to ask this stream's leader for the log end offset that ends limbo.

        Only the leader of the newest epoch in limbo can answer.
        """
        return self.needed < 0 and self.limbo == self.epoch == self.authority != 0

    def _leave_limbo(self) -> Effects:
        if not 0 <= self.needed <= self.durable:
            return NOTHING
        self.limbo, self.needed = 0, -1
        self.writes += 1
        return (PersistLimbo(0),)

    def _answers(self) -> Effects:
        """Return the messages that waited for a sync, and whose writes `synced_writes` covers now.

        They are answers to fences, and acknowledgements.
        """
        effects: Effects = NOTHING
        if self.owed is not None and self.owed_after <= self.synced_writes:
            effects += (self.owed,)
            self.owed = None
        if self.asked is not None and self.asked_after <= self.synced_writes:
            effects += (self._fence_answer(self.asked),)
            self.asked = None
        if self.authority and self.joined_after <= self.synced_writes and self.durable > self.acked:
            self.acked = self.durable
            effects += (Ack(self.authority, self.epoch, self.incarnation, self.durable),)
        return effects

    def _fence_answer(self, asked: Fence) -> FenceAnswer | Fenced:
        if asked.authority < self.promised:
            return Fenced(asked.authority, self.promised)
        start = min(self.base, self.durable)  # 0 until a restart at `base` is durable
        return FenceAnswer(
            asked.authority,
            self.incarnation,
            max(start, end_within(self.history, asked.target, self.durable)),
            max(start, self.kept_mark),
            self.limbo,
        )
