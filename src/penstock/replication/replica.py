"""Core of one copy of a partition, without I/O: promises, appends, truncations, acknowledgements.

The leader's own copy is a copy like any other: it passes the same checks, and its acknowledgement
counts after the same sync.

**Promise.** A replica obeys the highest authority that it has promised to, and reports to lower
ones that they are fenced. **Join.** A stream begins with the chain of epochs: the log is truncated
where it departs from the chain. Nothing is accepted from a stream that was not joined, no high
watermark either. **Append.** A batch must follow the log's end; a batch that the log already has is
compared. **Sync.** The shell takes a token with `begin_sync`, makes durable everything written
until then, and passes the token to `synced`. What it covers is acknowledged, and a fence is
answered if the token was taken after it. So an append before a promise is in the answer, or is
never acknowledged.

**Start.** What the leader's log has deleted was committed. A log that ends below begins there,
empty; this is durable before any append to it counts. The start is acknowledged and reported to
claimants as an end, so that no epoch ends below it when everything is deleted.

**Limbo.** A replica that may have lost durable records reports it: the records it holds count,
those it lacks do not. Limbo ends when everything is durable up to the end that the leader's log had
after it had learned of this incarnation: nothing that was ever acknowledged here is above that.

Counters and offsets are plain values in slots: an append costs no more than the effect that it
returns.

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
from penstock.replication.effects import (
    Compare,
    Halt,
    MarkMoved,
    MoveStart,
    PersistLimbo,
    PersistPromise,
    StartAt,
    TruncateTo,
    Write,
)
from penstock.replication.messages import (
    Ack,
    Append,
    AskChain,
    Fence,
    FenceAnswer,
    Fenced,
    Join,
    JoinFirst,
    LogEnd,
    LogStart,
    Position,
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
    """State of a copy at its start: the log holds [base, end), of the epochs in `history`."""

    promised: int = 0
    base: int = 0
    end: int = 0
    history: Chain = ()
    mark: int = 0
    limbo: int = 0


class Sync(NamedTuple):
    """Scope of a sync: everything that was written before the token was taken."""

    writes: int
    cuts: int
    end: int
    mark: int


class Replica:
    """Core of a copy. `incarnation` is higher than that of any earlier life of this copy."""

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
        """In limbo: where the log must end for it to be over; -1 until the leader has told."""
        self.base = disk.base
        self.end = self.durable = disk.end
        self.history = disk.history
        self.mark = self.kept_mark = disk.mark
        """The commit mark as known, and as it may be written to disk: no cut that it depends on
        can be lost any more."""
        self.writes = self.synced_writes = 0
        """Changes that need a sync, and those that a sync has covered."""
        self.cuts = 0
        # The stream that was joined; authority 0: none.
        self.authority = self.epoch = 0
        self.chain: Chain = ()
        self.joined_after = 0
        self.acked = 0
        # What waits for a sync, and for which.
        self.asked: Fence | None = None
        self.asked_after = 0
        self.owed: Ack | None = None
        self.owed_after = 0

    @property
    def readable(self) -> int:
        """The offset below which consumers may read."""
        return min(self.mark, self.end)

    @property
    def epoch_of_end(self) -> int:
        """The epoch of the log's last batch; 0 where there is none."""
        return self.history[-1].epoch if self.history else 0

    def lose(self, *, reserved: int, opened: int) -> Effects:
        """Mark that durable records may be missing; the first event after such a start.

        `reserved` and `opened` are the highest reserved and opened epochs in the control plane,
        read after this incarnation began. Nothing is answered before that.
        """
        self.writes += 1
        self.limbo = max(self.limbo, opened)
        self.promised = max(self.promised, reserved)
        return (PersistPromise(self.promised), PersistLimbo(self.limbo))

    # -- messages of the leader

    def fence(self, fence: Fence) -> Effects:
        """Promise; the answer leaves with the sync that covers all that was written before."""
        if self._refuses(fence.authority):
            return self._refusal(fence.authority)
        effects = self._promise(fence.authority)
        self.asked, self.asked_after = fence, self.writes
        return effects + self._answers()

    def join(self, join: Join) -> Effects:
        """Begin a stream, or begin it again."""
        if self._refuses(join.authority):
            return self._refusal(join.authority)
        if join.epoch < self.epoch_of_end or (
            join.authority == self.authority and join.epoch < self.epoch
        ):
            return NOTHING  # sent before its epoch was opened: would cut newer records
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
        """Take what follows the log's end; where something is missing in between, say so.

        Written without calls where they can be spared: this is what thousands of partitions do.

        A shell that finds a difference where it compares leaves out the effects that follow.
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
        """The leader's log begins there: so does this one, as far as it is durable."""
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
        """In limbo: this is how far the log must reach."""
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
        """Complete that sync."""
        if self.halted:
            return NOTHING
        writes, cuts, end, mark = sync
        if writes > self.synced_writes:
            self.synced_writes = writes
        if mark > self.kept_mark:
            self.kept_mark = mark
        if cuts == self.cuts and end > self.durable:  # the next sync reports cut records
            self.durable = end
        return self._leave_limbo() + self._answers() if self.limbo else self._answers()

    def started(self, base: int) -> bool:
        """Delete everything below a committed and durable offset; return False if it was deleted
        before."""
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
        """The offset below which this log is as the chain says."""
        return max(self.base, parts_at(self.history, self.end, chain))

    def _cut(self, keep: int) -> Effects:
        self.end = keep
        self.durable = min(self.durable, keep)
        # The chain goes below what was committed after an unclean election, and only then.
        self.mark, self.kept_mark = min(self.mark, keep), min(self.kept_mark, keep)
        self.history = cut_history(self.history, keep)
        if self.owed is not None and self.owed.durable > keep:
            self.owed = None
        self.cuts += 1
        self.writes += 1
        return (TruncateTo(keep),)

    def _begin_at(self, base: int) -> StartAt:
        """Forget what there is: the leader's log begins above it."""
        self.base = self.end = base
        self.durable = self.acked = 0
        self.history = ()
        self.cuts += 1
        self.writes += 1
        return StartAt(base)

    def _take(self, base: int, next_offset: int) -> Effects:
        """Return the effects of a range of the joined stream on the log."""
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
        """Whether this stream can end the limbo: it is of the newest epoch that is concerned."""
        return self.needed < 0 and self.limbo == self.epoch == self.authority != 0

    def _leave_limbo(self) -> Effects:
        if not 0 <= self.needed <= self.durable:
            return NOTHING
        self.limbo, self.needed = 0, -1
        self.writes += 1
        return (PersistLimbo(0),)

    def _answers(self) -> Effects:
        """Return the messages that may be sent, now that `synced_writes` are durable."""
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
        start = min(self.base, self.durable)  # 0 before what it begins with is durable
        return FenceAnswer(
            asked.authority,
            self.incarnation,
            max(start, end_within(self.history, asked.target, self.durable)),
            max(start, self.kept_mark),
            self.limbo,
        )
