"""Rules of object commits and of sink commits: pure functions from an object's entries to new rows
and results.

All implementations of the control plane share them.

**Extents.** Consecutive entries of a partition become one extent if their bytes adjoin. A rejected
entry, a duplicate, or a change of the timestamp type between them starts a new extent. Entries are
processed in order, so a duplicate within one object is detected, too. The timestamp of a
transaction marker is not counted, because no record has it.

**Transactions.** A commit locks the row of each partition, so entries of one partition are
processed one after the other, whichever broker wrote them. After a marker, later batches of the
same transaction are rejected. With transaction version 2, their producer epoch is too low, because
the marker has raised it. Before that version, the marker invalidates the verification of these
batches (`records.idempotence.check_verified`).

**Last stable offset.** It never falls. A transaction begins at the log's end, and a marker raises
the last stable offset in the commit that makes the marker readable.

Source: Aiven's Inkless (`CommitFileJob`); Kafka's `ProducerAppendInfo` and `ProducerStateManager`
(`ongoingTxns`); KIP-98.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from penstock.base.errors import BugError, PenstockError
from penstock.control.rules.diskless import (
    PartitionRow,
    ProducerKey,
    TopicOf,
    layout_totals,
    write_refusal,
)
from penstock.control.values.diskless import (
    BatchEntry,
    CommitAnswer,
    ObjectCommit,
    ObjectLease,
    ObjectState,
    PartitionKey,
)
from penstock.control.values.errors import (
    OBJECT_ENTRIES_MAX,
    SINK_OBJECTS_MAX,
    SINK_TARGETS_MAX,
    EntryRefused,
    InvalidCommit,
    ObjectLeaseLost,
    StaleSink,
    TooLarge,
)
from penstock.control.values.topics import SinkCommit, SinkTarget
from penstock.records.appends import AppendResult
from penstock.records.extents import Extent
from penstock.records.idempotence import (
    NO_BATCH,
    Producer,
    ProducerBatch,
    appended,
    check_marker,
    check_transaction,
    check_verified,
    decided,
    original,
)
from penstock.records.transactions import OFFSET_MAX, AbortedTransaction, Marker


class CommitPlan(NamedTuple):
    """Rows that the commit of an object writes, and the results that it returns.

    `references` is the number of extents in the object. An object without extents becomes DELETING.
    """

    answer: CommitAnswer
    partitions: dict[PartitionKey, PartitionRow]
    producers: dict[ProducerKey, Producer]
    references: int
    aborted: dict[PartitionKey, list[AbortedTransaction]]

    @property
    def state(self) -> ObjectState:
        return "committed" if self.references else "deleting"


def check_commit(commit: ObjectCommit) -> None:
    entries = commit.entries
    if len(entries) > OBJECT_ENTRIES_MAX:
        raise TooLarge(f"{len(entries)} entries in one object, the limit is {OBJECT_ENTRIES_MAX}")
    end = 0
    for entry in entries:
        if entry.byte_offset < end or entry.size_bytes <= 0:
            raise InvalidCommit(
                f"object {commit.object_id}: the entry at byte {entry.byte_offset} has"
                f" {entry.size_bytes} bytes, and the entry before it ends at byte {end}. Entries"
                " must not be empty or overlap."
            )
        end = entry.byte_offset + entry.size_bytes
        if entry.marker is not None and (entry.offset_count, entry.producer_id) != (
            1,
            entry.marker.producer_id,
        ):
            raise InvalidCommit(
                f"object {commit.object_id}: the marker at byte {entry.byte_offset} has"
                f" {entry.offset_count} offsets and producer {entry.producer_id}, expected 1"
                f" offset and producer {entry.marker.producer_id}"
            )
        if layout_totals(entry.layout) != (entry.size_bytes, entry.offset_count):
            raise InvalidCommit(
                f"object {commit.object_id}: the batches of the entry at byte"
                f" {entry.byte_offset} do not add up to {entry.size_bytes} bytes and"
                f" {entry.offset_count} offsets"
            )
    if end > commit.size_bytes:
        raise InvalidCommit(
            f"object {commit.object_id}: the entries end at byte {end}, but the object has"
            f" {commit.size_bytes} bytes"
        )


def commit_keys(commit: ObjectCommit) -> tuple[set[PartitionKey], set[ProducerKey]]:
    partitions = {(entry.topic_id, entry.partition) for entry in commit.entries}
    producers = {
        (entry.topic_id, entry.partition, entry.producer_id)
        for entry in commit.entries
        if entry.producer_id >= 0
    }
    return partitions, producers


def marked_keys(commit: ObjectCommit) -> set[PartitionKey]:
    return {
        (entry.topic_id, entry.partition) for entry in commit.entries if entry.marker is not None
    }


def plan_commit(
    commit: ObjectCommit,
    lease: ObjectLease,
    *,
    topic_of: TopicOf,
    partitions: Mapping[PartitionKey, PartitionRow],
    producers: Mapping[ProducerKey, Producer],
    now_ms: int,
    begun: Mapping[PartitionKey, Mapping[int, int]] = MappingProxyType({}),
) -> CommitPlan:
    """Return the rows and results of an object's commit.

    `partitions` has the rows of writable partitions; entries of other partitions are rejected.
    `producers` has the stored states of producers. `begun` has the first offset of each open
    transaction of the partitions in `marked_keys`, by producer id in offset order. `now_ms` is the
    control plane's time, which is stored as the time of the producers' last append.
    """
    planner = _Planner(topic_of, partitions, producers, begun, commit.now_ms, now_ms)
    placed = tuple([planner.place(entry) for entry in commit.entries])
    extents = {
        key: tuple([run.extent(lease) for run in runs]) for key, runs in planner.runs.items()
    }
    rows = {
        key: _extended(partitions[key], added, planner.transactions.get(key))
        for key, added in extents.items()
    }
    answer = CommitAnswer(
        placed=placed,
        watermarks={key: row.watermarks for key, row in rows.items()},
        extents=extents,
    )
    aborted = {
        key: placed_transactions.aborted
        for key, placed_transactions in planner.transactions.items()
        if placed_transactions.aborted
    }
    return CommitPlan(answer, rows, planner.written, sum(map(len, extents.values())), aborted)


def _extended(
    row: PartitionRow, added: tuple[Extent, ...], transactions: _Transactions | None
) -> PartitionRow:
    size_bytes = sum([extent.size_bytes for extent in added])
    return PartitionRow(
        row.partition_id,
        row.log_start_offset,
        added[-1].next_offset,
        row.size_bytes + size_bytes,
        row.wal_extents + len(added),
        row.wal_bytes + size_bytes,
        row.open_offset if transactions is None else transactions.open_offset,
        row.aborted_offset if transactions is None else transactions.aborted_offset,
    )


class _Transactions:
    """Open transactions of one partition, and the transactions that this commit aborts."""

    __slots__ = ("_begun", "aborted", "aborted_offset", "open_offset")

    def __init__(self, row: PartitionRow, begun: Mapping[int, int]) -> None:
        """`begun` has the first offset of each open transaction, by producer id.

        It is empty if the commit has no marker for the partition.
        """
        self._begun = dict(begun)
        self.open_offset = row.open_offset
        self.aborted_offset = row.aborted_offset
        self.aborted: list[AbortedTransaction] = []

    def begins(self, producer_id: int, offset: int) -> None:
        """Record that a producer's transaction begins at `offset`, the end of the log."""
        self._begun[producer_id] = offset
        if self.open_offset < 0:
            self.open_offset = offset

    def ends(self, marker: Marker, first_offset: int, offset: int) -> None:
        del self._begun[marker.producer_id]
        self.open_offset = next(iter(self._begun.values()), -1)
        if not marker.commit:
            stable = offset + 1 if self.open_offset < 0 else self.open_offset
            self.aborted.append(
                AbortedTransaction(marker.producer_id, first_offset, offset, stable)
            )
            self.aborted_offset = offset


class _Run:
    __slots__ = ("append_time_ms", "base", "end", "layouts", "max_timestamp", "next", "start")

    def __init__(self, entry: BatchEntry, base_offset: int, append_time_ms: int) -> None:
        self.start = self.end = entry.byte_offset
        self.base = self.next = base_offset
        self.max_timestamp = -1
        self.append_time_ms = append_time_ms
        self.layouts: list[bytes] = []

    def add(self, entry: BatchEntry) -> None:
        self.end += entry.size_bytes
        self.next += entry.offset_count
        self.layouts.append(entry.layout)
        if entry.marker is None:
            time_ms = entry.max_timestamp if self.append_time_ms < 0 else self.append_time_ms
            self.max_timestamp = max(self.max_timestamp, time_ms)

    def extent(self, lease: ObjectLease) -> Extent:
        return Extent(
            lease.object_id,
            lease.key,
            "wal",
            self.start,
            self.end - self.start,
            self.base,
            self.next,
            self.max_timestamp,
            self.append_time_ms,
            b"".join(self.layouts),
        )


class _Planner:
    """Assigns offsets to entries in order; each entry sees the effects of earlier ones."""

    __slots__ = (
        "append_ms", "begun", "known", "now_ms", "rows", "runs", "topic_of", "transactions",
        "written",
    )  # fmt: skip

    def __init__(
        self,
        topic_of: TopicOf,
        rows: Mapping[PartitionKey, PartitionRow],
        known: Mapping[ProducerKey, Producer],
        begun: Mapping[PartitionKey, Mapping[int, int]],
        append_ms: int,
        now_ms: int,
    ) -> None:
        self.topic_of = topic_of
        self.rows = rows
        self.known = known
        self.begun = begun
        self.append_ms = append_ms
        self.now_ms = now_ms
        self.runs: dict[PartitionKey, list[_Run]] = {}
        self.written: dict[ProducerKey, Producer] = {}
        self.transactions: dict[PartitionKey, _Transactions] = {}

    def place(self, entry: BatchEntry) -> AppendResult:
        key = (entry.topic_id, entry.partition)
        row = self.rows.get(key)
        if row is None:
            refused = write_refusal(self.topic_of(entry.topic_id), *key)
            if refused is None:
                raise BugError(f"partition {key} is writable, but its row was not loaded")
            return AppendResult(-1, -1, -1, error=refused[0], message=refused[1])
        runs = self.runs.get(key)
        base_offset = runs[-1].next if runs else row.high_watermark
        if entry.producer_id >= 0:
            start = row.log_start_offset
            try:
                if entry.marker is not None:
                    stored = self._decided(entry, entry.marker, base_offset)
                else:
                    stored = self._sequenced(entry, base_offset)
            except PenstockError as error:
                return AppendResult(-1, -1, start, error=error.code, message=str(error))
            if stored is not None:
                time_ms = stored.timestamp if entry.append_time else -1
                return AppendResult(stored.first_offset, time_ms, start, duplicate=True)
        append_ms = self.append_ms if entry.append_time else -1
        self._grow(key, runs, entry, base_offset, append_ms)
        return AppendResult(base_offset, append_ms, row.log_start_offset)

    def _sequenced(self, entry: BatchEntry, base_offset: int) -> ProducerBatch | None:
        """Check the sequence of an idempotent producer's entry.

        If the entry is a duplicate, return the batch that was appended first. Otherwise update the
        producer's state and return None.
        """
        key = (entry.topic_id, entry.partition, entry.producer_id)
        before = self.written.get(key) or self.known.get(key)
        epoch, first, last = entry.producer_epoch, entry.base_sequence, entry.last_sequence
        stored = original(before, entry.producer_id, epoch, first, last)
        if stored is None:
            if before is not None:
                check_transaction(before, entry.producer_id, transactional=entry.transactional)
            if entry.transactional:
                check_verified(before, entry.producer_id, epoch, entry.verified_from)
            delta = entry.offset_count - 1
            timestamp = self.append_ms if entry.append_time else entry.max_timestamp
            batch = ProducerBatch(first, last, base_offset + delta, delta, timestamp)
            begins = base_offset if entry.transactional else -1
            guard = -1 if entry.verified_from == OFFSET_MAX else entry.verified_from
            after = appended(before, epoch, batch, self.now_ms, begins, guard)
            self.written[key] = after
            if after.txn_first_offset == base_offset:
                self._transactions_of(key[:2]).begins(entry.producer_id, base_offset)
        return stored

    def _decided(self, entry: BatchEntry, marker: Marker, base_offset: int) -> ProducerBatch | None:
        """Apply a transaction marker to its producer.

        Return `NO_BATCH` if the marker was written before. Otherwise end the producer's transaction
        and return None.
        """
        key = (entry.topic_id, entry.partition, entry.producer_id)
        before = self.written.get(key) or self.known.get(key)
        if check_marker(before, marker, entry.verified_from):
            return NO_BATCH
        self.written[key] = decided(before, marker, self.now_ms, base_offset)
        if before is not None and before.txn_first_offset >= 0:
            self._transactions_of(key[:2]).ends(marker, before.txn_first_offset, base_offset)
        return None

    def _transactions_of(self, key: PartitionKey) -> _Transactions:
        found = self.transactions.get(key)
        if found is None:
            found = self.transactions[key] = _Transactions(self.rows[key], self.begun.get(key, {}))
        return found

    def _grow(
        self,
        key: PartitionKey,
        runs: list[_Run] | None,
        entry: BatchEntry,
        base_offset: int,
        append_ms: int,
    ) -> None:
        if runs is None:
            runs = self.runs[key] = []
        last = runs[-1] if runs else None
        if last is None or last.end != entry.byte_offset or last.append_time_ms != append_ms:
            last = _Run(entry, base_offset, append_ms)
            runs.append(last)
        last.add(entry)


# Rules of sink commits: which commit of a query may follow the stored one, and size limits.
#
# Pure functions. A commit of batch `b` is an *intent* or *done*. The result of saving it:
#
# | stored commit of the query | an intent of b             | b as done      |
# |----------------------------|----------------------------|----------------|
# | none                       | saved                      | saved          |
# | an intent of b             | saved, with other targets  | saved          |
# | an intent of another batch | rejected                   | rejected       |
# | a lower batch as done      | saved                      | saved          |
# | b or a higher one as done  | rejected                   | rejected       |
#
# A commit is saved as done without an intent if it has no rows, or if the control plane assigns its
# offsets.
#
# A commit to diskless topics is one transaction with the query's row. All objects are committed, or
# none: one rejected entry rejects the whole commit.
#
# | stored row                               | its objects                | result of the commit  |
# |------------------------------------------|----------------------------|-----------------------|
# | at the expected version                  | all PENDING                | success               |
# | at the expected version                  | any of them not PENDING    | `ObjectLeaseLost`     |
# | this batch as done, at a later version   | all results stored         | the first result      |
# | anything else                            | any                        | `StaleSink`           |
#
# Sinks write to diskless topics without producer ids: the row alone detects repetitions.


SINKS_MAX: Final = 10_000
"""Queries with a stored commit."""

SINK_MANIFEST_BYTES_MAX: Final = 16 << 20
"""Bytes of one stored manifest, which is compressed."""


def check_sink_commit(
    record: SinkCommit, *, found: SinkCommit | None, expected: int, count: int
) -> None:
    """Check that a commit may follow the stored one.

    `count` is the number of queries with a commit.

    Raises:
        StaleSink: the commit cannot follow the stored one.
        TooLarge: the commit is too large, or there are too many queries.
    """
    check_sink_version(record.query_id, found=found, expected=expected)
    _check_size(record, new=found is None, count=count)
    if found is not None and not _follows(record, found):
        raise StaleSink(
            record.query_id,
            f"is batch {found.batch_id} as {found.state!r}: batch {record.batch_id} as"
            f" {record.state!r} cannot follow it",
        )


def check_sink_version(query_id: str, *, found: SinkCommit | None, expected: int) -> None:
    version = 0 if found is None else found.version
    if version != expected:
        raise StaleSink(query_id, f"is at version {version}, but the change expected {expected}")


def _follows(record: SinkCommit, found: SinkCommit) -> bool:
    if found.state == "intent":
        return record.batch_id == found.batch_id
    return record.batch_id > found.batch_id


def _check_size(record: SinkCommit, *, new: bool, count: int) -> None:
    if new and count >= SINKS_MAX:
        raise TooLarge(
            f"{count} queries have commits, the limit is {SINKS_MAX}: delete commits of old queries"
        )
    if len(record.targets) > SINK_TARGETS_MAX:
        raise TooLarge(
            f"query {record.query_id!r} writes to {len(record.targets)} partitions,"
            f" the limit is {SINK_TARGETS_MAX}"
        )
    if len(record.manifest) > SINK_MANIFEST_BYTES_MAX:
        raise TooLarge(
            f"the manifest of query {record.query_id!r}, batch {record.batch_id}, has"
            f" {len(record.manifest)} bytes compressed, the limit is {SINK_MANIFEST_BYTES_MAX}"
        )


class _ObjectRow(Protocol):
    @property
    def state(self) -> ObjectState: ...


Row = TypeVar("Row", bound=_ObjectRow)


class SinkAnswer(NamedTuple):
    """Result of a sink's commit to diskless topics.

    `record` is the saved commit, with its new offsets and version. `answers` has the result of each
    object's commit.
    """

    record: SinkCommit
    answers: tuple[CommitAnswer, ...]


def check_sink_objects(record: SinkCommit, commits: Sequence[ObjectCommit]) -> None:
    """Validate a commit to diskless topics before anything is read.

    Raises:
        TooLarge: more than `SINK_OBJECTS_MAX` objects, or an error of `check_commit`.
        InvalidCommit: the record is not done, there is no object, an object is repeated, an entry
            has a producer; or an error of `check_commit`.
    """
    if len(commits) > SINK_OBJECTS_MAX:
        raise TooLarge(
            f"the commit of query {record.query_id!r} has {len(commits)} objects,"
            f" the limit is {SINK_OBJECTS_MAX}"
        )
    ids = {commit.object_id for commit in commits}
    if record.state != "done" or not commits or len(ids) != len(commits):
        raise InvalidCommit(
            f"query {record.query_id!r}, batch {record.batch_id}: a commit of {len(commits)}"
            f" objects with {len(ids)} ids and state {record.state!r} is invalid. It needs at least"
            " one object, different ids, and the state 'done'."
        )
    for commit in commits:
        check_commit(commit)
        if any(entry.producer_id >= 0 for entry in commit.entries):
            raise InvalidCommit(f"object {commit.object_id}: a sink's batches have no producer")


def is_repeated(record: SinkCommit, found: SinkCommit | None, *, expected: int) -> bool:
    return (
        found is not None
        and found.version > expected
        and found.state == "done"
        and found.batch_id == record.batch_id
    )


def pending(object_id: int, row: Row | None) -> Row:
    if row is None or row.state != "pending":
        raise ObjectLeaseLost(object_id)
    return row


def sink_keys(commits: Sequence[ObjectCommit]) -> set[PartitionKey]:
    return {key for commit in commits for key in commit_keys(commit)[0]}


def plan_sink_objects(
    commits: Sequence[ObjectCommit],
    leases: Sequence[ObjectLease],
    *,
    topic_of: TopicOf,
    partitions: Mapping[PartitionKey, PartitionRow],
    now_ms: int,
) -> tuple[CommitPlan, ...]:
    """Plan the commits of all objects in order. Each plan includes the changes of those before it.

    `partitions` and `now_ms` are as in `plan_commit`.

    Raises:
        EntryRefused: a topic or partition does not exist, or is not diskless.
    """
    rows = dict(partitions)
    plans: list[CommitPlan] = []
    for commit, lease in zip(commits, leases, strict=True):
        plan = plan_commit(
            commit, lease, topic_of=topic_of, partitions=rows, producers={}, now_ms=now_ms
        )
        for placed in plan.answer.placed:
            if placed.error is not None:
                raise EntryRefused(commit.object_id, placed.error, str(placed.message))
        rows.update(plan.partitions)
        plans.append(plan)
    return tuple(plans)


def with_offsets(
    record: SinkCommit, commits: Sequence[ObjectCommit], answers: Sequence[CommitAnswer]
) -> SinkCommit:
    """Return the record with the offsets that its objects got.

    Targets without an object are unchanged.
    """
    offsets: dict[PartitionKey, tuple[int, int]] = {}
    for commit, answer in zip(commits, answers, strict=True):
        for entry, placed in zip(commit.entries, answer.placed, strict=True):
            key = (entry.topic_id, entry.partition)
            first, _ = offsets.get(key, (placed.base_offset, 0))
            offsets[key] = first, placed.base_offset + entry.offset_count
    return replace(record, targets=tuple([_placed(target, offsets) for target in record.targets]))


def _placed(target: SinkTarget, offsets: Mapping[PartitionKey, tuple[int, int]]) -> SinkTarget:
    found = offsets.get((target.topic_id, target.partition))
    if found is None:
        return target
    return replace(target, base_offset=found[0], next_offset=found[1])
