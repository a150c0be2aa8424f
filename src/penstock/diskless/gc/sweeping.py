"""The sweeper: deletes unused objects, in three steps that a crash may interrupt.

| step                                       | a crash after it leaves                            |
|--------------------------------------------|----------------------------------------------------|
| mark: set unused rows to DELETING          | marked rows, which the next pass deletes           |
| delete: delete the objects of marked rows  | rows without objects, which the next pass forgets  |
| forget: delete the marked rows             | nothing                                            |

The three steps are repeated while there are more objects. Marking is a compare-and-set: a later
commit of a marked object is rejected, so no committed object is deleted. Several brokers may sweep
at once, because deletions are idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.control.batch_index.operations import DisklessPlane
from penstock.control.batch_index.values import MarkedObject
from penstock.diskless.gc.counters import CollectionCounters
from penstock.diskless.gc.id_markers import ObjectIdMarkers
from penstock.diskless.settings import DisklessSettings
from penstock.objects import ObjectStore

SWEPT_OBJECTS_MAX: Final = 1_000
"""Objects that one repetition of the three steps deletes."""
SWEEP_STEPS_MAX: Final = 100
"""Repetitions of the three steps in one pass."""

logger = logging.getLogger(__name__)


class MarkForDeletion(NamedTuple):
    """Effect: mark up to `limit` unused objects. Pass all marked objects to `condemned`."""

    limit: int


class DeleteObjects(NamedTuple):
    """Effect: delete objects from the store. Call `deleted` afterwards."""

    keys: list[str]


class ForgetObjects(NamedTuple):
    """Effect: delete the rows of objects. Call `forgotten` afterwards."""

    object_ids: list[int]


SweepStep = MarkForDeletion | DeleteObjects | ForgetObjects


class Sweep:
    """The core of one pass. Each method returns the next effect, or None at the end."""

    def __init__(
        self, *, objects_max: int = SWEPT_OBJECTS_MAX, rounds_max: int = SWEEP_STEPS_MAX
    ) -> None:
        self._objects_max = objects_max
        self._rounds_left = rounds_max
        self._objects: Sequence[MarkedObject] = ()
        self.swept_objects = self.swept_bytes = 0

    def begin(self) -> SweepStep | None:
        if not self._rounds_left:
            return None
        self._rounds_left -= 1
        return MarkForDeletion(self._objects_max)

    def condemned(self, objects: Sequence[MarkedObject]) -> SweepStep | None:
        self._objects = objects
        return DeleteObjects([item.key for item in objects]) if objects else None

    def deleted(self) -> SweepStep | None:
        return ForgetObjects([item.object_id for item in self._objects])

    def forgotten(self) -> SweepStep | None:
        objects, self._objects = self._objects, ()
        self.swept_objects += len(objects)
        self.swept_bytes += sum([item.size_bytes for item in objects])
        return self.begin() if len(objects) >= self._objects_max else None


class Sweeper:
    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        id_markers: ObjectIdMarkers,
        counters: CollectionCounters,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._store = store
        self._id_markers = id_markers
        self._counters = counters

    async def sweep(self) -> int:
        """Run one pass; return the number of deleted objects.

        Raises:
            StoreMismatch: the store is not the control plane's; nothing was deleted.
            DatabaseRestored: the database was restored and lacks rows; nothing was deleted.
            PenstockError: the store or the control plane failed; the next pass continues.
        """
        await self._id_markers.check()
        core = Sweep()
        try:
            step = core.begin()
            while step is not None:
                step = await self._perform(core, step)
        finally:
            self._counters.swept_objects += core.swept_objects
            self._counters.swept_bytes += core.swept_bytes
        return core.swept_objects

    async def _perform(self, core: Sweep, step: SweepStep) -> SweepStep | None:
        settings = self._settings
        match step:
            case MarkForDeletion(limit):
                objects = await self._plane.mark_for_deletion(
                    pending_grace_ms=settings.sweep_pending_grace_ms,
                    unreferenced_grace_ms=settings.sweep_unreferenced_grace_ms,
                    limit=limit,
                )
                return core.condemned(objects)
            case DeleteObjects(keys):
                await self._store.delete(keys)
                return core.deleted()
            case ForgetObjects(object_ids):
                await self._plane.forget_objects(object_ids)
                return core.forgotten()
