"""A diskless partition for request handlers: the counterpart of `PartitionLog`.

It holds no data. Its watermarks come from commits of this broker, notices of other brokers, and
lookups in the control plane, which alone assigns offsets. Start, end and last stable offset only
rise. An append is acknowledged when its object is committed. `read` returns batches, or a
description of what to load.

Every transactional batch is verified with its coordinator before it is accepted. Only the commit of
its object shows whether the transaction is still open, and rejects the batch if it comes after the
marker. A marker is a batch in an object, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, ClassVar, Final
from uuid import UUID

from penstock.archive.assembly import LEADER_EPOCH
from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.control.values.diskless import PartitionKey, Watermarks
from penstock.diskless.errors import MarkerRefused
from penstock.diskless.reading.lookups import AbortedWant
from penstock.diskless.reading.reader import Want
from penstock.records import (
    InvalidProducerEpoch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    decode_header,
)
from penstock.records.appends import AppendResult, Done, IdReader, Opening, Outcome
from penstock.records.errors import TransactionCoordinatorFenced
from penstock.records.extents import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Extent,
)
from penstock.records.idempotence import ProducerState
from penstock.records.transactions import AbortedTransaction, Guard, Marker, encode_marker
from penstock.storage.files.values import Later, OffsetAndTimestamp, Read
from penstock.storage.log.validation import prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.diskless.topics.serving import Serving
    from penstock.records.header import BatchHeader
    from penstock.storage import Lease, LogConfig


UNVERIFIED_PRODUCERS_MAX: Final = 10_000
"""Producers of one partition that may have an unverified batch."""

UNKNOWN: Final = -1


class DisklessPartition:
    """A partition of `DisklessService`. It holds no data, and belongs to the event loop."""

    __slots__ = (
        "_aborted_offset", "_serving", "_unverified", "closed", "high_watermark", "key",
        "last_stable_offset", "leader_epoch", "log_start_offset", "size_bytes", "topic_id",
        "topic_partition",
    )  # fmt: skip

    append_takes: ClassVar[str] = "writing and committing the object"
    everywhere: ClassVar[bool] = True
    segment_count: Final = 0

    def __init__(
        self,
        serving: Serving,
        topic_partition: TopicPartition,
        topic_id: UUID,
        leader_epoch: int = LEADER_EPOCH,
    ) -> None:
        """`leader_epoch` is that of all batches.

        It is 0 unless the topic was on local logs before.
        """
        self._serving = serving
        self.leader_epoch = leader_epoch
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.key: PartitionKey = (topic_id, topic_partition.partition)
        self.log_start_offset = 0
        self.high_watermark = self.last_stable_offset = UNKNOWN
        self._aborted_offset = UNKNOWN
        self._unverified: dict[int, Guard] = {}
        self.size_bytes = 0
        self.closed: PenstockError | None = None

    def __repr__(self) -> str:
        offsets = f"[{self.log_start_offset}, {self.high_watermark})"
        return f"<DisklessPartition {self.topic_partition} {offsets}>"

    @property
    def look_up(self) -> Callable[[Sequence[DisklessPartition]], Awaitable[None]]:
        return self._serving.look_up

    @property
    def store_url(self) -> str:
        return self._serving.store_url

    @property
    def known(self) -> bool:
        return self.high_watermark >= 0

    @property
    def log_end_offset(self) -> int:
        return self.high_watermark

    @property
    def config(self) -> LogConfig:
        return self._serving.config_of(self.topic_partition.topic)

    def learn(self, watermarks: Watermarks) -> bool:
        """Raise the watermarks to newer ones; return whether consumers can read more."""
        start, end, size_bytes, _, aborted_offset = watermarks
        if size_bytes >= 0 and end >= self.high_watermark and start >= self.log_start_offset:
            self.size_bytes = size_bytes
        stable = watermarks.last_stable_offset
        self.log_start_offset = max(self.log_start_offset, start)
        self._aborted_offset = max(self._aborted_offset, aborted_offset)
        risen = end > self.high_watermark or stable > self.last_stable_offset
        self.high_watermark = max(self.high_watermark, end)
        self.last_stable_offset = max(self.last_stable_offset, stable)
        return risen

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
        """Validate batches as a local log does, and submit them to the writer.

        `done` is called later, once, on the event loop, when the batches are committed or rejected.
        This does not depend on `acks`.

        Raises:
            CorruptBatch, InvalidRecord, TransactionalBatch, UnsupportedCodec, RecordTooLarge,
                BatchesTooLarge, InvalidTimestamp: the batches cannot be stored.
            MixedBatches, OutOfOrderSequence: the batches of one request do not belong together.
            WriteBacklog: too many appends wait for their objects.
        """
        if self.closed is not None:
            raise self.closed
        config = self.config
        transactional = guard is not None
        ready, headers = prepared(
            batches, config, now_ms, single=True, transactional=transactional, opening=opening,
            ids=ids,
        )  # fmt: skip
        if ready is not batches:
            batches, lease = ready, None
        if guard is not None:
            self._check_first(headers[0])
        verified_from = -1 if guard is None else guard.verified_from
        self._submit(batches, headers, lease, done, verified_from=verified_from)
        if guard is not None:
            self._unverified.pop(headers[0].producer_id, None)

    def _submit(
        self,
        batches: memoryview,
        headers: list[BatchHeader],
        lease: Lease | None,
        done: Done,
        *,
        verified_from: int = -1,
        marker: Marker | None = None,
    ) -> None:
        append_time = self.config.message_timestamp_type != "CreateTime"
        parts = self._serving.to_write()
        parts.writer.submit(
            parts.submission(
                *self.key, batches, headers, append_time, lease, done, verified_from, marker
            )
        )

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, now_ms: int
    ) -> Guard:
        """Return a guard for the verification of a transactional batch with its coordinator.

        Every batch is verified, because other brokers may write markers.
        """
        unverified = self._unverified
        first = unverified.pop(producer_id, None) or Guard()
        unverified[producer_id] = first
        first.seen(epoch, sequence, now_ms)
        if len(unverified) > UNVERIFIED_PRODUCERS_MAX:
            del unverified[next(iter(unverified))]
        return Guard(epoch, sequence, now_ms, max(self.high_watermark, 0))

    def _check_first(self, header: BatchHeader) -> None:
        """Reject a batch if an earlier batch of its producer is not verified yet."""
        first = self._unverified.get(header.producer_id)
        if (
            first is not None
            and first.epoch == header.producer_epoch
            and header.base_sequence > first.lowest_sequence
        ):
            raise OutOfOrderSequence(
                f"producer {header.producer_id} of epoch {header.producer_epoch} sent sequence"
                f" {header.base_sequence}, but its sequence {first.lowest_sequence} is not verified"
            )

    def write_marker(self, marker: Marker, *, now_ms: int, done: Done) -> None:
        """Write a transaction marker, unless it exists already.

        `done` gets an error if a newer marker or epoch of the producer exists.

        Raises:
            WriteBacklog: too many appends wait for their objects.
        """
        if self.closed is not None:
            raise self.closed
        self._serving.to_write().markers.write(self, marker, now_ms, done)

    def place_marker(self, marker: Marker, *, now_ms: int, made_at: int, done: Done) -> None:
        """Submit a marker to the writer. Raises the errors of `write_marker`.

        `made_at` is the partition's end when the marker was made (`BatchEntry.verified_from`).
        """
        batch = memoryview(encode_marker(marker, now_ms))

        def placed(outcome: Outcome) -> None:
            done(_marked(outcome))

        self._submit(
            batch, [decode_header(batch)], None, placed, verified_from=made_at, marker=marker
        )

    def aborted(self, start: int, end: int) -> Sequence[AbortedTransaction] | Later:
        if self._aborted_offset < start:
            return ()
        aborted = self._serving.to_read().aborted
        want = AbortedWant(self.key, start, end)
        found = aborted.find(want, self._aborted_offset)
        return Later(aborted.load, want) if found is None else found

    async def all_aborted(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        if self._aborted_offset < start:
            return ()
        return await self._serving.to_read().aborted.of(AbortedWant(self.key, start, end))

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool,
        instantly: bool = True,
    ) -> Read | Later:
        """Return whole batches from the one that holds `offset` on, or how to load them.

        Returns up to `max_bytes`; with `at_least_one`, the first batch even if it is larger.
        `end_offset` is the end of what the reader may see. Without `instantly`, nothing is copied
        out of the cache.

        Raises:
            OffsetOutOfRange: the offset is below the start, or above the end in the control plane.
            PenstockError: loading the batches failed within the last half second.
        """
        if self.closed is not None:
            raise self.closed
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(
                self.topic_partition, offset, self.log_start_offset, self.high_watermark
            )
        if offset == end_offset:
            return Read([], 0, offset)
        serving = self._serving
        want = Want(self.key, offset, max_bytes, self.leader_epoch, end_offset)
        read = serving.to_read().reader.read(want, at_least_one=at_least_one, instantly=instantly)
        return Later(serving.load, want) if read is None else read

    def position(
        self, spec: int, *, committed: bool
    ) -> OffsetAndTimestamp | Awaitable[OffsetAndTimestamp | None] | None:
        """Return the position of a timestamp, or of a special value of `records.positions`.

        Positions by timestamp need a lookup, so an awaitable is returned.

        Raises:
            NotServing: lookups are impossible for now.
        """
        positions = self._serving.to_read().positions
        end = self.last_stable_offset if committed else self.high_watermark
        if spec == LATEST:
            return OffsetAndTimestamp(end, -1, self.leader_epoch)
        if spec in (EARLIEST, EARLIEST_LOCAL):
            return OffsetAndTimestamp(self.log_start_offset, -1, self.leader_epoch)
        if spec in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return None
        timestamp = None if spec == MAX_TIMESTAMP else spec
        return positions.of(self.key, timestamp, self.log_start_offset, end, self.leader_epoch)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (largest leader epoch up to `epoch`, end of the log).

        Returns (-1, -1) for a negative epoch.
        """
        return (min(epoch, self.leader_epoch), self.high_watermark) if epoch >= 0 else (-1, -1)

    def check_end(self) -> None:
        """Do nothing, because any broker may serve the partition's end."""

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the batch at an offset, the same for all batches."""
        return self.leader_epoch

    async def extents(self, start: int, end: int, *, limit: int) -> Sequence[Extent]:
        """Return up to `limit` extents that hold offsets of [start, end).

        Extents have whole batches only.

        Raises:
            PenstockError: the control plane does not answer.
        """
        return await self._serving.plane.extents(*self.key, start=start, end=end, limit=limit)

    async def deleted(self, offset: int, *, seconds: float) -> None:
        return

    async def delete_records(self, before_offset: int) -> int:
        """Raise the log start to `before_offset`; return the new log start.

        -1 stands for the high watermark.

        Raises:
            OffsetBeyondEnd: the offset is above the high watermark, or below -1.
        """
        watermarks = await self._serving.plane.delete_records(*self.key, before_offset)
        self._serving.learn(self.key, watermarks)
        return watermarks.log_start_offset

    async def producers(self) -> list[ProducerState]:
        return await self._serving.plane.diskless_producers(*self.key)


def _marked(outcome: Outcome) -> Outcome:
    """Return the outcome of a marker, with errors that the transaction coordinator can handle."""
    if not isinstance(outcome, AppendResult) or outcome.error is None:
        return outcome
    refused = _REFUSED.get(outcome.error, MarkerRefused)
    return refused(f"{outcome.error}: {outcome.message}")


_REFUSED: Final[Mapping[str, type[PenstockError]]] = {
    kind.code: kind for kind in (InvalidProducerEpoch, TransactionCoordinatorFenced)
}
