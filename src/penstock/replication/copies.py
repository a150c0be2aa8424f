"""Replica of a partition on this broker: applies the effects of its core to a log.

Effects (`messages.py`) are applied to the log at once and in order, and become durable with the
sync of this turn of the event loop. Responses that depend on them are sent afterwards. If the log
rejects a batch, or a sync fails, the replica restarts as a new incarnation with its durable
records. It does so after a pause, because the failure may repeat.

Consumers can read a replica up to the high watermark that it knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError
from penstock.records import BatchHeader, split_batches
from penstock.replication.chain import Link
from penstock.replication.leadership import CHUNK_BYTES, Leadership
from penstock.replication.messages import (
    Append,
    Compare,
    Fence,
    Fenced,
    Halt,
    Join,
    JoinFirst,
    LogEnd,
    LogStart,
    MarkMoved,
    MoveStart,
    NotAsAnnounced,
    PersistLimbo,
    PersistPromise,
    StartAt,
    TruncateTo,
    Write,
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
from penstock.storage.files.walk import Damage, DamagedRecords
from penstock.storage.log.reading import part_of

if TYPE_CHECKING:
    from penstock.storage import PartitionLog
    from penstock.storage.files.values import Buffer


# Comparison of the batches that two replicas have in the same offset range.
#
# Replicas of a compacted log agree on batch boundaries, and on every record that both have. A
# record that only one replica has is not a difference: the other replica was compacted further. A
# batch that compaction has rewritten has another checksum.


def differ(ours: Readable, theirs: Readable) -> bool:
    """Return whether a batch of one replica overlaps a different batch of the other.

    Both arguments have complete batches, one after another, with rising offsets.

    Raises:
        CorruptBatch: the bytes are not complete batches.
    """
    mine, other = _with_records(ours), _with_records(theirs)
    at = 0
    for header in mine:
        while at < len(other) and other[at].next_offset <= header.base_offset:
            at += 1
        if at == len(other):
            return False
        if other[at].base_offset < header.next_offset and not _same(header, other[at]):
            return True
    return False


def _with_records(batches: Readable) -> list[BatchHeader]:
    return [header for header in split_batches(batches) if not header.is_filler]


def _same(one: BatchHeader, other: BatchHeader) -> bool:
    """Return whether two headers are of the same batch, possibly rewritten by compaction."""
    rewritten = one.is_thinned or other.is_thinned
    return _identity(one) == _identity(other) and (rewritten or one.crc == other.crc)


def _identity(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset, header.next_offset, header.partition_leader_epoch, header.producer_id,
        header.producer_epoch, header.base_sequence,
    )  # fmt: skip


# Repair of damaged committed records with the records of another replica.
#
# Committed records at an offset are the same on every replica. Any broker that has them below a
# known high watermark may therefore send them, leader or not. A follower asks its leader; a leader
# asks its followers, one after another. One range is requested at a time. The answer is verified,
# and replaces the damaged range (`PartitionLog.mend`). Until then, reads of that range are rejected
# as retriable.
#
# Source: `docs/decisions/0047-damaged-records-are-fetched-from-a-replica.md`.


logger = logging.getLogger(__name__)

ANSWER_MS: Final = 3_000
"""Milliseconds after which another replica is asked."""


class Mending:
    """Repair of damaged ranges between replicas: requests of one log, and answers to other logs.

    Belongs to the event loop.
    """

    __slots__ = ("_asked", "_asked_ms", "_damage", "_log", "_tell")

    def __init__(
        self, log: PartitionLog, tell: Callable[[int, Said, list[Buffer], int], None]
    ) -> None:
        self._log = log
        self._tell = tell
        self._damage: Damage | None = None
        self._asked: list[int] = []
        """Brokers that were asked for the range; the answer of the last one is awaited."""
        self._asked_ms = 0

    def ask(self, damage: Damage, brokers: Sequence[int], mark: int, now_ms: int) -> bool:
        """Request a damaged range from one of these brokers; return False if none can send it.

        Records above the high watermark `mark` cannot be requested, because replicas may differ.
        """
        if damage.next_offset > mark or not brokers:
            return False
        known = self._damage
        if known is None or known[:3] != damage[:3] or known.first_offset != damage.first_offset:
            if known is not None and now_ms - self._asked_ms < ANSWER_MS:
                return True  # one range at a time
            self._damage, self._asked = damage, []
        elif self._asked and now_ms - self._asked_ms < ANSWER_MS:
            return True
        following = [broker for broker in brokers if broker not in self._asked]
        if not following:
            self._asked = []
            following = list(brokers)
        self._asked.append(following[0])
        self._asked_ms = now_ms
        self._tell(following[0], AskCopy(damage.first_offset, damage.next_offset), [], 0)
        return True

    def answer(self, sender: int, asked: AskCopy, mark: int) -> None:
        """Send records that another broker needs to repair its log, as far as they are committed:
        below the high watermark `mark`."""
        answer, buffers, size_bytes = CopyAnswer(asked.base, asked.base), list["Buffer"](), 0
        end = min(asked.next, mark)
        try:
            if self._log.log_start_offset <= asked.base < end:
                read = self._log.read(asked.base, max_bytes=CHUNK_BYTES, end_offset=end)
                answer = answer._replace(next=read.next_offset)
                buffers, size_bytes = list(read.buffers), read.size_bytes
        except PenstockError as error:
            logger.error(
                "%s: cannot send records to repair another replica: %s",
                self._log.topic_partition,
                error,
            )
        self._tell(sender, answer, buffers, size_bytes)

    def heard(self, answer: CopyAnswer, data: memoryview, now_ms: int) -> bool:
        """Handle an answer, or a part of it; return whether a range was repaired.

        Raises:
            StorageError: the range cannot be written.
        """
        damage, broker = self._damage, self._asked[-1:]
        if damage is None or answer.base != damage.first_offset or not broker:
            return False
        self._asked_ms = now_ms - ANSWER_MS
        if answer.next <= answer.base or not self._log.mend(damage, data):
            return False
        self._damage = None
        rest = self._log.damage_in(answer.next, damage.next_offset)
        if rest is not None:
            self.ask(rest, broker, rest.next_offset, now_ms)
        return True


_SPEAKERS_KEPT: Final = 8
COMPARED_READS_MAX: Final = 4
"""Maximum number of log reads for the comparison of one received range. The log may have many more
bytes than were received, if the leader's log was compacted."""
_NOTHING: Final = memoryview(b"")
HEARD_BY_COPIES: Final = (Append, Fence, Join, LogStart, LogEnd, Read, AskCopy, CopyAnswer)
"""Messages that replicas handle; all other messages are for the leader or a claimant."""

Tell = Callable[[int, Said, "list[Buffer]", int], None]
"""Sends a message to a broker: broker id, message, its data, and the size of the data in bytes."""


def disk_of(log: PartitionLog) -> Disk:
    """Return the state of a log that was just opened and is completely durable.

    If the end of the log is lost, truncate it to its last intact batch, and record the loss.
    """
    log.load()
    if log.state.damage is not None:
        log.repair.end_at_damage()
        log.replica.note_loss()
    return Disk(
        promised=max(log.replica.promised, 0),
        base=log.log_start_offset,
        end=log.log_end_offset,
        history=tuple(
            Link(*entry) for entry in log.state.epochs.entries if entry[1] < log.log_end_offset
        ),
        limbo=max(log.replica.limbo, 0),
    )


class Copy:
    """Replica of one partition on this broker: a core (`Replica`), and the log that it applies to.

    Belongs to the event loop.
    """

    __slots__ = (
        "_former", "_new_life", "_speakers", "_tell", "broken", "core", "failed", "log",
        "mark", "mending", "moved", "resting", "silent",
    )  # fmt: skip

    def __init__(
        self,
        log: PartitionLog,
        *,
        new_life: Callable[[], int],
        tell: Tell,
        moved: Callable[[int], None],
    ) -> None:
        """Create a shell. `new_life` returns rising incarnations; `moved` is called with each new
        high watermark."""
        self.log = log
        self.moved = moved
        self.mark = 0
        self.failed = False
        """Whether core and log differ after a failure; the replica restarts after the next sync."""
        self.silent = False
        """Whether messages are ignored until the control plane has reported which epochs this
        replica may have promised."""
        self.resting = False
        """Whether messages are ignored during a pause after a failure."""
        self.broken = False
        """Whether the disk has failed; the replica is offline until the broker is restarted."""
        self._tell = tell
        self.mending = Mending(log, tell)
        self._new_life = new_life
        self._speakers: dict[int, int] = {}
        self.core = self._former = Replica(new_life(), disk_of(log))
        log.state.committed_offset = 0

    @property
    def unsynced(self) -> bool:
        """Whether a sync is needed, for unsynced changes or before a restart of the replica."""
        if self.broken:
            return False
        return self.core.writes != self.core.synced_writes or self.failed

    @property
    def leader(self) -> tuple[int, int] | None:
        """Leader and its epoch according to the newest open stream; None without one."""
        core = self.core
        broker_id = self._speakers.get(core.authority)
        opened = core.authority and core.authority == core.epoch
        return (broker_id, core.epoch) if opened and broker_id is not None else None

    @property
    def stands_still(self) -> bool:
        """Whether the replica is offline until the broker is restarted."""
        return self.broken or self.core.halted

    @property
    def trouble(self) -> str:
        """Reason why this replica is offline or may lack records; empty without one."""
        core = self.core
        if self.broken:
            return "the disk has failed: the replica is offline until the broker is restarted"
        if core.halted:
            return f"its records below offset {core.end} differ from the leader's: it is offline"
        if self.silent:
            return "the control plane has not reported which epochs it may have promised"
        if self.failed or self.resting:
            return "its log rejected a batch, or a sync failed: it restarts with durable records"
        if core.limbo and core.limbo >= core.epoch:
            return "it may lack records that it acknowledged, until it has its leader's whole log"
        return ""

    def may_lack(self, opened: int) -> str | None:
        """Return why this replica may lack promises or acknowledged records; None if it cannot.

        `opened` is an opened epoch of the partition. Epoch 0, with which a topic is created, has no
        leader and no promises.
        """
        replica = self.log.replica
        if replica.lost is not None:
            return replica.lost
        new = opened > 0 > replica.promised
        return "the replica is new on this broker, or its disk was lost" if new else None

    def lose(self, *, reserved: int, opened: int) -> None:
        """Put the replica, which may lack durable data, into limbo, and handle messages again.

        The control plane reports the highest epoch that the replica may have promised, `reserved`,
        and the highest one whose records it may have acknowledged, `opened`.
        """
        self.silent = False
        self._perform(self.core.lose(reserved=reserved, opened=opened))

    def heard(self, sender: int, message: Said, data: memoryview, now_ms: int) -> None:
        """Handle a message of the leader, of a claimant, or about a repair.

        Raises:
            PenstockError: the log rejects the received data; the replica restarts.
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
        """Request the damaged records of a read error from another replica.

        Return False if the error is another one, or if no replica can send the records. `leading`
        is this broker's leadership of the partition, also a former one, or None.
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
        """Record an append that this broker has made to the log as the leader.

        The core then counts it like an append that a follower has received.
        """
        for effect in self.core.append(own):
            if isinstance(effect, MarkMoved):
                self._move(effect.mark)

    def synced(self, token: Sync) -> None:
        """Perform the effects of a completed sync, which `token` identifies."""
        self._perform(self.core.synced(token))

    def begin_anew(self) -> None:
        """Restart the replica with the content of its log, all of which is durable.

        Messages are ignored until `wake`.
        """
        self.failed, self.resting, self._former = False, True, self.core
        self.core = Replica(self._new_life(), disk_of(self.log))

    def wake(self) -> None:
        """End the pause after a restart, and ask the leader for a new stream."""
        self.resting = False
        former = self._former
        leader = self._speakers.get(former.authority)
        if leader is not None:  # it assumes that sent batches were written
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
                    "%s: this replica differs from its leader below offset %d", where, effect.offset
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
            log.replica.promise(effect.promised)
        elif isinstance(effect, PersistLimbo):
            log.replica.set_limbo(effect.limbo or -1)
        elif isinstance(effect, TruncateTo):
            self._cut(effect.end)
        elif isinstance(effect, StartAt):
            logger.info(
                "%s: restarting this replica's log at offset %d", log.topic_partition, effect.base
            )
            log.replica.start_at(effect.base, producers=bytes(data), floor=self.mark)
        else:
            log.state.move_start(effect.base)

    def _cut(self, end: int) -> None:
        """Truncate the log to `end`, where it diverges from the chain.

        If committed records are above `end`, an unclean election has discarded them.
        """
        if end < self.mark:
            logger.error(
                "%s: truncating committed records from offset %d up to %d, which an unclean"
                " election discarded", self.log.topic_partition, end, self.mark,
            )  # fmt: skip
            self._move(end)
        self.log.replica.truncate(end, floor=self.mark)

    def _write(self, effect: Write, message: Append | None, data: memoryview, now_ms: int) -> None:
        if message is not None and effect.base > message.base:
            data, _ = part_of(data, effect.base, len(data), effect.next, at_least_one=True)
        if effect.base != self.log.log_end_offset:
            raise NotAsAnnounced(
                f"{self.log.topic_partition}: received batches from offset {effect.base} on, but"
                f" the log ends at offset {self.log.log_end_offset}"
            )
        end = self.log.replica.append(data, now_ms=now_ms, epochs=self.core.chain)
        if end != effect.next:
            self.log.replica.truncate(effect.base, floor=self.mark)
            raise NotAsAnnounced(
                f"{self.log.topic_partition}: received batches that end at offset {end}, but offset"
                f" {effect.next} was announced"
            )

    def _differs(self, effect: Compare, data: memoryview) -> bool:
        """Return whether the log's batches differ from received ones.

        The comparison ends after `COMPARED_READS_MAX` reads of the log.
        """
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
        self.mark = self.log.state.committed_offset = mark
        self.moved(mark)

    def _read(self, sender: int, asked: Read) -> None:
        """Send batches to a claimant whose fence this replica has answered."""
        promised = self.core.promised
        if asked.authority != promised or self.core.halted:
            self._tell(sender, Fenced(asked.authority, promised), [], 0)
            return
        answer = ReadAnswer(asked.authority, asked.epoch, asked.base, asked.base)
        try:
            start = self.log.replica.boundary(self.log.log_start_offset)
            if asked.base < start:
                producers = self.log.replica.producers_below(start)
                answer = answer._replace(base=start, next=start)
                self._tell(sender, answer, [producers], len(producers))
                return
            base = max(asked.base, self.log.log_start_offset)
            end_offset = min(asked.next, self.core.durable)
            found = self.log.read(base, max_bytes=CHUNK_BYTES, end_offset=end_offset)
        except PenstockError as error:
            logger.error(
                "%s: cannot send records to a candidate leader: %s",
                self.log.topic_partition,
                error,
            )
            self._tell(sender, answer, [], 0)
            return
        answer = answer._replace(next=found.next_offset)
        self._tell(sender, answer, list(found.buffers), found.size_bytes)
