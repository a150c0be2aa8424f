"""Copy of a partition on this broker: applies the effects of its core to a log.

Effects (`effects.py`) are applied to the log at once and in order, and become durable with the sync
of this turn of the event loop. Responses that depend on them are sent afterwards. If the log
rejects a batch, or a sync fails, this life of the copy ends. The next life begins with what is
durable, after a pause, because the failure may repeat.

A copy can be read up to the high watermark that it knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.replication.chain import Link
from penstock.replication.comparing import differ
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
from penstock.replication.errors import NotAsAnnounced
from penstock.replication.leadership import CHUNK_BYTES, Leadership
from penstock.replication.mending import Mending
from penstock.replication.messages import (
    Append,
    Fence,
    Fenced,
    Join,
    JoinFirst,
    LogEnd,
    LogStart,
)
from penstock.replication.peer_format import (
    AskCopy,
    Begun,
    CopyAnswer,
    OfEpochs,
    Read,
    ReadAnswer,
    Said,
)
from penstock.replication.replica import Disk, Effects, Replica, Sync
from penstock.storage.damage import DamagedRecords
from penstock.storage.reading import part_of

if TYPE_CHECKING:
    from penstock.storage import ReplicaLog
    from penstock.storage.values import Buffer

logger = logging.getLogger(__name__)

_SPEAKERS_KEPT: Final = 8
COMPARED_READS_MAX: Final = 4
"""Reads of the own log that a range is compared by: it may have far more than was sent, where the
leader's has been compacted."""
_NOTHING: Final = memoryview(b"")
HEARD_BY_COPIES: Final = (Append, Fence, Join, LogStart, LogEnd, Read, AskCopy, CopyAnswer)
"""What is said to a copy; all else is said to who leads."""

Tell = Callable[[int, Said, "list[Buffer]", int], None]
"""Sends something to a broker: its id, what, batches and their bytes."""


def disk_of(log: ReplicaLog) -> Disk:
    """Return the state of a log that was just opened; nothing in it waits for a sync.

    A log whose end is lost ends where it is complete, and reports the loss.
    """
    log.load()
    if log.damage is not None:
        log.end_at_damage()
        log.note_loss()
    return Disk(
        promised=max(log.promised, 0),
        base=log.log_start_offset,
        end=log.log_end_offset,
        history=tuple(
            Link(*entry) for entry in log.epochs.entries if entry[1] < log.log_end_offset
        ),
        limbo=max(log.limbo, 0),
    )


class Copy:
    """Shell of one copy. Belongs to the event loop."""

    __slots__ = (
        "_former", "_new_life", "_speakers", "_tell", "broken", "core", "failed", "log",
        "mark", "mending", "moved", "resting", "silent",
    )  # fmt: skip

    def __init__(
        self,
        log: ReplicaLog,
        *,
        new_life: Callable[[], int],
        tell: Tell,
        moved: Callable[[int], None],
    ) -> None:
        """Create a copy. `new_life` returns rising incarnations; `moved` is called with the high
        watermark."""
        self.log = log
        self.moved = moved
        self.mark = 0
        self.failed = False
        """What was taken is not what the log has: to begin anew once nothing is under way."""
        self.silent = False
        """Nobody is answered: what it promised is not known before the control plane tells."""
        self.resting = False
        """Nobody is answered for a while, after something has failed."""
        self.broken = False
        """The disk has failed: no life begins before the broker is restarted."""
        self._tell = tell
        self.mending = Mending(log, tell)
        self._new_life = new_life
        self._speakers: dict[int, int] = {}
        self.core = self._former = Replica(new_life(), disk_of(log))
        log.committed_offset = 0

    @property
    def unsynced(self) -> bool:
        """Whether something was taken that no sync covers yet."""
        if self.broken:
            return False
        return self.core.writes != self.core.synced_writes or self.failed

    @property
    def leader(self) -> tuple[int, int] | None:
        """Return the leader and its epoch by the newest open stream; None without one."""
        core = self.core
        broker_id = self._speakers.get(core.authority)
        opened = core.authority and core.authority == core.epoch
        return (broker_id, core.epoch) if opened and broker_id is not None else None

    @property
    def stands_still(self) -> bool:
        """Whether it takes no part before the broker is restarted."""
        return self.broken or self.core.halted

    @property
    def trouble(self) -> str:
        """Why this copy does not take part, or not in full; nothing if it does."""
        core = self.core
        if self.broken:
            return "the disk has failed: it takes no part before the broker is restarted"
        if core.halted:
            return f"below offset {core.end} it has other records than its leader: it takes no part"
        if self.silent:
            return "the control plane has not reported what it may have promised"
        if self.failed or self.resting:
            return "its log rejected a batch, or a sync failed: it restarts from what is durable"
        if core.limbo and core.limbo >= core.epoch:
            return "it may lack what it acknowledged, until it has all of its leader's log"
        return ""

    def may_lack(self, opened: int) -> str | None:
        """Return why this copy may lack records that it promised or acknowledged; empty if it
        cannot.

        `opened` is an opened epoch of the partition. The first one is 0: it has no leader and no
        promises.
        """
        if self.log.lost is not None:
            return self.log.lost
        return "it is new here, or its disk was lost" if opened > 0 > self.log.promised else None

    def lose(self, *, reserved: int, opened: int) -> None:
        """Learn from the control plane in which epochs this copy may have promised and
        acknowledged."""
        self.silent = False
        self._perform(self.core.lose(reserved=reserved, opened=opened))

    def heard(self, sender: int, message: Said, data: memoryview, now_ms: int) -> None:
        """Handle a message of the leader, or of a replica that is becoming the leader.

        Raises:
            PenstockError: the log rejects what was sent; this life is over.
        """
        if isinstance(message, AskCopy):
            self.mending.answer(sender, message, self.mark)
            return
        if isinstance(message, CopyAnswer):
            self.mending.heard(message, data, now_ms)
            return
        if self.failed or self.silent or self.broken or self.resting:
            return
        try:
            self._hear(sender, message, data, now_ms)
        except PenstockError:
            self.failed = True
            raise

    def _hear(self, sender: int, message: OfEpochs, data: memoryview, now_ms: int) -> None:
        authority = message.authority
        if self._speakers.get(authority) != sender:
            self._speakers[authority] = sender
            for old in sorted(self._speakers)[:-_SPEAKERS_KEPT]:
                del self._speakers[old]
        core = self.core
        if isinstance(message, Append):
            self._perform(core.append(message), message, data, now_ms)
            return
        core.started(self.log.log_start_offset)
        if isinstance(message, Join):
            self._perform(core.join(message))
        elif isinstance(message, Fence):
            self._perform(core.fence(message))
        elif isinstance(message, LogStart):
            self._perform(core.log_start(message), data=data)
            if core.authority == authority:
                begun = Begun(authority, message.epoch, core.incarnation, core.base)
                self._tell(sender, begun, [], 0)
        elif isinstance(message, LogEnd):
            self._perform(core.log_end(message))
        elif isinstance(message, Read):
            self._read(sender, message)

    def mend(self, error: PenstockError, leading: Leadership | None, now_ms: int) -> bool:
        """Ask another copy for what an error says is damaged here; false if none can give it.

        `leading` is what this broker does as the leader, where it is or was.
        """
        if not isinstance(error, DamagedRecords):
            return False
        damage, leader = error.damage, self.leader
        if leading is not None and leading.leads:
            brokers = leading.holders(damage.next_offset)
        else:
            brokers = [] if leader is None else [leader[0]]
        return self.mending.ask(damage, brokers, self.mark, now_ms)

    def wrote(self, own: Append) -> None:
        """The log has taken what this broker appends as leader."""
        for effect in self.core.append(own):
            if isinstance(effect, MarkMoved):
                self._move(effect.mark)

    def synced(self, token: Sync) -> None:
        """The sync of a token is complete."""
        self._perform(self.core.synced(token))

    def begin_anew(self) -> None:
        """Another life, with what the log has; nothing of it waits for a sync. It rests."""
        self.failed, self.resting, self._former = False, True, self.core
        self.core = Replica(self._new_life(), disk_of(self.log))

    def wake(self) -> None:
        """Rested: take part again."""
        self.resting = False
        former = self._former
        leader = self._speakers.get(former.authority)
        if leader is not None:  # it believes that what was sent is taken
            anew = JoinFirst(former.authority, former.epoch, self.core.incarnation)
            self._tell(leader, anew, [], 0)

    def _perform(
        self,
        effects: Effects,
        message: Append | None = None,
        data: memoryview = _NOTHING,
        now_ms: int = 0,
    ) -> None:
        for effect in effects:
            if isinstance(effect, Write):
                self._write(effect, message, data, now_ms)
            elif isinstance(effect, Compare):
                if self._differs(effect, data):
                    self._perform(self.core.differs())
                    return
            elif isinstance(effect, MarkMoved):
                self._move(effect.mark)
            elif isinstance(effect, Halt):
                where = self.log.topic_partition
                logger.critical(
                    "%s: this replica differs from its leader at offset %d", where, effect.offset
                )
            elif isinstance(effect, (PersistPromise, PersistLimbo, TruncateTo, StartAt, MoveStart)):
                self._keep(effect, data)
            else:
                sender = self._speakers.get(effect.authority)
                if sender is not None:
                    self._tell(sender, effect, [], 0)

    def _keep(
        self,
        effect: PersistPromise | PersistLimbo | TruncateTo | StartAt | MoveStart,
        data: memoryview,
    ) -> None:
        log = self.log
        if isinstance(effect, PersistPromise):
            log.promise(effect.promised)
        elif isinstance(effect, PersistLimbo):
            log.set_limbo(effect.limbo or -1)
        elif isinstance(effect, TruncateTo):
            self._cut(effect.end)
        elif isinstance(effect, StartAt):
            logger.info(
                "%s: this replica restarts empty at offset %d", log.topic_partition, effect.base
            )
            log.start_at(effect.base, producers=bytes(data), floor=self.mark)
        else:
            log.move_start(effect.base)

    def _cut(self, end: int) -> None:
        """Cut what is not in the chain; where that was committed, it is not any more."""
        if end < self.mark:
            logger.error(
                "%s: discarding committed records from offset %d up to %d: an unclean election"
                " discarded them", self.log.topic_partition, end, self.mark,
            )  # fmt: skip
            self._move(end)
        self.log.truncate(end, floor=self.mark)

    def _write(self, effect: Write, message: Append | None, data: memoryview, now_ms: int) -> None:
        if message is not None and effect.base > message.base:
            data, _ = part_of(data, effect.base, len(data), effect.next, at_least_one=True)
        if effect.base != self.log.log_end_offset:
            raise NotAsAnnounced(
                f"{self.log.topic_partition}: batches from {effect.base} on were sent to a log that"
                f" ends at {self.log.log_end_offset}"
            )
        end = self.log.append_replica(data, now_ms=now_ms, epochs=self.core.chain)
        if end != effect.next:
            self.log.truncate(effect.base, floor=self.mark)
            raise NotAsAnnounced(
                f"{self.log.topic_partition}: batches to {end} were sent as those to {effect.next}"
            )

    def _differs(self, effect: Compare, data: memoryview) -> bool:
        """Whether batches are others than those sent, as far as they are looked at."""
        base, end = max(effect.base, self.log.log_start_offset), effect.next
        for _ in range(COMPARED_READS_MAX):
            if base >= end:
                return False
            read = self.log.read(base, max_bytes=CHUNK_BYTES, end_offset=end, appended=True)
            if differ(memoryview(b"".join(read.buffers)), data):
                return True
            if read.next_offset <= base:
                break
            base = read.next_offset
        return False

    def _move(self, mark: int) -> None:
        self.mark = self.log.committed_offset = mark
        self.moved(mark)

    def _read(self, sender: int, asked: Read) -> None:
        """Batches for a claimant whose fence this copy has answered."""
        promised = self.core.promised
        if asked.authority != promised or self.core.halted:
            self._tell(sender, Fenced(asked.authority, promised), [], 0)
            return
        answer = ReadAnswer(asked.authority, asked.epoch, asked.base, asked.base)
        try:
            start = self.log.boundary(self.log.log_start_offset)
            if asked.base < start:
                producers = self.log.producers_below(start)
                answer = answer._replace(base=start, next=start)
                self._tell(sender, answer, [producers], len(producers))
                return
            base = max(asked.base, self.log.log_start_offset)
            end_offset = min(asked.next, self.core.durable)
            found = self.log.read(base, max_bytes=CHUNK_BYTES, end_offset=end_offset)
        except PenstockError as error:
            logger.error(
                "%s: a candidate leader cannot read the log further: %s",
                self.log.topic_partition,
                error,
            )
            self._tell(sender, answer, [], 0)
            return
        answer = answer._replace(next=found.next_offset)
        self._tell(sender, answer, list(found.buffers), found.size_bytes)
