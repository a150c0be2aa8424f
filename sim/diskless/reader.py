"""A consumer of one partition: reads from the start, through any broker, and checks every batch.

A broker looks into its coordinates, or asks the plane; trims, merges, reads and assembles by the
real cores. An object that is gone although the grace of the sweeper has not passed since its
extent was learned is a violation, unless the plane's clock was moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.archive.assembly import Result, assemble
from penstock.archive.errors import CorruptObject
from penstock.archive.planning import Piece, Plan, merge, trim
from penstock.base.errors import PenstockError
from penstock.control import FindRequest, Found, PartitionKey
from penstock.objects import ObjectNotFound, ObjectTruncated
from penstock.records.extents import Extent
from sim.host.scheduler import Violation

if TYPE_CHECKING:
    from sim.diskless.broker import Broker
    from sim.diskless.world import World

POLL_MS = 100.0
FETCH_TIMEOUT_MS = 900.0


class Reader:
    """See the module's text."""

    def __init__(self, world: World, where: PartitionKey) -> None:
        self.world = world
        self.where = where
        self.position = 0
        self.stopped = False
        self._fetches = 0
        world.after(POLL_MS * world.random.random(), self.fetch)

    def fetch(self) -> None:
        """Begin one fetch; the one before it is not waited for any more."""
        world = self.world
        if self.stopped or self.where in world.ledger.gone:
            return
        self._fetches += 1
        Fetch(self, self._fetches)

    def is_current(self, number: int) -> bool:
        return number == self._fetches and not self.stopped

    def ended(self, number: int, position: int | None) -> None:
        """A fetch brought the reader to a position; None for nowhere."""
        if not self.is_current(number):
            return
        if position is not None:
            self.position = position
        self._fetches += 1
        pause_ms = 1.0 if position is not None else POLL_MS
        self.world.after(pause_ms, self.fetch)


class Fetch:
    """One fetch of a reader."""

    def __init__(self, reader: Reader, number: int) -> None:
        self.reader = reader
        self.number = number
        self.world = reader.world
        self.offset = reader.position
        self.max_bytes = self.world.random.choice((1, 200, 1_000))
        self._results: dict[int, memoryview | PenstockError] = {}
        world = self.world
        world.after(FETCH_TIMEOUT_MS, lambda: reader.ended(number, None))
        broker = world.any_broker()
        if broker is None:
            return
        self._broker: Broker = broker
        self.learned_ms = world.now_ms - world.coordinates_age_ms
        key, now = reader.where, world.now_ms / 1000
        known = broker.coordinates.find(key, self.offset, self.max_bytes, now)
        if known:
            world.ledger.seen["known coordinates"] += 1
            self._plan(known)
            return
        self.learned_ms = world.now_ms
        request = FindRequest(*key, self.offset, self.max_bytes)
        world.line.call(
            lambda: world.plane.find([request]),
            broker.here(self._found),
            broker.here(lambda error: self._end(None)),
            changes=False,
        )

    def _end(self, position: int | None) -> None:
        self.reader.ended(self.number, position)

    def _found(self, answers: list[Found]) -> None:
        [found] = answers
        if found.watermarks is not None and found.error == "offset_out_of_range":
            self.world.ledger.seen["out of range"] += 1
            self._end(found.watermarks.log_start_offset)
        elif not found.extents:
            self._end(None)
        else:
            extents = found.extents
            self._broker.coordinates.add(self.reader.where, extents, self.world.now_ms / 1000)
            self._plan(list(extents))

    def _plan(self, extents: list[Extent]) -> None:
        extents = self.world.plants.read(extents)
        pieces = trim(extents, self.offset, max_bytes=self.max_bytes, at_least_one=True)
        plan = merge(pieces, gap_bytes=40)
        for index, range_ in enumerate(plan.ranges):
            self._get(index, pieces, plan, range_.key, range_.start, range_.size_bytes)

    def _get(
        self, index: int, pieces: list[Piece], plan: Plan, key: str, start: int, size_bytes: int
    ) -> None:
        def got(result: memoryview | PenstockError) -> None:
            self._results[index] = result
            if len(self._results) == len(plan.ranges) and self.reader.is_current(self.number):
                self._assemble(pieces, plan)

        self.world.store.get(key, start, size_bytes, self._broker.here(got))

    def _assemble(self, pieces: list[Piece], plan: Plan) -> None:
        results: list[Result] = []
        for piece, place in zip(pieces, plan.locations, strict=True):
            found = self._results[place.range_index]
            if isinstance(found, memoryview):
                found = found[place.offset : place.offset + piece.size_bytes]
            results.append(found)
        run, failure = assemble(pieces, results)
        self._check(failure)
        if failure is not None:
            self._broker.coordinates.drop(self.reader.where)
        if run is None:
            self._end(None)
            return
        self._end(self.world.ledger.check_read(self.reader.where, self.offset, run.data))

    def _check(self, failure: PenstockError | None) -> None:
        world, where = self.world, self.reader.where
        if where in world.ledger.gone or failure is None:
            return
        if isinstance(failure, (CorruptObject, ObjectTruncated)):
            raise Violation(f"offset {self.offset} of {where[1]}: {failure}")
        if isinstance(failure, ObjectNotFound):
            world.ledger.seen["gone under a reader"] += 1
            since_ms = world.now_ms - self.learned_ms
            # What a repeated commit answers may be as old as the writer's timeout.
            grace_ms = world.unreferenced_grace_ms - world.settings.write_timeout_ms
            if since_ms < grace_ms and not world.clock_moved:
                raise Violation(f"{failure}, {since_ms:.0f} ms after its extent was learned")
