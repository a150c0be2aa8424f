"""State of a partition's idempotent producers and transactions, a pure core, and its snapshots.

The rules for one producer's next batch are in `records.idempotence`. A producer's state is an
immutable value that each append replaces, so that restoring the old value undoes an append that did
not become durable. The state includes the producer's transaction; `transactions` lists the open
transactions of all producers.

Consumers of committed records stop at the first offset of a transaction until its marker is
committed. So the last stable offset never falls, and the list of aborted transactions below it is
complete.

Source: Kafka's `ProducerAppendInfo` and `ProducerStateManager` (`ongoingTxns`, `unreplicatedTxns`);
KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Container, Iterable
from struct import Struct
from typing import Final, NamedTuple

from penstock.base.crc import crc32c
from penstock.base.settings import LONG_MAX
from penstock.records import BatchHeader
from penstock.records.errors import InvalidTxnState, OutOfOrderSequence
from penstock.records.header import PRODUCER_BATCHES_MAX, TRANSACTIONAL_FLAG
from penstock.records.idempotence import (
    NO_BATCH,
    SEQUENCES,
    Producer,
    ProducerBatch,
    ProducerState,
    appended,
    check_marker,
    check_transaction,
    decided,
    described,
    original,
    remembered,
)
from penstock.records.transactions import (
    UNGUARDED,
    AbortedTransaction,
    Guard,
    Marker,
    decode_marker,
)
from penstock.storage.files.checkpoint import HAS_PRODUCERS, HAS_TRANSACTIONS
from penstock.storage.files.errors import CorruptFile

# `<offset>.snapshot`: the state of a partition's producers at that offset.
#
# Big endian:
#
#     at  bytes  field
#      0      2  version, 1
#      2      4  CRC32C of everything from byte 6
#      6      4  number of entries
#     10     46  per entry: producer id i64, epoch i16, last sequence i32, last offset i64,
#                offset delta i32, timestamp i64, coordinator epoch i32, first offset of the
#                open transaction i64 (-1: none)
#
# Kafka keeps only the last batch of each producer. A client may have five batches in flight and may
# retry any of them. Therefore a second file, `<offset>.batches`, has all batches that the broker
# remembers: the same layout with version 101 and one entry per batch, oldest first.
#
# Source: Kafka's `ProducerStateManager` and `ProducerSnapshot.json`.


SNAPSHOT_VERSION: Final = 1
BATCHES_VERSION: Final = 101

_HEAD: Final = Struct(">hIi")
_ENTRY: Final = Struct(">qhiqiqiq")
_CHECKED_FROM: Final = 6


class SnapshotEntry(NamedTuple):
    """Entry of a producer snapshot: the state of a producer, with one of its batches.

    A `.snapshot` file has one entry per producer, with its last batch. A `.batches` file has an
    entry for each batch by which duplicates are recognised.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1


def encode_snapshot(entries: list[SnapshotEntry], version: int = SNAPSHOT_VERSION) -> bytes:
    data = bytearray(_HEAD.pack(version, 0, len(entries)))
    data += b"".join([_ENTRY.pack(*entry) for entry in entries])
    _HEAD.pack_into(data, 0, version, crc32c(memoryview(data)[_CHECKED_FROM:]), len(entries))
    return bytes(data)


def decode_snapshot(data: bytes, version: int = SNAPSHOT_VERSION) -> list[SnapshotEntry]:
    """Decode the entries; raises CorruptFile."""
    try:
        found, checksum, count = _HEAD.unpack_from(data)
    except struct.error as error:
        raise CorruptFile(f"producer snapshot of {len(data)} bytes: {error}") from None
    if found != version:
        raise CorruptFile(f"producer snapshot has version {found}, not {version}")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptFile(f"producer snapshot states {count} entries in {len(data)} bytes")
    actual = crc32c(memoryview(data)[_CHECKED_FROM:])
    if actual != checksum:
        raise CorruptFile(f"producer snapshot has checksum {actual:#x}, expected {checksum:#x}")
    return [SnapshotEntry._make(entry) for entry in _ENTRY.iter_unpack(data[_HEAD.size :])]


def encoded_snapshots(
    offset: int, last: list[SnapshotEntry], batches: list[SnapshotEntry]
) -> tuple[int, bytes, bytes]:
    """Return the offset, and the contents of `.snapshot` and `.batches` at it."""
    return offset, encode_snapshot(last), encode_snapshot(batches, BATCHES_VERSION)


Undo = tuple[int, Producer | None]
"""Producer id, and its state before an append."""


class OpenTransactions:
    """Transactions of one log, by their unique first offsets, until their markers are committed."""

    __slots__ = ("_decided", "_open", "first_unstable_offset")

    def __init__(self, first_offsets: Iterable[int] = ()) -> None:
        self._open = dict.fromkeys(sorted(first_offsets))
        self._decided: deque[tuple[int, int]] = deque()
        """First offset and marker offset of transactions whose markers may be uncommitted, in
        order."""
        self.first_unstable_offset = next(iter(self._open), LONG_MAX)

    def began(self, first_offset: int) -> None:
        self._open[first_offset] = None
        if self.first_unstable_offset == LONG_MAX:
            self.first_unstable_offset = first_offset

    def began_not(self, first_offset: int) -> None:
        del self._open[first_offset]
        self._find_first()

    def decided(self, first_offset: int, marker_offset: int) -> int:
        """Record that a transaction has its marker, so that it is committed or aborted.

        Returns the offset below which every transaction has its marker: the last stable offset for
        the index of aborted transactions.
        """
        del self._open[first_offset]
        self._decided.append((first_offset, marker_offset))
        return next(iter(self._open), marker_offset + 1)

    def decided_not(self, first_offset: int) -> None:
        self._decided.pop()
        self._open = dict.fromkeys(sorted([first_offset, *self._open]))
        self._find_first()

    def committed_to(self, offset: int) -> None:
        """Record that everything below an offset is committed, including markers."""
        decided = self._decided
        if decided and decided[0][1] < offset:
            while decided and decided[0][1] < offset:
                decided.popleft()
            self._find_first()

    def _find_first(self) -> None:
        first = next(iter(self._open), LONG_MAX)
        if self._decided:
            first = min(first, min(self._decided)[0])
        self.first_unstable_offset = first


class ProducerStates:
    """States of all producers of one partition."""

    __slots__ = ("_guards", "_producers", "transactions")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._guards: dict[int, Guard] = {}
        self.transactions = OpenTransactions()

    @property
    def flags(self) -> int:
        if not self._producers:
            return 0
        is_open = self.transactions.first_unstable_offset != LONG_MAX
        return HAS_PRODUCERS | HAS_TRANSACTIONS if is_open else HAS_PRODUCERS

    def __len__(self) -> int:
        return len(self._producers)

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> Guard | None:
        """Begin to verify with the coordinator that a producer's transaction has this partition.

        Returns the guard that the transaction's first append must carry: `check` rejects the append
        if a marker was written meanwhile. Returns None if the transaction is open already.
        """
        if self._is_open(producer_id, epoch):
            return None
        guard = self._guards.get(producer_id)
        if guard is None:
            guard = self._guards[producer_id] = Guard()
        guard.seen(epoch, sequence, now_ms)
        return guard

    def _is_open(self, producer_id: int, epoch: int) -> bool:
        producer = self._producers.get(producer_id)
        return producer is not None and producer.epoch == epoch and producer.txn_first_offset >= 0

    def check(self, header: BatchHeader, guard: Guard | None = UNGUARDED) -> ProducerBatch | None:
        """Check whether a producer's batch may be appended next.

        Returns the batch that is already in the log if this one is a duplicate, otherwise None.

        Raises:
            InvalidProducerEpoch, OutOfOrderSequence, InvalidTxnState: see `records.idempotence`.
            InvalidTxnState: the batch would begin a transaction, and the guard is not current.
        """
        producer = self._producers.get(header.producer_id)
        stored = None
        if producer is not None:
            stored = original(
                producer,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_sequence,
            )
            if stored is None and producer.txn_first_offset >= 0:
                _check_transaction(producer, header)
        if stored is None and guard is not UNGUARDED and header.attributes & TRANSACTIONAL_FLAG:
            self._check_guard(header, guard)
        return stored

    def _check_guard(self, header: BatchHeader, guard: Guard | None) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        if self._is_open(producer_id, epoch):
            return
        known = self._guards.get(producer_id)
        if known is None or known is not guard:
            raise InvalidTxnState(
                f"producer {producer_id} of epoch {epoch} sent a transactional batch, but it has no"
                " open transaction, and its coordinator has not verified that the batch begins one"
            )
        if epoch == known.epoch and header.base_sequence > known.lowest_sequence:
            raise OutOfOrderSequence(
                f"producer {producer_id} of epoch {epoch} sent sequence {header.base_sequence}, but"
                f" its transaction begins with sequence {known.lowest_sequence}"
            )

    def check_all(
        self, headers: list[BatchHeader], guard: Guard | None = UNGUARDED
    ) -> ProducerBatch | None:
        """Apply `check` to all batches of one append together.

        Raises:
            OutOfOrderSequence: as `check`, or only some of the batches are duplicates.
        """
        first = headers[0]
        stored = self.check(first, guard) if first.producer_id >= 0 else None
        if len(headers) == 1:
            return stored
        if stored is not None:
            if all([self.check(header) is not None for header in headers]):
                return stored
            raise OutOfOrderSequence(
                f"only some of the {len(headers)} batches of the append are duplicates"
            )
        meanwhile: dict[int, Producer] = {}
        for header in headers:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            producer = meanwhile.get(producer_id) or self._producers.get(producer_id)
            if producer is not None:
                if _original(producer, header) is not None:
                    raise OutOfOrderSequence("the append contains a batch that is stored already")
                _check_transaction(producer, header)
            meanwhile[producer_id] = _appended(producer, header, 0, 0)
        return None

    def append(self, header: BatchHeader, base_offset: int, seen_ms: int) -> Undo:
        """Record a checked batch at `base_offset`."""
        producer_id = header.producer_id
        producers = self._producers
        before = producers.get(producer_id)
        after = producers[producer_id] = _appended(before, header, base_offset, seen_ms)
        if after.txn_first_offset == base_offset:
            self.transactions.began(base_offset)
            self._guards.pop(producer_id, None)
        return producer_id, before

    def check_marker(self, marker: Marker) -> bool:
        """Return whether a marker is a duplicate; raises like `idempotence.check_marker`."""
        return check_marker(self._producers.get(marker.producer_id), marker)

    def decide(
        self, marker: Marker, offset: int, seen_ms: int
    ) -> tuple[Undo, AbortedTransaction | None]:
        """Record a marker at `offset`; return its undo, and the aborted transaction or None."""
        producer_id = marker.producer_id
        before = self._producers.get(producer_id)
        self._producers[producer_id] = decided(before, marker, seen_ms)
        self._guards.pop(producer_id, None)
        undo = producer_id, before
        if before is None or before.txn_first_offset < 0:
            return undo, None
        first = before.txn_first_offset
        stable = self.transactions.decided(first, offset)
        return undo, None if marker.commit else AbortedTransaction(
            producer_id, first, offset, stable
        )

    def replay(
        self, header: BatchHeader, read: Callable[[], bytes], seen_ms: int
    ) -> AbortedTransaction | None:
        """Record a stored batch; return the transaction that it aborts, or None.

        `read` returns the bytes of the batch, which are needed only for markers.

        Raises:
            CorruptBatch: the batch is a damaged marker.
        """
        if header.producer_id < 0:
            return None
        if header.base_sequence >= 0:
            self.append(header, header.base_offset, seen_ms)
        elif header.is_control:
            return self.decide(decode_marker(read(), header), header.base_offset, seen_ms)[1]
        return None

    def undo(self, undo: Undo) -> None:
        """Restore the state before an append; appends are undone newest first."""
        producer_id, before = undo
        after = self._producers.get(producer_id)
        was = -1 if before is None else before.txn_first_offset
        first = -1 if after is None else after.txn_first_offset
        if first != was:
            if was >= 0:
                self.transactions.decided_not(was)
            if first >= 0:
                self.transactions.began_not(first)
        _put_back(self._producers, undo)

    def before(self, undos: list[Undo]) -> ProducerStates:
        """Return a copy of the states before the appends of `undos`, which are oldest first."""
        copy = ProducerStates()
        copy._producers = dict(self._producers)
        for undo in reversed(undos):
            _put_back(copy._producers, undo)
        copy._find_open()
        return copy

    def last_sequence(self, producer_id: int) -> int | None:
        producer = self._producers.get(producer_id)
        return (
            None
            if producer is None or not producer.batches
            else (producer.batches[-1].last_sequence)
        )

    def expire(self, now_ms: int, expiration_ms: int, kept: Container[int] = ()) -> int:
        """Remove idle producers that are not in `kept` and have no open transaction.

        Return how many were removed.
        """
        limit = now_ms - expiration_ms
        for key in [key for key, guard in self._guards.items() if guard.seen_ms <= limit]:
            del self._guards[key]
        idle = [
            key
            for key, producer in self._producers.items()
            if producer.seen_ms <= limit and producer.txn_first_offset < 0 and key not in kept
        ]
        for key in idle:
            del self._producers[key]
        return len(idle)

    def describe(self) -> list[ProducerState]:
        return [described(*item) for item in self._producers.items()]

    def states(self) -> dict[int, Producer]:
        return dict(self._producers)

    def snapshot(self) -> tuple[list[SnapshotEntry], list[SnapshotEntry]]:
        """Return the last batch of each producer, as Kafka saves it, and all batches."""
        last = [_entry(key, p, (p.batches or _NONE)[-1]) for key, p in self._producers.items()]
        every = [
            _entry(key, producer, batch)
            for key, producer in self._producers.items()
            for batch in producer.batches or _NONE
        ]
        return last, every

    def load(self, entries: Iterable[SnapshotEntry]) -> None:
        """Restore from a snapshot's entries; entries of one producer are in order."""
        for entry in entries:
            batches: tuple[ProducerBatch, ...] = ()
            if entry.last_offset >= 0:
                before = self._producers.get(entry.producer_id)
                if before is not None and before.epoch == entry.producer_epoch:
                    batches = before.batches[1 - PRODUCER_BATCHES_MAX :]
                delta = entry.offset_delta
                first_sequence = (entry.last_sequence - delta) % SEQUENCES
                batches += (
                    ProducerBatch(
                        first_sequence,
                        entry.last_sequence,
                        entry.last_offset,
                        delta,
                        entry.timestamp,
                    ),
                )
            self._producers[entry.producer_id] = Producer(
                entry.producer_epoch,
                batches,
                entry.timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        self._find_open()

    def _find_open(self) -> None:
        self.transactions = OpenTransactions(
            producer.txn_first_offset
            for producer in self._producers.values()
            if producer.txn_first_offset >= 0
        )


_NONE: Final = (NO_BATCH,)


def _original(producer: Producer, header: BatchHeader) -> ProducerBatch | None:
    return original(
        producer,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.last_sequence,
    )


def _check_transaction(producer: Producer, header: BatchHeader) -> None:
    transactional = bool(header.attributes & TRANSACTIONAL_FLAG)
    check_transaction(producer, header.producer_id, transactional=transactional)


def _appended(
    before: Producer | None, header: BatchHeader, base_offset: int, seen_ms: int
) -> Producer:
    delta = header.last_offset_delta
    last_offset = base_offset + delta
    batch = remembered(
        (header.base_sequence, header.last_sequence, last_offset, delta, header.max_timestamp)
    )
    first = base_offset if header.attributes & TRANSACTIONAL_FLAG else -1
    return appended(before, header.producer_epoch, batch, seen_ms, first)


def _put_back(producers: dict[int, Producer], undo: Undo) -> None:
    producer_id, before = undo
    if before is None:
        producers.pop(producer_id, None)
    else:
        producers[producer_id] = before


def _entry(producer_id: int, producer: Producer, batch: ProducerBatch) -> SnapshotEntry:
    return SnapshotEntry(
        producer_id,
        producer.epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.offset_delta,
        producer.seen_ms,
        producer.coordinator_epoch,
        producer.txn_first_offset,
    )
