"""The garbage collection jobs of a broker's timers. Any number of brokers may run them at once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

from penstock.base.errors import PenstockError
from penstock.base.metrics import Sample
from penstock.base.system import Clock
from penstock.control.batch_index.operations import DisklessPlane
from penstock.control.batch_index.values import PartitionKey, Watermarks
from penstock.diskless.gc.counters import CollectionCounters
from penstock.diskless.gc.id_markers import ObjectIdMarkers
from penstock.diskless.gc.orphans import OrphanCollector
from penstock.diskless.gc.retention import Retention, RetentionTarget
from penstock.diskless.gc.sweeping import Sweeper
from penstock.diskless.identity import StoreGuard
from penstock.diskless.settings import DisklessSettings
from penstock.objects import ObjectStore

logger = logging.getLogger(__name__)


class Job(NamedTuple):
    """A periodic job. `run` raises nothing and may be cancelled; its runs must not overlap."""

    name: str
    interval_ms: int
    run: Callable[[], Awaitable[None]]


class Collection:
    """The garbage collection jobs of one broker, and their parts."""

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        guard: StoreGuard,
        clock: Clock,
        targets: Callable[[], Iterable[RetentionTarget]],
        on_watermarks: Callable[[PartitionKey, Watermarks], None],
    ) -> None:
        self.counters = counters = CollectionCounters()
        self._settings = settings
        self.id_markers = id_markers = ObjectIdMarkers(
            plane=plane, store=store, guard=guard, counters=counters
        )
        self.sweeper = Sweeper(
            settings, plane=plane, store=store, id_markers=id_markers, counters=counters
        )
        self.orphans = OrphanCollector(
            settings, plane=plane, store=store, id_markers=id_markers, counters=counters
        )
        self.retention = Retention(
            settings,
            plane=plane,
            clock=clock,
            targets=targets,
            on_watermarks=on_watermarks,
            counters=counters,
        )

    async def start(self) -> None:
        """Check the store, before the broker serves diskless topics.

        Raises:
            StoreMismatch, DatabaseRestored: the broker must not serve diskless topics.
        """
        await self.id_markers.claim()

    def jobs(self) -> list[Job]:
        settings = self._settings
        jobs = [
            self._job("mark", settings.mark_interval_ms, self.id_markers.note),
            self._job("sweep", settings.sweep_interval_ms, self.sweeper.sweep),
            self._job("retention", settings.retention_interval_ms, self.retention.retain),
        ]
        if settings.orphan_interval_ms:
            jobs.append(self._job("orphans", settings.orphan_interval_ms, self.orphans.collect))
        return jobs

    def samples(self) -> Iterator[Sample]:
        return self.counters.samples()

    def _job(self, name: str, interval_ms: int, work: Callable[[], Awaitable[object]]) -> Job:
        async def run() -> None:
            try:
                await work()
            except PenstockError as error:
                self.counters.failures += 1
                logger.error("job %s of diskless topics failed: %s", name, error)
            except Exception:
                self.counters.failures += 1
                logger.exception("job %s of diskless topics failed", name)

        return Job(name, interval_ms, run)
