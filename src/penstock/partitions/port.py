"""What request handlers may ask of a partition, wherever its records lie.

Forms: `LocalPartition` over a log on this broker's disk, `diskless.DisklessPartition` over
objects of a store. One contract suite runs over both (`tests/partitions`).
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
"""Has some partitions learn where they begin and end now; raises PenstockError."""


class Partition(Protocol):
    """See the module's text. Belongs to the event loop."""

    append_takes: ClassVar[str]
    """What an append waits for, as a sentence names it."""

    everywhere: ClassVar[bool]
    """Whether every broker serves it, so that a consumer may be sent to a nearer one."""

    @property
    def look_up(self) -> LookUp | None:
        """What knows more than the partition of where it begins and ends; None if nothing does."""
        ...

    @property
    def store_url(self) -> str:
        """The object store that records lie in; empty where all lie in the broker's directory."""
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
        """Where consumers end; -1 while it is not known."""
        ...

    @property
    def last_stable_offset(self) -> int:
        """Below it all transactions are decided."""
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
        """Check what a partition of a produce request holds, one whole batch, and take it in.

        With a guard it belongs to a transaction, without one it does not. `opening` says whether
        batches that take long to look at may be opened in this call.

        `done` is called once, after this has returned: when what the topic promises with `acks`
        holds, or does not. Until then `batches` must not change; with a lease, its bytes are used
        until it is released.

        Raises:
            CorruptBatch, InvalidRecord, TransactionalBatch, UnsupportedCodec, RecordTooLarge,
            BatchesTooLarge, InvalidTimestamp: the batches cannot be stored.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState: their producer's state
            refuses them.
            NeedsOpening: with `Opening.BESIDE`; nothing of it happened.
            PenstockError: the partition takes no appends now; nothing of it happened.
        """
        ...

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, now_ms: int
    ) -> Guard | None:
        """What the append of a transaction's batch is to come with; None where it goes on.

        A guard is good once the transaction's coordinator has been asked, until a marker comes.

        Raises:
            PenstockError: the partition takes no batches of transactions now.
        """
        ...

    def write_marker(self, marker: Marker, *, now_ms: int, done: Done) -> None:
        """End a producer's transaction here, as its coordinator has decided it.

        `done` is called once, after this has returned: when the marker is committed, or is not, and
        why, which may be what this raises. It may be written again: one that ends nothing does no
        harm. After it, batches of older epochs are refused.

        Raises:
            InvalidProducerEpoch, TransactionCoordinatorFenced: the partition has seen newer ones.
            PenstockError: the partition takes no appends now; nothing of it happened.
        """
        ...

    def aborted(self, start: int, end: int) -> Sequence[AbortedTransaction] | Later:
        """The aborted transactions with batches in [start, end), by first offset; or `Later`.

        Complete where `end` is not above the last stable offset.

        Raises:
            PenstockError: it cannot be told now.
        """
        ...

    async def all_aborted(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """The same, once they are loaded.

        Raises:
            PenstockError: it cannot be told now.
        """
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
        """Whole batches from the one that holds `offset`, below `end_offset`; or how to load them.

        Up to `max_bytes`; the first even if it is larger, with `at_least_one`. Nothing
        at `end_offset`. Without `instantly`, what would have to be copied is loaded later.

        Raises:
            OffsetOutOfRange: below the start, or above the end.
            PenstockError: what lies there cannot be read now.
        """
        ...

    def position(
        self, spec: int, *, committed: bool
    ) -> OffsetAndTimestamp | Awaitable[OffsetAndTimestamp | None] | None:
        """What a time, or a spec of `records.positions`, stands for; None for nothing.

        `committed` leaves out what lies above the last stable offset. Only records have a
        timestamp, -1 stands for none; the epoch is the one that wrote the offset, of the end the
        leader's. By what the partition knows of its start and end; `look_up` is the caller's.

        Raises:
            PenstockError: it cannot be looked up now.
        """
        ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and where it ends; (-1, -1) if unknown."""
        ...

    def check_end(self) -> None:
        """Raise NotLeading where nothing is to be waited for at the end of what is readable here.

        Another broker may lead then, and this one be too cut off to hear of it.
        """
        ...

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote an offset; -1 if unknown."""
        ...

    async def extents(self, start: int, end: int, *, limit: int) -> Sequence[Extent]:
        """Where the whole batches that hold [start, min(end, high watermark)) lie, by offset.

        What lies in files is named to the last, of what lies in objects at most `limit` extents.

        Raises:
            PenstockError: it cannot be looked up now, or what lies there is damaged.
        """
        ...

    async def deleted(self, offset: int, *, seconds: float) -> None:
        """Wait until no copy that lives has anything below an offset, nor has it after a crash.

        The offset is one that `delete_records` returned.

        The copies of other brokers have so many seconds. What is deleted by then counts, also if
        that is no time at all.

        Raises:
            DeletionTimedOut: copies of other brokers still have some of it after that time.
            StorageError: the start cannot be written.
            NotLeading: another broker leads the partition by now.
        """
        ...

    async def delete_records(self, before_offset: int) -> int:
        """Move the start up to an offset; -1 is the high watermark. Returns the new start, which is
        for good when `deleted` has returned.

        Raises an error of the code `offset_out_of_range` for an offset beyond the end.
        """
        ...

    async def producers(self) -> list[ProducerState]:
        """The idempotent producers that the partition remembers."""
        ...
