"""The truth: what was sent, committed and acknowledged; and what must hold of it at all times.

| checked        | what must hold                                                               |
|----------------|------------------------------------------------------------------------------|
| a commit       | offsets go on where the last ones ended; what is accepted lies in the store, |
|                | as it was sent; a sequence is accepted once; an object is committed once     |
| an answer      | a repeated commit gets the first answer                                      |
| an acknowledgement | the batch has that offset                                                |
| every change   | extents adjoin from the log start to the high watermark; their objects are   |
|                | COMMITTED, and are there, with the bytes of these offsets                    |
| a deletion     | no extent refers to the object                                               |
| retention      | only what may go is gone; a log start never moves back                       |
| a read         | the batches of these offsets, all of them, in order                          |
| transactions   | as `transactions.py` says                                                    |
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from penstock.control import (
    BatchEntry,
    CommitAnswer,
    MemoryControlPlane,
    ObjectCommit,
    PartitionKey,
    Retained,
    SegmentSwap,
    Watermarks,
)
from penstock.records.appends import AppendResult
from penstock.records.extents import Extent
from sim.diskless.batches import Batch, opened
from sim.diskless.plane import run_now
from sim.diskless.store import ModelStore
from sim.diskless.transactions import Transaction, TransactionTruth
from sim.host.scheduler import Scheduler, Violation

ALL = 1 << 60


class Sent(NamedTuple):
    """A batch that a producer has made; `forms` are its bytes in all epochs that it was sent in."""

    batch: Batch
    key: PartitionKey
    idempotent: bool
    forms: set[bytes]


class Truth:
    """What a partition holds: tag and offsets of every batch that was ever committed to it."""

    def __init__(self) -> None:
        self.tags: dict[int, tuple[int, int]] = {}
        """By base offset: the batch's tag, and its offsets."""
        self.accepted: set[bytes] = set()
        """Batches of idempotent producers as they were sent: a sequence of an epoch is accepted
        once. What a producer numbers anew, not knowing what became of it, may be there twice."""
        self.next_offset = 0
        self.start = 0
        self.deleted_to = 0
        self.transactions = TransactionTruth()


class Ledger:
    """One story's truth."""

    def __init__(self, scheduler: Scheduler, plane: MemoryControlPlane, store: ModelStore) -> None:
        self._scheduler = scheduler
        self._plane = plane
        self._store = store
        self._checked_changes = 0
        self._verified: dict[PartitionKey, set[Extent]] = {}
        self.sent: dict[int, Sent] = {}
        self.truths: dict[PartitionKey, Truth] = {}
        self.answers: dict[int, CommitAnswer] = {}
        self.transactions: dict[int, tuple[Transaction, bool | None]] = {}
        """By tag: whose batch it is, or marker, and whether that commits."""
        self.gone: set[PartitionKey] = set()
        """Partitions of deleted topics."""
        self.seen: Counter[str] = Counter()
        """What happened, so that a test can tell whether everything does."""
        store.on_deletion = self.deleted

    def send(self, batch: Batch, key: PartitionKey, *, idempotent: bool) -> None:
        """A producer has made a batch, or has made it anew for another epoch."""
        sent = self.sent.setdefault(batch.tag, Sent(batch, key, idempotent, set()))
        sent.forms.add(batch.data)

    # Changes of the plane, watched

    async def commit_object(self, key: str, commit: ObjectCommit) -> CommitAnswer:
        """Commit the object of a key; what is new is taken over into the truth."""
        first = self.answers.get(commit.object_id)
        answer = await self._plane.commit_object(commit)
        if first is not None:
            self.seen["repeated commit"] += 1
            if answer != first:
                raise Violation(f"object {commit.object_id}: a repeated commit has a new answer")
            return answer
        self.answers[commit.object_id] = answer
        self._scheduler.note(
            "commit", commit.object_id, *[self._place(placed) for placed in answer.placed]
        )
        for entry, placed in zip(commit.entries, answer.placed, strict=True):
            self._entry(key, entry, placed)
        return answer

    def _place(self, placed: AppendResult) -> str:
        kind = placed.error or ("duplicate" if placed.duplicate else "accepted")
        self.seen[kind] += 1
        return f"{kind} {placed.base_offset}"

    def _entry(self, key: str, entry: BatchEntry, placed: AppendResult) -> None:
        if placed.error is not None or (placed.duplicate and entry.marker is not None):
            return
        where = (entry.topic_id, entry.partition)
        stored = self._store.objects.get(key)
        if stored is None:
            raise Violation(f"{key} is committed, and is not in the store")
        body = memoryview(stored.data)[entry.byte_offset : entry.byte_offset + entry.size_bytes]
        batches = self._batches(body, where)
        truth = self.truths.setdefault(where, Truth())
        if placed.duplicate:
            known = truth.tags.get(placed.base_offset)
            if known is None or known[0] != batches[0].tag:
                raise Violation(f"a duplicate's original at {placed.base_offset} is {known}")
            return
        if placed.base_offset != truth.next_offset:
            raise Violation(
                f"offset {placed.base_offset} of {where[1]} was given out,"
                f" the next one is {truth.next_offset}"
            )
        for batch in batches:
            if self.sent[batch.tag].idempotent:
                if batch.data in truth.accepted:
                    raise Violation(f"batch {batch.tag} of an idempotent producer is there twice")
                truth.accepted.add(batch.data)
            self._transaction(truth, batch.tag)
            truth.tags[truth.next_offset] = batch.tag, batch.offsets
            truth.next_offset += batch.offsets

    def _transaction(self, truth: Truth, tag: int) -> None:
        if tag in self.transactions:
            of, commit = self.transactions[tag]
            if commit is None:
                truth.transactions.data(of, truth.next_offset)
            else:
                truth.transactions.marker(of, truth.next_offset, commit=commit)

    def _batches(self, body: memoryview, where: PartitionKey) -> list[Batch]:
        """What lies in the store, which must be as it was sent."""
        found, position = [], 0
        for _, _, tag in opened(body):
            sent = self.sent.get(tag)
            if sent is None or sent.key != where:
                raise Violation(f"the store has a batch {tag} that was not sent to {where}")
            end = position + len(sent.batch.data)
            data = bytes(body[position:end])
            if data not in sent.forms:
                raise Violation(f"the store has batch {tag} with other bytes")
            position = end
            found.append(sent.batch._replace(data=data))
        return found

    async def retain(self, key: PartitionKey, max_bytes: int, limit: int) -> Retained:
        truth = self.truths.get(key)
        before = self.extents(key)
        retained = await self._plane.retain(
            *key, before_timestamp=None, max_bytes=max_bytes, limit=limit
        )
        after = self.extents(key)
        gone = before[: len(before) - len(after)]
        if gone and truth is not None:
            self._check_retention(truth, before, len(gone), max_bytes)
        return retained

    def _check_retention(
        self, truth: Truth, before: list[Extent], count: int, max_bytes: int
    ) -> None:
        left_bytes = sum([extent.size_bytes for extent in before])
        for extent in before[:count]:
            left_bytes -= extent.size_bytes
            if extent.next_offset > truth.transactions.stable:
                raise Violation(f"retention dropped {extent}, which is not decided")
            if extent.next_offset > truth.deleted_to and left_bytes < max_bytes:
                raise Violation(f"retention dropped {extent}, and {left_bytes} bytes are left")
            self.seen["retained"] += 1

    async def delete_records(self, key: PartitionKey, before_offset: int) -> None:
        watermarks = await self._plane.delete_records(*key, before_offset)
        truth = self.truths.get(key)
        if truth is not None:
            truth.deleted_to = max(truth.deleted_to, watermarks.log_start_offset)
            self.seen["deleted records"] += 1

    async def swap_extents(self, swap: SegmentSwap) -> None:
        await self._plane.swap_extents(swap)
        self.seen["swap"] += 1

    # What must hold

    def changed(self) -> None:
        """Look at all partitions, if a row of the plane has changed since the last time."""
        changes = run_now(self._plane.changed_rows())
        if changes != self._checked_changes:
            self._checked_changes = changes
            self.check_index()

    def extents(self, key: PartitionKey) -> list[Extent]:
        return run_now(self._plane.extents(*key, start=0, end=ALL, limit=ALL))

    def check_index(self) -> None:
        """Look at all partitions."""
        referenced: set[str] = set()
        watermarks = run_now(self._plane.watermarks(list(self.truths)))
        for (key, truth), bounds in zip(self.truths.items(), watermarks, strict=True):
            extents = self.extents(key)
            self._check_bounds(key, truth, extents, bounds)
            rows = run_now(self._plane.aborted(*key, offset=0, limit=ALL)).transactions
            truth.transactions.check(bounds, rows)
            verified = self._verified.setdefault(key, set())
            for extent in extents:
                if extent not in verified:
                    self._check_extent(truth, extent)
                    verified.add(extent)
                referenced.add(extent.key)
        missing = referenced - self._store.objects.keys()
        if missing:
            raise Violation(f"extents refer to {sorted(missing)}, which are not in the store")
        states = run_now(self._plane.referenced_keys(after="", limit=ALL))
        wrong = referenced - {lease.key for state, lease in states if state == "committed"}
        if wrong:
            raise Violation(f"extents refer to {sorted(wrong)}, which are not COMMITTED")

    def _check_bounds(
        self,
        key: PartitionKey,
        truth: Truth,
        extents: list[Extent],
        watermarks: Watermarks,
    ) -> None:
        if watermarks.high_watermark != truth.next_offset:
            raise Violation(
                f"the high watermark is {watermarks}, {truth.next_offset} were given out"
            )
        if not truth.start <= watermarks.log_start_offset <= watermarks.high_watermark:
            raise Violation(f"the log start of {key[1]} moved from {truth.start} to {watermarks}")
        truth.start = watermarks.log_start_offset
        following = extents[0].base_offset if extents else watermarks.high_watermark
        if following > watermarks.log_start_offset:
            raise Violation(f"there is nothing below {following}, the log starts at {watermarks}")
        for extent in extents:
            if extent.base_offset != following:
                raise Violation(f"extents of {key[1]} do not adjoin at offset {following}")
            following = extent.next_offset
        if following != watermarks.high_watermark:
            raise Violation(f"the extents of {key[1]} end at {following}: {watermarks}")
        if sum([extent.size_bytes for extent in extents]) != watermarks.size_bytes:
            raise Violation(f"the extents of {key[1]} have other sizes together: {watermarks}")

    def _check_extent(self, truth: Truth, extent: Extent) -> None:
        stored = self._store.objects.get(extent.key)
        if stored is None:
            raise Violation(f"{extent} is not in the store")
        body = memoryview(stored.data)[extent.byte_offset : extent.byte_offset + extent.size_bytes]
        offset = extent.base_offset
        for _, count, tag in opened(body):
            if truth.tags.get(offset) != (tag, count):
                raise Violation(
                    f"{extent.key} has batch {tag} for offset {offset}: {truth.tags.get(offset)}"
                )
            offset += count
        if offset != extent.next_offset:
            raise Violation(f"{extent.key} has batches up to {offset}: {extent}")

    def deleted(self, key: str) -> None:
        """An object is gone from the store."""
        self.seen["deleted object"] += 1
        for where in self.truths:
            if any(extent.key == key for extent in self.extents(where)):
                raise Violation(f"{key} was deleted, and an extent refers to it")

    def acknowledged(self, where: PartitionKey, batches: list[Batch], base_offset: int) -> None:
        """A producer was told that its batches are at an offset."""
        if where in self.gone:
            return
        truth = self.truths.get(where, Truth())
        offset = base_offset
        for batch in batches:
            if truth.tags.get(offset) != (batch.tag, batch.offsets):
                raise Violation(
                    f"batch {batch.tag} was acknowledged at offset {offset} of {where[1]}:"
                    f" {truth.tags.get(offset)} is there"
                )
            offset += batch.offsets
        self.seen["acknowledged"] += 1

    def check_read(self, where: PartitionKey, offset: int, data: memoryview) -> int:
        """What a consumer got from an offset on; returns the offset after it."""
        batches = opened(data)
        if where in self.gone:
            return batches[-1][0] + batches[-1][1]
        truth = self.truths.get(where, Truth())
        first = batches[0][0]
        if not first <= offset < first + batches[0][1]:
            raise Violation(f"a read of offset {offset} of {where[1]} begins at {first}")
        following = first
        for base_offset, count, tag in batches:
            if base_offset != following or truth.tags.get(base_offset) != (tag, count):
                raise Violation(
                    f"a read has batch {tag} at offset {base_offset} of {where[1]}, and"
                    f" {truth.tags.get(following)} should be at {following}"
                )
            following += count
        self.seen["read"] += 1
        return following

    def forget(self, key: PartitionKey) -> None:
        """The topic is deleted: nothing holds of it any more but that it leaves nothing."""
        self.truths.pop(key, None)
        self.gone.add(key)

    def check_leaks(self) -> None:
        """At the end: what is in the store is what extents refer to, and so are all rows."""
        referenced = {extent.key for key in self.truths for extent in self.extents(key)}
        if left := self._store.objects.keys() - referenced:
            raise Violation(f"{sorted(left)} are left in the store")
        rows = run_now(self._plane.referenced_keys(after="", limit=ALL))
        if left_rows := [(state, row.key) for state, row in rows if row.key not in referenced]:
            raise Violation(f"{left_rows} are left in the plane")
