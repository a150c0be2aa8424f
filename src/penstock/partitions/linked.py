"""Partition of a linked topic: a copy of a partition of another cluster, for consumers only.

Its log has the same batches at the same offsets and with the same leader epochs. So transactions,
sequences of producers and committed offsets of the source remain valid when the link ends. The link
appends as a follower does (`storage/log/replica.py`); everything else that writes is rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.partitions.local import LocalPartition

if TYPE_CHECKING:
    from penstock.partitions.local import GroupCommits
    from penstock.records.appends import Done
    from penstock.records.transactions import Guard, Marker
    from penstock.storage import PartitionLog

_FLOOR: Final = 0


class LinkedTopic(InvalidError):
    """Write of a client to a topic that follows a topic of another cluster."""

    code: ClassVar[str] = "policy_violation"

    def __init__(self, where: object) -> None:
        super().__init__(
            f"{where} is linked to another cluster and rejects writes: write to the source, or end"
            " the link with `penstock link promote`"
        )


class LinkedPartition(LocalPartition):
    """Partition that only its link writes. Clients see the topic's leader epoch, `serve`."""

    __slots__ = ("_served_epoch",)

    def __init__(self, log: PartitionLog, commits: GroupCommits) -> None:
        self._served_epoch = 0
        super().__init__(log, commits)

    def serve(self, epoch: int) -> None:
        """Set the leader epoch that clients see, at least that of the source's newest batch."""
        self._served_epoch = epoch
        self.log_moved()

    def log_moved(self) -> None:
        super().log_moved()
        self.leader_epoch = self._served_epoch

    def append(self, *_: Any, **__: Any) -> None:
        raise LinkedTopic(self.topic_partition)

    def begin_verification(self, *_: Any, **__: Any) -> Guard | None:
        raise LinkedTopic(self.topic_partition)

    def write_marker(self, marker: Marker, *, now_ms: int, done: Done) -> None:
        """Do nothing: no transaction of this cluster has a batch in the partition."""
        self.when_committed(done)

    async def delete_records(self, before_offset: int) -> int:
        raise LinkedTopic(self.topic_partition)

    @property
    def next_position(self) -> tuple[int, int]:
        """Next offset to fetch from the source, and the leader epoch of the batch before it."""
        self.log.load()
        end = self.log.log_end_offset
        return end, self.log.latest_epoch_at(end - 1) if end else -1

    def append_linked(self, batches: memoryview, *, now_ms: int) -> None:
        """Append the source's batches unchanged.

        Raises:
            PenstockError: as `LogReplica.append`.
        """
        self.log.replica.append(batches, now_ms=now_ms)
        self.when_committed(_fetched_again)

    def truncate_to(self, offset: int) -> None:
        """Remove the batches from `offset` on, which the source does not have.

        Raises:
            PenstockError: as `LogReplica.truncate`.
        """
        end = self.log.replica.truncate(max(offset, self.log.log_start_offset), floor=_FLOOR)
        self.committed_to(min(self.high_watermark, end))

    def start_at(self, offset: int) -> None:
        """Discard the log up to `offset`, the source's log start offset.

        Raises:
            PenstockError: the log cannot be changed.
        """
        log = self.log
        if offset > log.log_end_offset:
            log.replica.start_at(offset, producers=b"", floor=_FLOOR)
            self.committed_to(offset)
        elif offset > log.log_start_offset:
            log.delete_records(min(offset, log.durable_offset), _fetched_again)


def _fetched_again(result: object) -> None:
    """Do nothing: the next fetch repeats a change of the log that has failed."""
