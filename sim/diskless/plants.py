"""Bugs to be found: each breaks one rule, and the checks have to notice within some seeds."""

from __future__ import annotations

from collections.abc import Callable
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.control import (
    CommitAnswer,
    MarkedObject,
    MemoryControlPlane,
    ObjectCommit,
    Retained,
    SegmentSwap,
    Watermarks,
)
from penstock.control.drivers.sqlite_writer import SqliteDatabase
from penstock.control.drivers.statements import Each, Lock, Operation, Rows
from penstock.control.operations import diskless_tables
from penstock.diskless.gc.jobs import ForgetObjects, MarkForDeletion, SweepStep
from penstock.diskless.writing.accumulator import Accumulator, Answer, CommitObject
from penstock.diskless.writing.objects import WalObject
from penstock.records.appends import AppendResult
from penstock.records.extents import Extent
from penstock.records.transactions import OFFSET_MAX
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
    core: type[Accumulator] = Accumulator

    def put_key(self, key: str) -> str:
        return key

    def sweep(self, world: World, step: SweepStep | None) -> SweepStep | None:
        return step

    def read(self, extents: list[Extent]) -> list[Extent]:
        return extents

    def orphans(self, world: World, broker: Broker) -> None:
        upkeep.OrphanRun(world, broker)


# Planes


class _Planted(MemoryControlPlane):
    """Changes rows behind the back of its own code."""

    async def plant(self, statement: str, *values: object) -> None:
        await self._writer.run(lambda connection: connection.execute(statement, values))


class _CommitsAgain(_Planted):
    """Forgets that it has committed an object."""

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        number = commit.object_id
        await self.plant("DELETE FROM diskless_answers WHERE object_id = ?", number)
        await self.plant(
            "UPDATE diskless_objects SET state = 'pending'"
            " WHERE object_id = ? AND state = 'committed'",
            number,
        )
        return await super().commit_object(commit)


class _LetsLateCommitsWin(_Planted):
    """Commits what the sweeper has marked."""

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        await self.plant(
            "UPDATE diskless_objects SET state = 'pending' WHERE object_id = ?1"
            " AND state = 'deleting'"
            " AND NOT EXISTS (SELECT 1 FROM diskless_answers WHERE object_id = ?1)",
            commit.object_id,
        )
        return await super().commit_object(commit)


class _KnowsNoSequences(MemoryControlPlane):
    """Takes every producer for one that is not idempotent."""

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        entries = tuple([entry._replace(producer_id=-1, marker=None) for entry in commit.entries])
        return await super().commit_object(replace(commit, entries=entries))


class _TakesLateOnes(MemoryControlPlane):
    """Does not look at when batches of transactions were verified, or when markers were made."""

    late_markers: bool

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        entries = [
            entry._replace(verified_from=OFFSET_MAX)
            if entry.transactional and (entry.marker is not None) == self.late_markers
            else entry
            for entry in commit.entries
        ]
        return await super().commit_object(replace(commit, entries=tuple(entries)))


class _TakesLateBatches(_TakesLateOnes):
    late_markers = False


class _TakesLateMarkers(_TakesLateOnes):
    late_markers = True


class _ChangesBehindCommits(_Planted):
    """Runs a statement behind every commit."""

    statement: str

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        answer = await super().commit_object(commit)
        await self.plant(self.statement)
        return answer


class _SeesOpenOnesAsDecided(_ChangesBehindCommits):
    statement = "UPDATE diskless_partitions SET open_offset = -1"


class _ForgetsAbortedOnes(_ChangesBehindCommits):
    statement = "DELETE FROM diskless_aborted"


class _ForgetsEpochs(_ChangesBehindCommits):
    """Of producers whose transactions have ended."""

    statement = "DELETE FROM diskless_producers WHERE txn_first_offset < 0 AND batches = X''"


class _MovesHighWatermarks(_Planted):
    """Sets high watermarks wrongly behind every commit."""

    by: int

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        answer = await super().commit_object(commit)
        for topic_id, partition in answer.watermarks:
            await self.plant(
                "UPDATE diskless_partitions SET high_watermark = high_watermark + ?1"
                " WHERE topic_id = ?2 AND number = ?3 AND high_watermark + ?1 >= log_start_offset",
                self.by,
                topic_id.bytes,
                partition,
            )
        return answer


class _SkipsAnOffset(_MovesHighWatermarks):
    """Leaves a gap behind every commit."""

    by = 1


class _GivesOffsetsTwice(_MovesHighWatermarks):
    """Does not move the high watermark far enough."""

    by = -1


class _HasNoGrace(MemoryControlPlane):
    """Condemns what was unreferenced a moment ago."""

    async def mark_for_deletion(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> list[MarkedObject]:
        return await super().mark_for_deletion(
            pending_grace_ms=pending_grace_ms, unreferenced_grace_ms=0, limit=limit
        )


class _Releases(MemoryControlPlane):
    """Counts references that are gone in another way."""

    counting: Each

    @property
    def _database(self) -> Any:
        return _Counting(cast(SqliteDatabase, self._writer), self.counting)


class _Counting(SqliteDatabase):
    """Executes another statement in the place of `objects.release`."""

    def __init__(self, inner: SqliteDatabase, counting: Each) -> None:
        self._inner = inner
        self._counting = counting

    async def run(
        self,
        operation: Callable[[Connection], Any],
        *,
        reads: bool = False,
        rows: Rows = None,
        synced: bool = True,
    ) -> Any:
        return await self._inner.run(operation, reads=reads)

    async def change(
        self,
        make: Callable[[], Operation[Any]],
        *,
        lock: Lock = Lock.NONE,
        cluster_epoch: int | None = None,
        rows: Rows = None,
        synced: bool = True,
    ) -> Any:
        return await super().change(lambda: self._replaced(make()))

    def _replaced(self, operation: Operation[Any]) -> Operation[Any]:
        answer: Any = None
        while True:
            try:
                statement, values = operation.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield (
                (self._counting if statement is diskless_tables.release else statement),
                values,
            )


class _ReleasesNothing(_Releases):
    """Never notices that an object is not referred to any more."""

    counting = Each("changed", "", sqlite="UPDATE diskless_objects SET extents = 1 WHERE $1 < $2")


class _ReleasesTooMuch(_Releases):
    """Counts an object as unreferenced when its first extent goes."""

    counting = Each(
        "changed",
        "",
        sqlite="UPDATE diskless_objects SET extents = 0, changed_ms = penstock_now_ms()"
        " WHERE object_id = $1 AND $2 > 0",
    )


class _SwapsAnything(MemoryControlPlane):
    """Does not look at what a segment replaces."""

    async def swap_extents(self, swap: SegmentSwap) -> None:
        await self._database.change(lambda: self._swap(swap))

    def _swap(self, swap: SegmentSwap) -> Operation[None]:
        found = yield from diskless_tables.lock([swap.object_id])
        if swap.object_id not in found or found[swap.object_id].state != "pending":
            return
        row = yield from diskless_tables.lock_one((swap.topic_id, swap.partition))
        yield from diskless_tables.drop(row.partition_id, swap.replaced)
        yield diskless_tables.insert(diskless_tables.rows_of(row.partition_id, swap.extents))
        segment = (swap.object_id, "committed", "segment", swap.size_bytes, len(swap.extents))
        yield diskless_tables.write_committed([segment])


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


class _MovesStartsBack(_Planted):
    """Takes every deletion at its word."""

    async def delete_records(
        self, topic_id: UUID, partition: int, before_offset: int
    ) -> Watermarks:
        await self.plant(
            "UPDATE diskless_partitions SET log_start_offset = ?1"
            " WHERE topic_id = ?2 AND number = ?3 AND ?1 BETWEEN 0 AND high_watermark",
            before_offset,
            topic_id.bytes,
            partition,
        )
        return await super().delete_records(topic_id, partition, before_offset)


# Writers


class _AnswersEarly(Accumulator):
    """Answers producers when an object is written, with the offsets that it expects."""

    def put_done(self, number: int, object_id: int, now_ms: float) -> None:
        item = self._objects.get(number)
        super().put_done(number, object_id, now_ms)
        if item is not None:
            outcomes = [(submission, AppendResult(0, -1, 0)) for submission in item.kept()]
            self._effects.append(Answer(list(outcomes)))


class _CommitsUnwritten(Accumulator):
    """Takes a failed PUT for one that is done."""

    def put_failed(
        self, number: int, object_id: int, error: PenstockError, now_ms: float, chance: float
    ) -> None:
        self.put_done(number, object_id, now_ms)


class _MixesPlaces(Accumulator):
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


class TakesLateBatches(Plants):
    plane = _TakesLateBatches


class TakesLateMarkers(Plants):
    plane = _TakesLateMarkers


class SeesOpenOnesAsDecided(Plants):
    plane = _SeesOpenOnesAsDecided


class ForgetsAbortedOnes(Plants):
    plane = _ForgetsAbortedOnes


class ForgetsEpochs(Plants):
    plane = _ForgetsEpochs


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

    def read(self, extents: list[Extent]) -> list[Extent]:
        return extents[1:] or extents


class DeletesUnmarked(Plants):
    """A sweeper that deletes what is pending before it marks it."""

    def sweep(self, world: World, step: SweepStep | None) -> SweepStep | None:
        if isinstance(step, MarkForDeletion):
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
    "takes late batches": TakesLateBatches,
    "takes late markers": TakesLateMarkers,
    "sees open ones as decided": SeesOpenOnesAsDecided,
    "forgets aborted ones": ForgetsAbortedOnes,
    "forgets epochs": ForgetsEpochs,
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
