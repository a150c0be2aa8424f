"""Replica of a partition that several brokers replicate.

The log and its reads are those of a local partition. `replication/` determines what consumers may
read, and when producers get their response. A read of records that this broker does not know as
committed returns nothing, because a new leader may lack them. Consumers may also read from
followers that are nearer than the leader.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.pause import pause
from penstock.partitions.local import GroupCommits, LocalPartition
from penstock.records import OffsetOutOfRange, OutOfOrderSequence
from penstock.records.appends import NO_APPEND, Done, IdReader, Opening, Outcome
from penstock.replication.messages import BeingMended, NotLeading, TooFewReplicas
from penstock.storage.files.values import Later, OffsetAndTimestamp, Read
from penstock.storage.files.walk import DamagedRecords

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Sequence

    from penstock.records.idempotence import ProducerState
    from penstock.records.transactions import Guard, Marker
    from penstock.replication.service import ReplicatedLog
    from penstock.storage import Lease


class DeletionTimedOut(RetriableError):
    """Deletion of records that replicas did not complete within the client's timeout."""

    code: ClassVar[str] = "request_timed_out"


_LOOK_SECONDS: Final = 0.005
REFUSED_BEFORE_MS: Final = 5_000
"""Milliseconds after a rejected batch in which out-of-order batches are rejected as retriable."""


class ReplicatedPartition(LocalPartition):
    """Replica on this broker of a partition that several brokers replicate."""

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
        """Set ISR and leader epoch from the metadata image; the epoch may have no record yet."""
        self._known_epoch, self.isr = leader_epoch, isr
        self.log_moved()

    def log_moved(self) -> None:
        super().log_moved()
        self.leader_epoch = max(self.leader_epoch, self._known_epoch)
        self.replicated.log_moved()

    def nearer(self, brokers: Collection[int], offset: int) -> int:
        """Return one of `brokers` that is an in-sync replica and has all records below `offset`.

        Return -1 if there is none, or if this broker does not lead.
        """
        leading = self.replicated.leading
        if leading is None or not leading.leads:
            return -1
        near = [id_ for id_ in self.isr if id_ in brokers and leading.has_up_to(id_, offset)]
        return near[0] if near else -1

    def became_durable(self, offset: int) -> bool:
        """Return False: consumers may read no more records than before.

        Records are readable only when a quorum of replicas has them.
        """
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
        ids: IdReader | None = None,
    ) -> None:
        """Append as `Partition.append`.

        With acks=all, `done` is called when the batch is committed, otherwise when it is durable on
        this broker.

        A producer has several requests in flight. If the first one was rejected because the
        partition had no leader or quorum, later ones are out of order. They are rejected as
        retriable, too. An out-of-order error would make librdkafka resend all of them with a new
        epoch, and batches that an earlier leader stored would be duplicated.

        Raises:
            NotLeading: this broker does not lead the partition now, or an earlier batch was
                just rejected.
            TooFewReplicas: too few replicas can acknowledge, and `acks` is -1 (all).
            PenstockError: see `PartitionLog.append`.
        """
        try:
            result = self.replicated.append(
                batches, now_ms=now_ms, acks=acks, lease=lease, done=done, guard=guard,
                opening=opening, ids=ids,
            )  # fmt: skip
        except (NotLeading, TooFewReplicas):
            self._refused_ms = now_ms
            raise
        except OutOfOrderSequence as error:
            if abs(now_ms - self._refused_ms) >= REFUSED_BEFORE_MS:
                raise
            raise NotLeading(
                f"{self.topic_partition}: earlier batches of the producer were rejected: {error}"
            ) from error
        commits = self._commits
        if result is not None:
            commits.appends.append((done, result))
        if not commits.scheduled:
            commits.schedule()

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, now_ms: int
    ) -> Guard | None:
        try:
            self.replicated.appendable()
        except NotLeading:
            self._refused_ms = now_ms
            raise
        return super().begin_verification(producer_id, epoch, sequence, now_ms=now_ms)

    def write_marker(self, marker: Marker, *, now_ms: int, done: Done) -> None:
        """Write a marker as `Partition.write_marker`; call `done` when a quorum has it.

        Raises:
            NotLeading: this broker does not lead the partition now.
            TooFewReplicas: too few replicas can acknowledge.
            PenstockError: see `Transactions.append_marker`.
        """
        result = self.replicated.append(marker, now_ms=now_ms, acks=-1, done=done)
        if result is not None:
            self._commits.appends.append((done, result))
        self._commits.schedule()

    def fence(self, error: PenstockError) -> int:
        """Fence the current leadership as `LocalPartition.fence`; a later leadership is not fenced.

        Raises:
            NotLeading: this broker does not lead the partition, or its log is still incomplete.
            PenstockError: the leadership is fenced already.
        """
        leading = self.replicated.appendable()
        leading.fence = error
        return leading.core.epoch

    def unfence(self) -> None:
        if self.replicated.leading is not None:
            self.replicated.leading.fence = None

    def when_committed(self, done: Done) -> None:
        """Call `done` once everything appended so far is durable here and on a quorum."""

        def durable(outcome: Outcome) -> None:
            leading = self.replicated.leading
            if isinstance(outcome, PenstockError):
                done(outcome)
            elif leading is None or not leading.leads:
                done(NotLeading(f"this broker no longer leads {self.topic_partition}"))
            else:
                leading.answer_at(leading.core.end, done, NO_APPEND)

        super().when_committed(durable)

    async def producers(self) -> list[ProducerState]:
        """Return the idempotent producers, once their appends so far are committed.

        Raises:
            NotLeading: this broker does not lead the partition, or lost the leadership.
            TooFewReplicas: the appends cannot be committed.
        """
        self.check_in_sync()
        committed: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.when_committed(
            lambda outcome: None if committed.done() else committed.set_result(outcome)
        )
        outcome = await committed
        if isinstance(outcome, PenstockError):
            raise outcome
        return await super().producers()

    def check_in_sync(self) -> None:
        """Raise NotLeading or TooFewReplicas if too few replicas can acknowledge."""
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
        """Read as `LocalPartition.read`.

        The result is empty for committed records that this broker does not have, and on a follower
        also for records that it does not know as committed.

        Raises:
            BeingMended: the records are damaged here, and are requested from another replica.
            PenstockError: see `LocalPartition.read`.
        """
        mark = self.high_watermark
        if self.log.state.durable_offset < offset <= mark or (offset > mark and not self.leads):
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
                raise BeingMended(f"{error}; they are requested from another replica") from error
            raise

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the end offset of an epoch as `Partition.end_offset_for_epoch`.

        Records from the time when a partition was diskless are in its first epoch. A consumer that
        read them then has a lower epoch for them. For such an epoch, return it with the end of the
        first one, so that the consumer detects no truncation.

        Raises:
            NotLeading: this broker does not lead the partition, or its log is still incomplete.
        """
        leading = self.replicated.leading
        if leading is None or not leading.may_append(self.replicated.copy.core):
            raise NotLeading.of(self.topic_partition)
        first, *later = leading.core.chain[:2]
        known = self.log.state.epochs.entries
        if first.start == 0 <= epoch < first.epoch and (not known or epoch < known[0][0]):
            return epoch, later[0].start if later else self.log_end_offset
        return super().end_offset_for_epoch(epoch)

    async def delete_records(self, before_offset: int) -> int:
        """Delete records as `Partition.delete_records`; `deleted` waits for disk and replicas.

        Raises:
            NotLeading: this broker does not lead the partition now.
            OffsetOutOfRange: the offset is above the committed offset, or above the durable offset
                of the local log.
            PenstockError: the error of the fence, if one is set.
        """
        leading = self.replicated.leading
        if leading is None or not leading.leads:
            raise NotLeading.of(self.topic_partition)
        if leading.fence is not None:
            raise leading.fence
        end = min(self.high_watermark, self.log.durable_offset)
        if before_offset > end:
            raise OffsetOutOfRange(self.topic_partition, before_offset, self.log_start_offset, end)
        return await super().delete_records(end if before_offset == -1 else before_offset)

    async def deleted(self, offset: int, *, seconds: float) -> None:
        """Wait as `Partition.deleted` until the log and all live replicas begin at `offset`.

        Raises:
            DeletionTimedOut: replicas on other brokers still have records below it.
            StorageError: the start cannot be written.
            NotLeading: another broker leads the partition now.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        await super().deleted(offset, seconds=seconds)
        leading = self.replicated.leading
        while leading is not None and (behind := leading.begins_below(offset)):
            left = until - loop.time()
            if left <= 0:
                raise DeletionTimedOut(
                    f"{self.topic_partition}: brokers {behind} did not delete the records below"
                    f" offset {offset} within {seconds} s; they will delete them later"
                )
            await pause(min(_LOOK_SECONDS, left))
            if leading is not self.replicated.leading or not leading.leads:
                raise NotLeading(f"another broker leads {self.topic_partition} now")

    def check_end(self) -> None:
        """Raise NotLeading if the replica is stopped, or if another broker may lead by now."""
        if self.replicated.copy.stands_still:
            raise NotLeading(f"{self.topic_partition}: the replica on this broker is stopped")
        if self.leads and self._may_be_over:
            raise NotLeading(f"{self.topic_partition}: this broker is cut off from its replicas")

    def position(
        self, spec: int, *, committed: bool
    ) -> OffsetAndTimestamp | Awaitable[OffsetAndTimestamp | None] | None:
        """Return the position as `Partition.position`.

        Raises:
            NotLeading: this broker does not lead the partition, or not yet (KIP-207), or it is cut
                off from other replicas and another broker may lead.
        """
        if not self.leads or self._may_be_over:
            raise NotLeading.of(self.topic_partition)
        return super().position(spec, committed=committed)

    @property
    def _may_be_over(self) -> bool:
        leading = self.replicated.leading
        return leading is not None and leading.may_be_over()

    @property
    def leads(self) -> bool:
        leading = self.replicated.leading
        return leading is not None and leading.leads
