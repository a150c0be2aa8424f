"""The diskless part of the control plane in memory: for tests, and the plainest reading of it."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from penstock.base.system import Clock, Randomness
from penstock.control import diskless_commit_rules as commit_rules
from penstock.control import diskless_index_rules as index_rules
from penstock.control import diskless_rules as rules
from penstock.control import sink_object_rules as sink_rules
from penstock.control.diskless_values import (
    Backlog,
    CommitAnswer,
    Condemned,
    DisklessExtent,
    FindRequest,
    Found,
    ObjectCommit,
    ObjectKind,
    ObjectLease,
    ObjectState,
    ObjectTotals,
    PartitionKey,
    PartitionMarks,
    Retained,
    SegmentSwap,
    StoreIdentity,
)
from penstock.control.errors import ObjectLeaseLost
from penstock.control.limits import COMMIT_ANSWER_KEPT_MS
from penstock.control.memory_diskless_switch import MemoryDisklessSwitch
from penstock.control.sink_object_rules import SinkAnswer
from penstock.control.sink_rules import next_sink_version
from penstock.control.values import MetadataImage, SinkCommit, Topic
from penstock.records.idempotence import Producer, ProducerState, described


@dataclass(slots=True)
class StoredObject:
    """An object's row. `changed_ms` is when its state or its last reference changed."""

    lease: ObjectLease
    changed_ms: int
    committed_ms: int = 0
    state: ObjectState = "pending"
    kind: ObjectKind = "wal"
    size_bytes: int = 0
    references: int = 0
    answer: CommitAnswer | None = None

    @property
    def condemned(self) -> Condemned:
        return Condemned(self.lease.object_id, self.lease.key, self.size_bytes)


class MemoryDiskless(MemoryDisklessSwitch):
    """The part of `MemoryControlPlane` that is a `DisklessPlane`."""

    _image: MetadataImage

    def __init__(self, *, clock: Clock, randomness: Randomness) -> None:
        super().__init__()
        self._clock = clock
        self._randomness = randomness
        self._store: StoreIdentity | None = None
        self._highest_object_id = 0
        self._sinks: dict[str, SinkCommit] = {}
        self._highest_sink_version = 0
        self._objects: dict[int, StoredObject] = {}
        self._rows: dict[PartitionKey, rules.PartitionRow] = {}
        self._extents: dict[PartitionKey, list[DisklessExtent]] = {}
        self._states: dict[rules.ProducerKey, Producer] = {}
        self._topics: tuple[MetadataImage | None, dict[UUID, Topic]] = (None, {})

    async def store_identity(self) -> StoreIdentity | None:
        return self._store

    async def adopt_store(self, identity: StoreIdentity) -> StoreIdentity:
        if self._store is None:
            self._store = identity
        return self._store

    async def lease_objects(
        self, *, broker_id: int, incarnation: UUID, count: int
    ) -> list[ObjectLease]:
        rules.check_lease(self._image, broker_id, incarnation, count)
        first, nonce = self._highest_object_id + 1, self._randomness.bits(32)
        leases = [
            ObjectLease(object_id, rules.object_key(object_id, nonce))
            for object_id in range(first, first + count)
        ]
        self._reserve(leases)
        return leases

    async def lease_segment(
        self, topic_id: UUID, partition: int, *, base_offset: int
    ) -> ObjectLease:
        object_id, nonce = self._highest_object_id + 1, self._randomness.bits(32)
        key = rules.segment_key(object_id, nonce, topic_id, partition, base_offset)
        lease = ObjectLease(object_id, key)
        self._reserve([lease])
        return lease

    def _reserve(self, leases: Sequence[ObjectLease]) -> None:
        now_ms = self._clock.now_ms()
        self._objects.update({lease.object_id: StoredObject(lease, now_ms) for lease in leases})
        self._highest_object_id = leases[-1].object_id

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        commit_rules.check_commit(commit)
        row = self._objects.get(commit.object_id)
        if row is None:
            raise ObjectLeaseLost(commit.object_id)
        answer = rules.first_answer(commit.object_id, row.state, row.answer)
        if answer is not None:
            return answer
        now_ms = self._clock.now_ms()
        plan = commit_rules.plan_commit(
            commit,
            row.lease,
            topics=self._by_id(),
            partitions=self._rows,
            producers=self._states,
            now_ms=now_ms,
        )
        self._apply(commit, row, plan, now_ms)
        return plan.answer

    def _apply(
        self,
        commit: ObjectCommit,
        row: StoredObject,
        plan: commit_rules.CommitPlan,
        now_ms: int,
    ) -> None:
        self._rows.update(plan.partitions)
        self._states.update(plan.producers)
        for key, added in plan.answer.extents.items():
            self._extents.setdefault(key, []).extend(added)
        row.state, row.answer = plan.state, plan.answer
        row.changed_ms = row.committed_ms = now_ms
        row.size_bytes, row.references = commit.size_bytes, plan.references

    async def commit_sink_objects(
        self, record: SinkCommit, *, expected_version: int, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        sink_rules.check_sink_objects(record, commits)
        found = self._sinks.get(record.query_id)
        if found is not None and sink_rules.is_repeated(record, found, expected=expected_version):
            kept = [self._objects.get(commit.object_id) for commit in commits]
            answers = tuple([row.answer for row in kept if row is not None and row.answer])
            if len(answers) == len(commits):
                return SinkAnswer(found, answers)
        version = self._next_sink_version(record, expected_version)
        rows = [self._objects.get(commit.object_id) for commit in commits]
        pending: list[StoredObject] = []
        for commit, row in zip(commits, rows, strict=True):
            pending.append(sink_rules.pending(commit.object_id, row))
        now_ms = self._clock.now_ms()
        plans = sink_rules.plan_sink_objects(
            commits,
            [row.lease for row in pending],
            topics=self._by_id(),
            partitions=self._rows,
            now_ms=now_ms,
        )
        for commit, row, plan in zip(commits, pending, plans, strict=True):
            self._apply(commit, row, plan, now_ms)
        answers = tuple([plan.answer for plan in plans])
        placed = sink_rules.with_offsets(record, commits, answers)
        return SinkAnswer(self._save_sink(placed, version), answers)

    def _next_sink_version(self, record: SinkCommit, expected: int) -> int:
        return next_sink_version(
            record,
            found=self._sinks.get(record.query_id),
            expected=expected,
            highest=self._highest_sink_version,
            count=len(self._sinks),
        )

    def _save_sink(self, record: SinkCommit, version: int) -> SinkCommit:
        saved = dataclasses.replace(record, version=version)
        self._highest_sink_version = version
        self._sinks[record.query_id] = saved
        return saved

    async def find(self, requests: Sequence[FindRequest]) -> list[Found]:
        return [self._find(request) for request in requests]

    def _find(self, request: FindRequest) -> Found:
        key = (request.topic_id, request.partition)
        row = self._rows.get(key, rules.EMPTY)
        answer = index_rules.found_without_extents(request, self._by_id(), row)
        if answer is None:
            answer = index_rules.found(request, row, self._from(key, request.offset))
        return answer

    async def marks(self, partitions: Sequence[PartitionKey]) -> list[PartitionMarks]:
        return [self._rows.get(key, rules.EMPTY).marks for key in partitions]

    async def extents(
        self, topic_id: UUID, partition: int, *, start: int, end: int, limit: int
    ) -> list[DisklessExtent]:
        following = self._from((topic_id, partition), start)[:limit]
        return [one for one in following if one.base_offset < end]

    async def extent_at_time(
        self, topic_id: UUID, partition: int, timestamp: int | None
    ) -> DisklessExtent | None:
        key = (topic_id, partition)
        there = self._from(key, self._rows.get(key, rules.EMPTY).log_start_offset)
        if timestamp is None:
            return max(there, key=lambda one: one.max_timestamp, default=None)
        return next((one for one in there if one.max_timestamp >= timestamp), None)

    async def diskless_producers(self, topic_id: UUID, partition: int) -> list[ProducerState]:
        return [
            described(producer_id, state)
            for (*key, producer_id), state in sorted(self._states.items())
            if key == [topic_id, partition]
        ]

    async def delete_records(
        self, topic_id: UUID, partition: int, before_offset: int
    ) -> PartitionMarks:
        key = (topic_id, partition)
        row = self._rows.get(key, rules.EMPTY)
        start = index_rules.deletion_start(row, topic_id, partition, before_offset)
        if start != row.log_start_offset:
            row = self._rows[key] = row._replace(log_start_offset=start)
        return row.marks

    async def retain(
        self,
        topic_id: UUID,
        partition: int,
        *,
        before_timestamp: int | None,
        max_bytes: int | None,
        limit: int,
    ) -> Retained:
        key = (topic_id, partition)
        there = self._extents.get(key, [])
        plan = index_rules.plan_retention(
            self._rows.get(key, rules.EMPTY),
            there[: limit + 1],
            before_timestamp=before_timestamp,
            max_bytes=max_bytes,
            limit=limit,
        )
        if plan.dropped:
            self._rows[key] = plan.row
            del there[: len(plan.dropped)]
            self._release(plan.dropped)
        return plan.retained

    async def forget_partitions(self, *, limit: int) -> int:
        topics = self._by_id()
        dropped = 0
        for key in [key for key in self._rows if key[0] not in topics]:
            there = self._extents.get(key, [])
            gone, there[: limit - dropped] = there[: limit - dropped], []
            self._release(gone)
            dropped += len(gone)
            for producer in [one for one in self._states if one[:2] == key][: limit - dropped]:
                del self._states[producer]
                dropped += 1
            if dropped >= limit:
                break
            self._extents.pop(key, None)
            del self._rows[key]
            dropped += 1
        return dropped

    async def forget_producers(self, *, idle_ms: int, limit: int) -> int:
        last_ms = self._clock.now_ms() - idle_ms
        idle = [key for key, state in self._states.items() if state.seen_ms <= last_ms][:limit]
        for key in idle:
            del self._states[key]
        return len(idle)

    async def swap_extents(self, swap: SegmentSwap) -> None:
        row = self._objects.get(swap.object_id)
        if row is None:
            raise ObjectLeaseLost(swap.object_id)
        if index_rules.is_swapped(swap, row.state):
            return
        key = (swap.topic_id, swap.partition)
        there = self._extents.get(key, [])
        first = bisect_right(there, swap.replaced[0].base_offset, key=_base) - 1
        place = slice(max(first, 0), max(first, 0) + len(swap.replaced))
        self._rows[key] = index_rules.plan_swap(swap, self._rows.get(key), there[place])
        there[place] = swap.extents
        row.state, row.kind, row.changed_ms = "committed", "segment", self._clock.now_ms()
        row.size_bytes, row.references = swap.size_bytes, len(swap.extents)
        self._release(swap.replaced)

    async def backlogs(self, *, min_extents: int, limit: int) -> list[Backlog]:
        topics = self._by_id()
        found = [
            Backlog(*key, row.wal_extents, row.wal_bytes, self._oldest_wal(key))
            for key, row in self._rows.items()
            if row.wal_extents >= max(min_extents, 1) and key[0] in topics
        ]
        return sorted(found, key=lambda one: (-one.extents, one.topic_id, one.partition))[:limit]

    def _oldest_wal(self, key: PartitionKey) -> int:
        return next(one.max_timestamp for one in self._extents[key] if one.kind == "wal")

    async def condemn(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> list[Condemned]:
        now_ms = self._clock.now_ms()
        condemned = [row for row in self._objects.values() if row.state == "deleting"][:limit]
        for row in self._objects.values():
            if len(condemned) == limit:
                break
            age_ms = now_ms - row.changed_ms
            if (row.state == "pending" and age_ms >= pending_grace_ms) or (
                row.state == "committed" and row.references == 0 and age_ms >= unreferenced_grace_ms
            ):
                row.state, row.changed_ms = "deleting", now_ms
                condemned.append(row)
        kept = [row for row in self._objects.values() if row.answer is not None]
        for row in [one for one in kept if now_ms - one.committed_ms >= COMMIT_ANSWER_KEPT_MS][
            :limit
        ]:
            row.answer = None
        return sorted(row.condemned for row in condemned)

    async def forget_objects(self, object_ids: Sequence[int]) -> None:
        for object_id in object_ids:
            row = self._objects.get(object_id)
            if row is not None and row.state == "deleting":
                del self._objects[object_id]

    async def object_totals(self) -> list[ObjectTotals]:
        totals: dict[tuple[ObjectState, ObjectKind], tuple[int, int]] = {}
        for row in self._objects.values():
            objects, size_bytes = totals.get((row.state, row.kind), (0, 0))
            totals[row.state, row.kind] = objects + 1, size_bytes + row.size_bytes
        return [ObjectTotals(*key, *totals[key]) for key in sorted(totals)]

    async def referenced_keys(self, *, after: str, limit: int) -> list[tuple[str, ObjectLease]]:
        rows = sorted(self._objects.values(), key=lambda row: row.lease.key)
        found: list[tuple[str, ObjectLease]] = [(row.state, row.lease) for row in rows]
        return [one for one in found if one[1].key > after][:limit]

    async def highest_object_id(self) -> int:
        return self._highest_object_id

    def _by_id(self) -> dict[UUID, Topic]:
        if self._topics[0] is not self._image:
            self._topics = (self._image, rules.topics_by_id(self._image))
        return self._topics[1]

    def _from(self, key: PartitionKey, offset: int) -> list[DisklessExtent]:
        """A partition's extents from the one that holds an offset on."""
        there = self._extents.get(key, [])
        first = bisect_right(there, offset, key=_next)
        return there[first:]

    def _release(self, extents: Sequence[DisklessExtent]) -> None:
        """Count references that are gone; an object without any is unreferenced from now on."""
        for object_id, count in index_rules.references(extents).items():
            row = self._objects[object_id]
            row.references -= count
            if not row.references:
                row.changed_ms = self._clock.now_ms()


def _base(extent: DisklessExtent) -> int:
    return extent.base_offset


def _next(extent: DisklessExtent) -> int:
    return extent.next_offset
