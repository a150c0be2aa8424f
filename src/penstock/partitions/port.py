"""Interface of a partition for request handlers, independent of its storage.

`LocalPartition` implements it over a log on this broker's disk, `diskless.DisklessPartition` over
objects in an object store. One contract suite tests both (`tests/partitions`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from penstock.records.appends import Done, IdReader, Opening

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.base.ids import TopicPartition
    from penstock.records.extents import Extent
    from penstock.records.idempotence import ProducerState
    from penstock.records.transactions import AbortedTransaction, Guard, Marker
    from penstock.storage import Lease, LogConfig, Read
    from penstock.storage.files.values import Later, OffsetAndTimestamp


LookUp = Callable[[Sequence[Any]], Awaitable[None]]
"""Updates the start and end offsets of partitions; raises PenstockError."""


class Partition(Protocol):
    """Partition of a topic, as request handlers use it; belongs to the event loop."""

    append_takes: ClassVar[str]
    """Event that completes an append, as a phrase for messages, for example "the sync"."""

    everywhere: ClassVar[bool]
    """Whether every broker serves the partition, so that consumers may use the nearest one."""

    @property
    def look_up(self) -> LookUp | None:
        """Lookup of newer start and end offsets; None if the partition is always current."""
        ...

    @property
    def store_url(self) -> str:
        """URL of the object store that has records of the partition; empty without one."""
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
        ids: IdReader | None = None,
    ) -> None:
        """Validate and append the batch that a produce request has for this partition.

        With a guard the batch is part of a transaction. `opening` states whether this call may
        perform a validation that takes long. `ids` reads and checks the schema ids of the records.
        `done` is called once, after this call has returned: when the guarantee of `acks` holds, or
        with an error. Until then `batches` must not change. With a lease, the batch stays in its
        buffer until the lease is released.

        Raises:
            CorruptBatch, InvalidRecord, TransactionalBatch, UnsupportedCodec, RecordTooLarge,
            BatchesTooLarge, InvalidTimestamp: the batches cannot be stored.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState: the producer's state
            rejects them.
            NeedsOpening: validation takes long, and `opening` is `Opening.BESIDE`; nothing was
            appended.
            PenstockError: `ids` rejects the batch.
            PenstockError: the partition accepts no appends now; nothing was appended.
        """
        ...

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, now_ms: int
    ) -> Guard | None:
        """Return the guard for a transaction's first batch; None if the transaction is open.

        The caller passes the guard to `append` once the coordinator has verified the transaction.
        A marker invalidates the guard.

        Raises:
            PenstockError: the partition accepts no transactional batches now.
        """
        ...

    def write_marker(self, marker: Marker, *, now_ms: int, done: Done) -> None:
        """Write the marker that ends a producer's transaction, as its coordinator decided.

        `done` is called once, after this call has returned: when the marker is committed, or with
        an error, possibly one of those below. A repeated marker is harmless. Afterwards, batches
        of older producer epochs are rejected.

        Raises:
            InvalidProducerEpoch, TransactionCoordinatorFenced: the partition has newer epochs.
            PenstockError: the partition accepts no appends now; nothing was written.
        """
        ...

    def aborted(self, start: int, end: int) -> Sequence[AbortedTransaction] | Later:
        """Return the aborted transactions in [start, end), by first offset.

        If they must be loaded first, return a `Later`. The list is complete if `end` is not above
        the last stable offset.

        Raises:
            PenstockError: the transactions are not available now.
        """
        ...

    async def all_aborted(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Load the aborted transactions if necessary, and return them; raises PenstockError."""
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
        """Return complete batches from `offset` up to `end_offset`, or a `Later` to load them.

        Returns up to `max_bytes`; with `at_least_one` the first batch even if it is larger. At
        `end_offset` the result is empty. Without `instantly`, a read that would copy data returns a
        `Later`.

        Raises:
            OffsetOutOfRange: `offset` is below the start, or above the end.
            PenstockError: the batches cannot be read now.
        """
        ...

    def position(
        self, spec: int, *, committed: bool
    ) -> OffsetAndTimestamp | Awaitable[OffsetAndTimestamp | None] | None:
        """Return the position of a timestamp or of a special value in `records.positions`.

        Returns None if no record matches. With `committed`, records above the last stable offset
        are ignored. The result has the timestamp of the record, or -1 for a start or end offset. It
        has the epoch of the offset or, for the end offset, of the leader. Start and end offset may
        be outdated, so the caller uses `look_up` before.

        Raises:
            PenstockError: the position cannot be looked up now.
        """
        ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch not above `epoch` and its end offset; (-1, -1) if unknown."""
        ...

    def check_end(self) -> None:
        """Raise NotLeading if another broker may lead and the readable end may be outdated."""
        ...

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote an offset; -1 if unknown."""
        ...

    async def extents(self, start: int, end: int, *, limit: int) -> Sequence[Extent]:
        """Return extents of the batches in [start, min(end, high watermark)), by offset.

        The result has all extents in files, and at most `limit` extents in objects.

        Raises:
            PenstockError: the lookup failed, or the records are damaged.
        """
        ...

    async def deleted(self, offset: int, *, seconds: float) -> None:
        """Wait until no replica has records below `offset`, even after a crash.

        `delete_records` has returned this offset. Replicas on other brokers have `seconds` to
        delete the records; with 0, they must have done so already.

        Raises:
            DeletionTimedOut: replicas on other brokers still have records after that time.
            StorageError: the start cannot be written.
            NotLeading: another broker leads the partition by now.
        """
        ...

    async def delete_records(self, before_offset: int) -> int:
        """Move the start to `before_offset`, or to the high watermark if that is -1.

        Returns the new start, which is durable when `deleted` has returned. Raises an error with
        the code `offset_out_of_range` if `before_offset` is above the end.
        """
        ...

    async def producers(self) -> list[ProducerState]:
        """Return the idempotent producers that the partition remembers."""
        ...


async def look_up_watermarks(partitions: Iterable[Partition | None]) -> None:
    """Update the offsets of partitions that depend on a lookup; skip None.

    Raises:
        PenstockError: the lookup failed; the partitions keep their last offsets.
    """
    asked: dict[LookUp, list[Any]] = {}
    for partition in partitions:
        if partition is not None and partition.look_up is not None:
            asked.setdefault(partition.look_up, []).append(partition)
    for look_up, together in asked.items():
        await look_up(together)
