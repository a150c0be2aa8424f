"""A partition that several brokers have copies of, on one of them.

The log and its reads are those of a local partition; what consumers may read, and when producers
are answered, is the replicas' affair (`replication/`). Everything that is not known as committed
here reads as nothing: a leader of before may lack what is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from penstock.partitions.local import GroupCommits, LocalPartition
from penstock.replication.errors import NotLeading
from penstock.storage.values import Read

if TYPE_CHECKING:
    from penstock.records.appends import Done
    from penstock.replication.service import ReplicatedLog
    from penstock.storage import Lease
    from penstock.storage.values import OffsetAndTimestamp


class ReplicatedPartition(LocalPartition):
    """See the module's text; the owner of a log that `replicated` is about."""

    __slots__ = ("replicated",)

    append_takes: ClassVar[str] = "the acknowledgement of the replicas"

    def __init__(self, replicated: ReplicatedLog, commits: GroupCommits) -> None:
        super().__init__(replicated.log, commits)
        self.committed_to(replicated.copy.mark)
        self.replicated = replicated
        replicated.owner = self

    def became_durable(self, offset: int) -> bool:
        """Durable here is not committed."""
        return False

    def append(
        self, batches: memoryview, *, now_ms: int, acks: int, lease: Lease | None, done: Done
    ) -> None:
        """As `Partition.append`: with acks=all it is committed then, else durable on the leader.

        Raises:
            NotLeading: this broker does not lead the partition now.
            TooFewReplicas: fewer can be reached than must acknowledge, and `acks` asks for all.
            PenstockError: as `PartitionLog.append`.
        """
        result = self.replicated.append(batches, now_ms=now_ms, acks=acks, lease=lease, done=done)
        commits = self._commits
        if result is not None:
            commits.appends.append((done, result))
        if not commits.scheduled:
            commits.schedule()

    def check_in_sync(self) -> None:
        """Raise TooFewReplicas if fewer can be reached than must acknowledge."""
        self.replicated.check_reachable()

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool,
        instantly: bool = True,
    ) -> Read:
        """As `LocalPartition.read`; what is committed and not here reads as nothing.

        So does, before this broker leads in fact, all that it does not know as committed.
        """
        mark = self.high_watermark
        if self.log.durable_offset < offset <= mark or (offset > mark and not self._leads):
            return Read([], 0, offset)
        return super().read(
            offset,
            max_bytes=max_bytes,
            end_offset=end_offset,
            at_least_one=at_least_one,
            instantly=instantly,
        )

    def position(self, spec: int, *, committed: bool) -> OffsetAndTimestamp | None:
        """As `Partition.position`.

        Raises:
            NotLeading: this broker does not lead the partition now, or not yet (KIP-207).
        """
        if not self._leads:
            raise NotLeading(f"{self.topic_partition} has no leader here, or not yet")
        return super().position(spec, committed=committed)

    @property
    def _leads(self) -> bool:
        leading = self.replicated.leading
        return leading is not None and leading.leads
