"""Bugs to be found: each breaks one rule, and the checks have to notice within some seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError
from penstock.control import (
    CommitAnswer,
    Condemned,
    DisklessExtent,
    MemoryControlPlane,
    ObjectCommit,
    PartitionMarks,
    Retained,
    SegmentSwap,
)
from penstock.diskless.collection.sweeping import Condemn, ForgetObjects, SweepStep
from penstock.diskless.writing.effects import Answer, CommitObject
from penstock.diskless.writing.gathering import Gathering
from penstock.diskless.writing.objects import WalObject
from penstock.records.appends import AppendResult
from sim.diskless import upkeep
from sim.diskless.ledger import ALL
from sim.diskless.plane import run_now

if TYPE_CHECKING:
    from uuid import UUID

    from sim.diskless.broker import Broker
    from sim.diskless.world import World


class Plants:
    """What a plant may replace; nothing here is wrong."""

    plane: type[MemoryControlPlane] = MemoryControlPlane
    core: type[Gathering] = Gathering

    def put_key(self, key: str) -> str:
        return key

    def sweep(self, world: World, step: SweepStep | None) -> SweepStep | None:
        return step

    def read(self, extents: list[DisklessExtent]) -> list[DisklessExtent]:
        return extents

    def orphans(self, world: World, broker: Broker) -> None:
        upkeep.OrphanRun(world, broker)


# Planes


class _CommitsAgain(MemoryControlPlane):
    """Forgets that it has committed an object."""

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        row = self._objects.get(commit.object_id)
        if row is not None and row.state == "committed":
            row.state = "pending"
        return await super().commit_object(commit)


class _LetsLateCommitsWin(MemoryControlPlane):
    """Commits what the sweeper has marked."""

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        row = self._objects.get(commit.object_id)
        if row is not None and row.state == "deleting" and row.answer is None:
            row.state = "pending"
        return await super().commit_object(commit)


class _KnowsNoSequences(MemoryControlPlane):
    """Takes every producer for one that is not idempotent."""

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        entries = tuple([entry._replace(producer_id=-1) for entry in commit.entries])
        return await super().commit_object(replace(commit, entries=entries))


class _SkipsAnOffset(MemoryControlPlane):
    """Leaves a gap behind every commit."""

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        answer = await super().commit_object(commit)
        for key in answer.marks:
            row = self._rows[key]
            self._rows[key] = row._replace(high_watermark=row.high_watermark + 1)
        return answer


class _GivesOffsetsTwice(MemoryControlPlane):
    """Does not move the high watermark far enough."""

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        answer = await super().commit_object(commit)
        for key in answer.marks:
            row = self._rows[key]
            self._rows[key] = row._replace(high_watermark=row.high_watermark - 1)
        return answer


class _HasNoGrace(MemoryControlPlane):
    """Condemns what was unreferenced a moment ago."""

    async def condemn(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> list[Condemned]:
        return await super().condemn(
            pending_grace_ms=pending_grace_ms, unreferenced_grace_ms=0, limit=limit
        )


class _ReleasesTooMuch(MemoryControlPlane):
    """Counts an object as unreferenced when its first extent goes."""

    def _release(self, extents: list[DisklessExtent]) -> None:  # type: ignore[override]
        super()._release(extents)
        for extent in extents:
            self._objects[extent.object_id].references = 0


class _ReleasesNothing(MemoryControlPlane):
    """Never notices that an object is not referred to any more."""

    def _release(self, extents: list[DisklessExtent]) -> None:  # type: ignore[override]
        return


class _SwapsAnything(MemoryControlPlane):
    """Does not look at what a segment replaces."""

    async def swap_extents(self, swap: SegmentSwap) -> None:
        there = self._extents.get((swap.topic_id, swap.partition), [])
        start, end = swap.replaced[0].base_offset, swap.replaced[-1].next_offset
        row = self._objects.get(swap.object_id)
        if row is None or row.state != "pending":
            return
        kept = [one for one in there if not start <= one.base_offset < end]
        there[:] = sorted([*kept, *swap.extents], key=lambda one: one.base_offset)
        row.state, row.kind, row.references = "committed", "segment", len(swap.extents)


class _RetainsTooLittle(MemoryControlPlane):
    """Drops everything, however much is to be kept."""

    async def retain(
        self,
        topic_id: UUID,
        partition: int,
        *,
        before_timestamp: int | None,
        max_bytes: int | None,
        limit: int,
    ) -> Retained:
        return await super().retain(
            topic_id, partition, before_timestamp=before_timestamp, max_bytes=0, limit=limit
        )


class _MovesStartsBack(MemoryControlPlane):
    """Takes every deletion at its word."""

    async def delete_records(
        self, topic_id: UUID, partition: int, before_offset: int
    ) -> PartitionMarks:
        key = (topic_id, partition)
        if before_offset >= 0 and key in self._rows:
            self._rows[key] = self._rows[key]._replace(log_start_offset=before_offset)
            return self._rows[key].marks
        return await super().delete_records(topic_id, partition, before_offset)


# Writers


class _AnswersEarly(Gathering):
    """Answers producers when an object is written, with the offsets that it expects."""

    def put_done(self, number: int, object_id: int, now_ms: float) -> None:
        item = self._objects.get(number)
        super().put_done(number, object_id, now_ms)
        if item is not None:
            outcomes = [(submission, AppendResult(0, -1, 0)) for submission in item.kept()]
            self._effects.append(Answer(list(outcomes)))


class _CommitsUnwritten(Gathering):
    """Takes a failed PUT for one that is done."""

    def put_failed(
        self, number: int, object_id: int, error: PenstockError, now_ms: float, chance: float
    ) -> None:
        self.put_done(number, object_id, now_ms)


class _MixesPlaces(Gathering):
    """Says that everything lies one byte further on."""

    def _commit(self, item: WalObject) -> None:
        super()._commit(item)
        effect = self._effects[-1]
        if isinstance(effect, CommitObject):
            moved = [entry._replace(byte_offset=entry.byte_offset + 1) for entry in effect.entries]
            self._effects[-1] = effect._replace(entries=tuple(moved))


class CommitsAgain(Plants):
    plane = _CommitsAgain


class LetsLateCommitsWin(Plants):
    plane = _LetsLateCommitsWin


class KnowsNoSequences(Plants):
    plane = _KnowsNoSequences


class SkipsAnOffset(Plants):
    plane = _SkipsAnOffset


class GivesOffsetsTwice(Plants):
    plane = _GivesOffsetsTwice


class HasNoGrace(Plants):
    plane = _HasNoGrace


class ReleasesTooMuch(Plants):
    plane = _ReleasesTooMuch


class ReleasesNothing(Plants):
    plane = _ReleasesNothing


class SwapsAnything(Plants):
    plane = _SwapsAnything


class RetainsTooLittle(Plants):
    plane = _RetainsTooLittle


class MovesStartsBack(Plants):
    plane = _MovesStartsBack


class AnswersEarly(Plants):
    core = _AnswersEarly


class CommitsUnwritten(Plants):
    core = _CommitsUnwritten


class MixesPlaces(Plants):
    core = _MixesPlaces


class WritesKeysAgain(Plants):
    """A writer that uses a key again when the one before it has failed, or not."""

    def __init__(self) -> None:
        self._last = ""

    def put_key(self, key: str) -> str:
        last, self._last = self._last, key
        return last if last and int(last[-25:-9], 16) % 4 == 1 else key


class ReadsOverHoles(Plants):
    """A reader that leaves out the extent that it should begin with."""

    def read(self, extents: list[DisklessExtent]) -> list[DisklessExtent]:
        return extents[1:] or extents


class DeletesUnmarked(Plants):
    """A sweeper that deletes what is pending before it marks it."""

    def sweep(self, world: World, step: SweepStep | None) -> SweepStep | None:
        if isinstance(step, Condemn):
            rows = run_now(world.plane.referenced_keys(after="", limit=ALL))
            pending = [lease.key for state, lease in rows if state == "pending"]
            world.store.delete(pending, lambda: None, lambda error: None)
        return step


class NeverForgets(Plants):
    """A sweeper that leaves the rows of what it has deleted."""

    def sweep(self, world: World, step: SweepStep | None) -> SweepStep | None:
        return None if isinstance(step, ForgetObjects) else step


class LeavesOrphans(Plants):
    """Nobody looks for objects without rows."""

    def orphans(self, world: World, broker: Broker) -> None:
        return


class TakesNewForOrphans(Plants):
    """Reads the rows first and lists the store then, without a grace."""

    def orphans(self, world: World, broker: Broker) -> None:
        rows = run_now(world.plane.referenced_keys(after="", limit=ALL))
        known = {lease.key for _, lease in rows}

        def listed() -> None:
            orphans = sorted(world.store.objects.keys() - known)
            world.store.delete(orphans, lambda: None, lambda error: None)

        world.after(60, listed)


PLANTS: dict[str, type[Plants]] = {
    "commits again": CommitsAgain,
    "lets late commits win": LetsLateCommitsWin,
    "knows no sequences": KnowsNoSequences,
    "skips an offset": SkipsAnOffset,
    "gives offsets twice": GivesOffsetsTwice,
    "has no grace": HasNoGrace,
    "releases too much": ReleasesTooMuch,
    "releases nothing": ReleasesNothing,
    "swaps anything": SwapsAnything,
    "retains too little": RetainsTooLittle,
    "moves starts back": MovesStartsBack,
    "answers early": AnswersEarly,
    "commits unwritten": CommitsUnwritten,
    "mixes places": MixesPlaces,
    "writes keys again": WritesKeysAgain,
    "reads over holes": ReadsOverHoles,
    "deletes unmarked": DeletesUnmarked,
    "never forgets": NeverForgets,
    "leaves orphans": LeavesOrphans,
    "takes new for orphans": TakesNewForOrphans,
}
