"""Port of a partition for request handlers, independent of its storage.

Implementations: `LocalPartition` over a log on this broker's disk, `diskless.DisklessPartition`
over objects of a store. One contract suite tests both (`tests/partitions`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from penstock.records.appends import Opening

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.base.ids import TopicPartition
    from penstock.records.appends import Done
    from penstock.records.extents import Extent
    from penstock.records.idempotence import ProducerState
    from penstock.records.transactions import AbortedTransaction, Guard, Marker
    from penstock.storage import Lease, LogConfig, Read
    from penstock.storage.values import Later, OffsetAndTimestamp

LookUp = Callable[[Sequence[Any]], Awaitable[None]]
"""Updates the start and end offsets of partitions; raises PenstockError."""


class Partition(Protocol):
    """Partition of a topic, as request handlers use it; belongs to the event loop."""

    append_takes: ClassVar[str]
    """Event that completes an append, as used in sentences."""

    everywhere: ClassVar[bool]
    """Whether every broker serves it, so that consumers may be redirected to a nearer one."""

    @property
    def look_up(self) -> LookUp | None:
        """Lookup of newer start and end offsets; None if the partition is always current."""
        ...

    @property
    def store_url(self) -> str:
        """URL of the object store with its records; empty if all are in the broker's directory."""
        ...

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def config(self) -> LogConfig: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int:
        """End offset for consumers; -1 while unknown."""
        ...

    @property
    def last_stable_offset(self) -> int:
        """Offset below which all transactions are decided."""
        ...

    @property
    def log_end_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def segment_count(self) -> int: ...

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
        """Validate and append one whole batch, as a produce request holds per partition.

        A guard makes it part of a transaction. `opening` states whether this call may decompress
        batches that take long. `done` is called once, after this has returned: when the guarantee
        of `acks` holds, or with an error. Until then `batches` must not change; with a lease, its
        bytes are used until it is released.

        Raises:
            CorruptBatch, InvalidRecord, TransactionalBatch, UnsupportedCodec, RecordTooLarge,
            BatchesTooLarge, InvalidTimestamp: the batches cannot be stored.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState: the producer's state
            rejects them.
            NeedsOpening: with `Opening.BESIDE`; nothing was appended.
            PenstockError: the partition accepts no appends now; nothing was appended.
        """
        ...

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, now_ms: int
    ) -> Guard | None:
        """Return the guard for a transaction's first batch; None if the transaction is open.

        A guard is valid after its coordinator verified the transaction, until a marker is written.

        Raises:
            PenstockError: the partition accepts no transactional batches now.
        """
        ...

    def write_marker(self, marker: Marker, *, now_ms: int, done: Done) -> None:
        """Write the marker that ends a producer's transaction, as its coordinator decided.

        `done` is called once, after this has returned: when the marker is committed, or with an
        error, which may be one listed here. A repeated marker is harmless. Batches of older epochs
        are rejected afterwards.

        Raises:
            InvalidProducerEpoch, TransactionCoordinatorFenced: the partition has newer epochs.
            PenstockError: the partition accepts no appends now; nothing was written.
        """
        ...

    def aborted(self, start: int, end: int) -> Sequence[AbortedTransaction] | Later:
        """Return the aborted transactions in [start, end), by first offset; or `Later`.

        Complete if `end` is not above the last stable offset.

        Raises:
            PenstockError: the transactions are not available now.
        """
        ...

    async def all_aborted(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Return the same as `aborted`, after loading it; raises PenstockError."""
        ...

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool,
        instantly: bool = True,
    ) -> Read | Later:
        """Return whole batches from `offset` up to `end_offset`, or how to load them.

        Returns up to `max_bytes`; with `at_least_one` the first batch even if it is larger. Empty
        at `end_offset`. Without `instantly`, data that would be copied is loaded later.

        Raises:
            OffsetOutOfRange: `offset` is below the start, or above the end.
            PenstockError: the batches cannot be read now.
        """
        ...

    def position(
        self, spec: int, *, committed: bool
    ) -> OffsetAndTimestamp | Awaitable[OffsetAndTimestamp | None] | None:
        """Return the position of a timestamp, or a spec of `records.positions`; None if unmatched.

        `committed` ignores records above the last stable offset. The timestamp is -1 except for
        records; the epoch is that of the offset, for the end that of the leader. Start and end are
        those that the partition has; callers use `look_up` before.

        Raises:
            PenstockError: the position cannot be looked up now.
        """
        ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch not above `epoch` and its end offset; (-1, -1) if unknown."""
        ...

    def check_end(self) -> None:
        """Raise NotLeading if another broker may lead, so that the readable end is outdated."""
        ...

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote an offset; -1 if unknown."""
        ...

    async def extents(self, start: int, end: int, *, limit: int) -> Sequence[Extent]:
        """Return extents of whole batches of [start, min(end, high watermark)), by offset.

        Includes all extents in files, and at most `limit` extents in objects.

        Raises:
            PenstockError: the lookup failed, or the records are damaged.
        """
        ...

    async def deleted(self, offset: int, *, seconds: float) -> None:
        """Wait until no replica keeps records below an offset, even after a crash.

        The offset is one that `delete_records` returned. Replicas on other brokers have `seconds`
        to delete; with 0, only completed deletions count.

        Raises:
            DeletionTimedOut: replicas on other brokers still have records after that time.
            StorageError: the start cannot be written.
            NotLeading: another broker leads the partition by now.
        """
        ...

    async def delete_records(self, before_offset: int) -> int:
        """Move the start up to an offset, for -1 to the high watermark; return the new start.

        The new start is durable when `deleted` has returned. Raises an error of the code
        `offset_out_of_range` for an offset beyond the end.
        """
        ...

    async def producers(self) -> list[ProducerState]:
        """Return the idempotent producers that the partition remembers."""
        ...
