"""The rules of object commits: from loaded rows and a written object to new rows and an answer.

Pure functions that every form of the control plane shares, as in `rules.py`; a form loads, locks
and stores. `diskless_index_rules.py` has those of finding, retention and swaps.

An object's row, by its state, when a commit of it comes:

| row                     | commit                                        |
|-------------------------|-----------------------------------------------|
| PENDING                 | made; COMMITTED, or DELETING if all is refused |
| COMMITTED or DELETING, which an earlier commit made | the first answer  |
| COMMITTED, the answer too old to be kept | `CommitForgotten`            |
| DELETING by the sweeper, or gone         | `ObjectLeaseLost`            |

Entries of one partition whose bytes and offsets both adjoin become one extent; a refused entry or
a duplicate between them ends it, and so does a change of the timestamp type.

Source: Aiven's Inkless (`CommitFileJob`), Kafka's `ProducerAppendInfo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.control.diskless_values import (
    BatchEntry,
    CommitAnswer,
    DisklessExtent,
    DisklessProducer,
    ObjectCommit,
    ObjectLease,
    ObjectState,
    PartitionKey,
    PartitionMarks,
    Placed,
)
from penstock.control.errors import (
    CommitForgotten,
    InvalidCommit,
    ObjectLeaseLost,
    StaleBroker,
    TooLarge,
)
from penstock.control.limits import OBJECT_ENTRIES_MAX, OBJECT_LEASES_PER_CALL_MAX
from penstock.control.values import MetadataImage, Topic
from penstock.records.idempotence import Producer, ProducerBatch, appended, original

DISKLESS_CONFIG: Final = "diskless.enable"
"""The topic config that must be `true`."""

LAYOUT: Final = Struct("<ii")
"""One batch of a layout: its bytes, and the offsets that it takes."""

Answer = TypeVar("Answer")
"""An answer as a form keeps it."""

ProducerKey = tuple[UUID, int, int]
"""A topic's id, a partition's index, a producer's id."""


class PartitionRow(NamedTuple):
    """What is stored of a partition; the last two count its extents in write-ahead objects."""

    log_start_offset: int = 0
    high_watermark: int = 0
    size_bytes: int = 0
    wal_extents: int = 0
    wal_bytes: int = 0

    @property
    def marks(self) -> PartitionMarks:
        return PartitionMarks(self.log_start_offset, self.high_watermark, self.size_bytes)


EMPTY: Final = PartitionRow()


class CommitPlan(NamedTuple):
    """The rows that a commit writes, and its answer, which has the new extents.

    `references` is how many extents refer to the object; with none it becomes DELETING.
    """

    answer: CommitAnswer
    partitions: dict[PartitionKey, PartitionRow]
    producers: dict[ProducerKey, Producer]
    references: int

    @property
    def state(self) -> ObjectState:
        return "committed" if self.references else "deleting"


def check_lease(image: MetadataImage, broker_id: int, incarnation: UUID, count: int) -> None:
    """Raise StaleBroker or TooLarge."""
    if not 1 <= count <= OBJECT_LEASES_PER_CALL_MAX:
        raise TooLarge(
            f"{count} object keys in one call, allowed are 1 to {OBJECT_LEASES_PER_CALL_MAX}"
        )
    broker = image.broker(broker_id)
    if broker is None or broker.incarnation != incarnation:
        raise StaleBroker(broker_id)


def object_key(object_id: int, nonce: int) -> str:
    """The key of an object: spread over 256 prefixes, as stores limit requests by prefix.

    `nonce` is 32 random bits, drawn for each call that leases: were ids ever handed out again,
    by a database that lost its newest commits, keys would still be new.
    """
    return f"wal/{object_id & 0xFF:02x}/{object_id:016x}-{nonce & 0xFFFFFFFF:08x}"


def first_answer(object_id: int, state: ObjectState | None, answer: Answer | None) -> Answer | None:
    """The kept answer of a commit that is repeated; None for one that is to be made.

    `state` is None for a row that is gone.

    Raises:
        ObjectLeaseLost, CommitForgotten: as the table says.
    """
    if state == "pending":
        return None
    if answer is not None:
        return answer
    if state == "committed":
        raise CommitForgotten(object_id)
    raise ObjectLeaseLost(object_id)


def check_commit(commit: ObjectCommit) -> None:
    """Raise TooLarge for too many entries, InvalidCommit for entries that cannot be."""
    entries = commit.entries
    if len(entries) > OBJECT_ENTRIES_MAX:
        raise TooLarge(f"{len(entries)} entries in one object, the limit is {OBJECT_ENTRIES_MAX}")
    end = 0
    for entry in entries:
        if entry.byte_offset < end or entry.size_bytes <= 0:
            raise InvalidCommit(
                f"object {commit.object_id}: an entry of {entry.size_bytes} bytes at byte"
                f" {entry.byte_offset}, the one before it ends at {end}"
            )
        end = entry.byte_offset + entry.size_bytes
        if layout_totals(entry.layout) != (entry.size_bytes, entry.offset_count):
            raise InvalidCommit(
                f"object {commit.object_id}: the batches of the entry at byte"
                f" {entry.byte_offset} do not add up to {entry.size_bytes} bytes and"
                f" {entry.offset_count} offsets"
            )
    if end > commit.size_bytes:
        raise InvalidCommit(
            f"object {commit.object_id}: entries up to byte {end} of {commit.size_bytes}"
        )


def layout_totals(layout: bytes) -> tuple[int, int]:
    """The bytes and offsets of a layout together; (-1, -1) for one that is malformed."""
    if len(layout) == LAYOUT.size:
        size_bytes, count = LAYOUT.unpack(layout)
        return (size_bytes, count) if size_bytes > 0 and count > 0 else (-1, -1)
    if not layout or len(layout) % LAYOUT.size:
        return -1, -1
    sizes, counts = zip(*LAYOUT.iter_unpack(layout), strict=True)
    return (sum(sizes), sum(counts)) if min(sizes) > 0 and min(counts) > 0 else (-1, -1)


def topics_by_id(image: MetadataImage) -> dict[UUID, Topic]:
    """All topics by id: for forms that keep it as long as the image is the same."""
    return {topic.topic_id: topic for topic in image.topics.values()}


def refusal(topic: Topic | None, topic_id: UUID, partition: int) -> tuple[str, str] | None:
    """Why a partition is not to be written or read here: error name and message, or None."""
    if topic is None:
        return "unknown_topic_id", f"there is no topic of id {topic_id}"
    if topic.configs.get(DISKLESS_CONFIG) != "true":
        return "not_leader_or_follower", f"topic {topic.name!r} has no {DISKLESS_CONFIG} = true"
    if not 0 <= partition < len(topic.partitions):
        return (
            "unknown_topic_or_partition",
            f"topic {topic.name!r} has {len(topic.partitions)} partitions, none is {partition}",
        )
    return None


def described(producer_id: int, state: Producer) -> DisklessProducer:
    """A producer's state as DescribeProducers tells it."""
    last = state.batches[-1]
    return DisklessProducer(
        producer_id, state.epoch, last.last_sequence, state.seen_ms, last.last_offset
    )


def commit_keys(commit: ObjectCommit) -> tuple[set[PartitionKey], set[ProducerKey]]:
    """The partitions and producers whose rows a commit needs."""
    partitions = {(entry.topic_id, entry.partition) for entry in commit.entries}
    producers = {
        (entry.topic_id, entry.partition, entry.producer_id)
        for entry in commit.entries
        if entry.producer_id >= 0
    }
    return partitions, producers


def plan_commit(
    commit: ObjectCommit,
    lease: ObjectLease,
    *,
    topics: Mapping[UUID, Topic],
    partitions: Mapping[PartitionKey, PartitionRow],
    producers: Mapping[ProducerKey, Producer],
    now_ms: int,
) -> CommitPlan:
    """What committing an object changes; partitions and producers without a row are left out.

    `now_ms` is the plane's own time, by which idle producers are forgotten.
    """
    planner = _Planner(topics, partitions, producers, commit.now_ms, now_ms)
    placed = tuple([planner.place(entry) for entry in commit.entries])
    extents = {
        key: tuple([run.extent(lease) for run in runs]) for key, runs in planner.runs.items()
    }
    rows = {key: _extended(partitions.get(key, EMPTY), added) for key, added in extents.items()}
    answer = CommitAnswer(
        placed=placed, marks={key: row.marks for key, row in rows.items()}, extents=extents
    )
    return CommitPlan(answer, rows, planner.written, sum(map(len, extents.values())))


def _extended(row: PartitionRow, added: tuple[DisklessExtent, ...]) -> PartitionRow:
    size_bytes = sum([extent.size_bytes for extent in added])
    return PartitionRow(
        row.log_start_offset,
        added[-1].next_offset,
        row.size_bytes + size_bytes,
        row.wal_extents + len(added),
        row.wal_bytes + size_bytes,
    )


class _Run:
    """An extent that still grows."""

    __slots__ = ("append_time_ms", "base", "end", "layouts", "max_timestamp", "next", "start")

    def __init__(self, entry: BatchEntry, base_offset: int, append_time_ms: int) -> None:
        self.start = self.end = entry.byte_offset
        self.base = self.next = base_offset
        self.max_timestamp = append_time_ms
        self.append_time_ms = append_time_ms
        self.layouts: list[bytes] = []

    def add(self, entry: BatchEntry) -> None:
        self.end += entry.size_bytes
        self.next += entry.offset_count
        self.layouts.append(entry.layout)
        if self.append_time_ms < 0 and entry.max_timestamp > self.max_timestamp:
            self.max_timestamp = entry.max_timestamp

    def extent(self, lease: ObjectLease) -> DisklessExtent:
        return DisklessExtent(
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
    """Places entries one after the other; what an entry did, the next one sees."""

    __slots__ = ("append_ms", "known", "now_ms", "rows", "runs", "topics", "written")

    def __init__(
        self,
        topics: Mapping[UUID, Topic],
        rows: Mapping[PartitionKey, PartitionRow],
        known: Mapping[ProducerKey, Producer],
        append_ms: int,
        now_ms: int,
    ) -> None:
        self.topics = topics
        self.rows = rows
        self.known = known
        self.append_ms = append_ms
        self.now_ms = now_ms
        self.runs: dict[PartitionKey, list[_Run]] = {}
        self.written: dict[ProducerKey, Producer] = {}

    def place(self, entry: BatchEntry) -> Placed:
        key = (entry.topic_id, entry.partition)
        refused = refusal(self.topics.get(entry.topic_id), *key)
        if refused is not None:
            return Placed(-1, -1, -1, error=refused[0], message=refused[1])
        row = self.rows.get(key, EMPTY)
        runs = self.runs.get(key)
        base_offset = runs[-1].next if runs else row.high_watermark
        if entry.producer_id >= 0:
            try:
                stored = self._sequenced(entry, base_offset)
            except PenstockError as error:
                start = row.log_start_offset
                return Placed(-1, -1, start, error=error.code, message=str(error))
            if stored is not None:
                time_ms = stored.timestamp if entry.append_time else -1
                return Placed(stored.first_offset, time_ms, row.log_start_offset, duplicate=True)
        append_ms = self.append_ms if entry.append_time else -1
        self._grow(key, runs, entry, base_offset, append_ms)
        return Placed(base_offset, append_ms, row.log_start_offset)

    def _sequenced(self, entry: BatchEntry, base_offset: int) -> ProducerBatch | None:
        """The original of a duplicate; None for an entry that is now remembered."""
        key = (entry.topic_id, entry.partition, entry.producer_id)
        before = self.written.get(key) or self.known.get(key)
        epoch, first, last = entry.producer_epoch, entry.base_sequence, entry.last_sequence
        stored = original(before, entry.producer_id, epoch, first, last)
        if stored is None:
            delta = entry.offset_count - 1
            timestamp = self.append_ms if entry.append_time else entry.max_timestamp
            batch = ProducerBatch(first, last, base_offset + delta, delta, timestamp)
            self.written[key] = appended(before, epoch, batch, self.now_ms)
        return stored

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
