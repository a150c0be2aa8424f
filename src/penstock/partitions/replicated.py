"""A partition that several brokers have copies of, on one of them.

The log and its reads are those of a local partition; what consumers may read, and when producers
are answered, is the replicas' affair (`replication/`). Everything that is not known as committed
here reads as nothing: a leader of before may lack what is. Copies that follow are read as well,
by consumers that are nearer to them than to the leader.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.partitions.errors import DeletionTimedOut
from penstock.partitions.local import GroupCommits, LocalPartition
from penstock.records import OffsetOutOfRange, OutOfOrderSequence
from penstock.records.appends import NO_APPEND, Opening
from penstock.replication.errors import NotLeading, TooFewReplicas
from penstock.replication.mending import BeingMended
from penstock.storage.damage import DamagedRecords
from penstock.storage.values import Read

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Sequence

    from penstock.records.appends import Done, Outcome
    from penstock.records.idempotence import ProducerState
    from penstock.records.transactions import Guard, Marker
    from penstock.replication.service import ReplicatedLog
    from penstock.storage import Lease
    from penstock.storage.values import Later, OffsetAndTimestamp

_LOOK_SECONDS: Final = 0.005
REFUSED_BEFORE_MS: Final = 5_000
"""How long a producer that has been refused may take to send the same again, before what follows
is told that it is out of order."""


class ReplicatedPartition(LocalPartition):
    """See the module's text; the owner of a log that `replicated` is about."""

    __slots__ = ("_known_epoch", "_refused_ms", "isr", "replicated")

    append_takes: ClassVar[str] = "the acknowledgement of the replicas"

    def __init__(self, replicated: ReplicatedLog, commits: GroupCommits) -> None:
        self._known_epoch = -1
        self._refused_ms = -REFUSED_BEFORE_MS
        self.isr: Sequence[int] = ()
        self.replicated = replicated
        super().__init__(replicated.log, commits)
        self.committed_to(replicated.copy.mark)
        replicated.owner = self

    def image_says(self, leader_epoch: int, isr: Sequence[int]) -> None:
        """The epoch that clients know, of which there may be no record yet, and who is in sync."""
        self._known_epoch, self.isr = leader_epoch, isr
        self.log_moved()

    def log_moved(self) -> None:
        """As `LocalPartition.log_moved`."""
        super().log_moved()
        self.leader_epoch = max(self.leader_epoch, self._known_epoch)
        self.replicated.log_moved()

    def nearer(self, brokers: Collection[int], offset: int) -> int:
        """The in-sync replica among these brokers that has all below an offset; -1 for none.

        Only the leader knows.
        """
        leading = self.replicated.leading
        if leading is None or not leading.leads:
            return -1
        near = [one for one in self.isr if one in brokers and leading.has_up_to(one, offset)]
        return near[0] if near else -1

    def became_durable(self, offset: int) -> bool:
        """Durable here is not committed."""
        return False

    def append(
        self,
        batches: memoryview,
        *,
        now_ms: int,
        acks: int,
        lease: Lease | None,
        done: Done,
        guard: Guard | None = None,
        opening: Opening = Opening.HERE,
    ) -> None:
        """As `Partition.append`: with acks=all it is committed then, else durable on the leader.

        A producer has several requests on their way. If the first is refused and the partition
        has its leader or its replicas before the next, that one is refused as well: told that it
        is out of order, librdkafka would send all of them with a new epoch, and what an earlier
        leader has of the first would be there twice.

        Raises:
            NotLeading: this broker does not lead the partition now, or what comes before was
                refused just now.
            TooFewReplicas: fewer can be reached than must acknowledge, and `acks` asks for all.
            PenstockError: as `PartitionLog.append`.
        """
        try:
            result = self.replicated.append(
                batches, now_ms=now_ms, acks=acks, lease=lease, done=done, guard=guard,
                opening=opening,
            )  # fmt: skip
        except (NotLeading, TooFewReplicas):
            self._refused_ms = now_ms
            raise
        except OutOfOrderSequence as error:
            if abs(now_ms - self._refused_ms) >= REFUSED_BEFORE_MS:
                raise
            raise NotLeading(
                f"{self.topic_partition}: batches were refused just now, and come first: {error}"
            ) from error
        commits = self._commits
        if result is not None:
            commits.appends.append((done, result))
        if not commits.scheduled:
            commits.schedule()

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, now_ms: int
    ) -> Guard | None:
        """As `Partition.begin_verification`; raises NotLeading, too."""
        try:
            self.replicated.appendable()
        except NotLeading:
            self._refused_ms = now_ms
            raise
        return super().begin_verification(producer_id, epoch, sequence, now_ms=now_ms)

    def write_marker(self, marker: Marker, *, now_ms: int, done: Done) -> None:
        """As `Partition.write_marker`: a quorum has it then.

        Raises:
            NotLeading: this broker does not lead the partition now.
            TooFewReplicas: fewer can be reached than must acknowledge.
            PenstockError: as `TransactionalLog.append_marker`.
        """
        result = self.replicated.append(marker, now_ms=now_ms, acks=-1, done=done)
        if result is not None:
            self._commits.appends.append((done, result))
        self._commits.schedule()

    def fence(self, error: PenstockError) -> int:
        """As `LocalPartition.fence`: of this leadership, as the next one goes by its own.

        Raises:
            NotLeading: this broker does not lead the partition now, or not yet.
            PenstockError: it is fenced already.
        """
        leading = self.replicated.appendable()
        leading.fence = error
        return leading.core.epoch

    def unfence(self) -> None:
        """As `LocalPartition.unfence`, if the leadership that was fenced goes on."""
        if self.replicated.leading is not None:
            self.replicated.leading.fence = None

    def when_settled(self, done: Done) -> None:
        """As `LocalPartition.when_settled`: durable here and on a quorum."""

        def durable(outcome: Outcome) -> None:
            leading = self.replicated.leading
            if isinstance(outcome, PenstockError):
                done(outcome)
            elif leading is None or not leading.leads:
                done(NotLeading(f"{self.topic_partition} has no leader here any more"))
            else:
                leading.answer_at(leading.core.end, done, NO_APPEND)

        super().when_settled(durable)

    async def producers(self) -> list[ProducerState]:
        """As `Partition.producers`, once what they have appended until now is committed.

        Raises:
            NotLeading: this broker does not lead the partition now, or not any more.
            TooFewReplicas: it cannot be committed.
        """
        self.check_in_sync()
        settled: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.when_settled(lambda outcome: None if settled.done() else settled.set_result(outcome))
        outcome = await settled
        if isinstance(outcome, PenstockError):
            raise outcome
        return await super().producers()

    def check_in_sync(self) -> None:
        """Raise NotLeading or TooFewReplicas if fewer can be reached than must acknowledge."""
        self.replicated.check_reachable()

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool,
        instantly: bool = True,
    ) -> Read | Later:
        """As `LocalPartition.read`; what is committed and not here reads as nothing.

        So does all that a broker does not know as committed which does not lead, or not yet.

        Raises:
            BeingMended: it is damaged here, and another replica is asked for it.
            PenstockError: as `LocalPartition.read`.
        """
        mark = self.high_watermark
        if self.log.durable_offset < offset <= mark or (offset > mark and not self.leads):
            return Read([], 0, offset)
        try:
            return super().read(
                offset,
                max_bytes=max_bytes,
                end_offset=end_offset,
                at_least_one=at_least_one,
                instantly=instantly,
            )
        except DamagedRecords as error:
            if self.replicated.mend(error):
                raise BeingMended(f"{error}; another replica is asked for them") from error
            raise

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """As `Partition.end_offset_for_epoch`.

        Of an epoch below the first one there was, the answer is where that one ends: when the
        partition got epochs, all that it had was taken over into it. So nothing was cut off of what
        was read before, while it was diskless.

        Raises:
            NotLeading: this broker does not lead the partition now, or lacks some of it still: its
                log ends where it happens to.
        """
        leading = self.replicated.leading
        if leading is None or not leading.may_append(self.replicated.copy.core):
            raise NotLeading(f"{self.topic_partition} has no leader here, or not yet")
        first, *later = leading.core.chain[:2]
        known = self.log.epochs.entries
        if first.start == 0 <= epoch < first.epoch and (not known or epoch < known[0][0]):
            return epoch, later[0].start if later else self.log_end_offset
        return super().end_offset_for_epoch(epoch)

    async def delete_records(self, before_offset: int) -> int:
        """As `Partition.delete_records`; disk and copies follow: see `deleted`.

        Raises:
            NotLeading: this broker does not lead the partition now.
            OffsetOutOfRange: nothing above the commit mark is deleted, nor what is not here yet.
            PenstockError: the fence, where there is one.
        """
        leading = self.replicated.leading
        if leading is None or not leading.leads:
            raise NotLeading(f"{self.topic_partition} has no leader here, or not yet")
        if leading.fence is not None:
            raise leading.fence
        end = min(self.high_watermark, self.log.durable_offset)
        if before_offset > end:
            raise OffsetOutOfRange(self.topic_partition, before_offset, self.log_start_offset, end)
        return await super().delete_records(end if before_offset == -1 else before_offset)

    async def deleted(self, offset: int, *, seconds: float) -> None:
        """Wait as `Partition.deleted`: the next leader must not have the records again.

        Raises:
            DeletionTimedOut: copies of other brokers still have some of it after that time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        await super().deleted(offset, seconds=seconds)
        leading = self.replicated.leading
        while leading is not None and (behind := leading.begins_below(offset)):
            left = until - loop.time()
            if left <= 0:
                raise DeletionTimedOut(
                    f"{self.topic_partition}: brokers {behind} have not deleted the records below"
                    f" offset {offset} in time; they delete them later"
                )
            await pause(min(_LOOK_SECONDS, left))
            if leading is not self.replicated.leading or not leading.leads:
                raise NotLeading(f"{self.topic_partition} is led by another broker by now")

    def check_end(self) -> None:
        """As `Partition.check_end`; nor does what takes no part any more hear of anything."""
        if self.replicated.copy.stands_still:
            raise NotLeading(f"{self.topic_partition}: the copy here takes no part any more")
        if self.leads and self._may_be_over:
            raise NotLeading(f"{self.topic_partition}: this broker is cut off from its replicas")

    def position(
        self, spec: int, *, committed: bool
    ) -> OffsetAndTimestamp | Awaitable[OffsetAndTimestamp | None] | None:
        """As `Partition.position`.

        Raises:
            NotLeading: this broker does not lead the partition now, or not yet (KIP-207); or
                another one may by now, as this one is cut off.
        """
        if not self.leads or self._may_be_over:
            raise NotLeading(f"{self.topic_partition} has no leader here, or not yet")
        return super().position(spec, committed=committed)

    @property
    def _may_be_over(self) -> bool:
        leading = self.replicated.leading
        return leading is not None and leading.may_be_over()

    @property
    def leads(self) -> bool:
        leading = self.replicated.leading
        return leading is not None and leading.leads
