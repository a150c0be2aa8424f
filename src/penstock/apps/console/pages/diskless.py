"""Page of diskless topics: objects written, fetch paths, cache, and extents to consolidate."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.apps.console.live import quantile
from penstock.apps.console.rendering import Pages
from penstock.apps.console.tables import Column, Table
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.base.metrics import Histogram
from penstock.broker.admin.access import DESCRIBE, Needs
from penstock.broker.admin.extents import ConsolidationViews
from penstock.broker.assembly import Assembly

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.diskless.topics.service import DisklessService

SNAPSHOTS_MAX: Final = 10
SNAPSHOT_SECONDS: Final = 4.0
"""Least time between the snapshots of counters from which rates are computed."""
PATHS: Final = {"hot": "Hot path (recent data)", "cold": "Cold path (old data)"}
REQUESTS: Final = {
    "hot": "penstock_objects_recent_data_requests_total",
    "cold": "penstock_objects_lagging_consumer_requests_total",
}
FETCH: Final = "penstock_objects_fetch_"
CACHE: Final = "penstock_objects_cache_"
WRITE: Final = "penstock_diskless_"

Key = tuple[str, tuple[str, ...]]


Backlog = Mapping[str, Any]
"""Partition with extents in write-ahead objects that wait to be consolidated."""

BACKLOGS: Final[Table[Backlog]] = Table(
    Column(name="topic", title="Topic", key=lambda row: (row["topic"], row["partition"])),
    Column(name="partition", title="Partition", key=lambda row: row["partition"], number=True),
    Column(name="extents", title="Extents", key=lambda row: row["extents"], number=True),
    Column(name="oldest", title="Oldest record (UTC)", key=lambda row: row["oldest_timestamp"]),
    Column(name="size", title="Size", key=lambda row: row["size_bytes"], number=True),
    sort="-size",
    text=lambda row: row["topic"],
    search="Search topics",
)


class Figures(Struct, frozen=True, kw_only=True):
    """Metrics of diskless topics at a time, and their rates since `before` if that is known."""

    at: float
    values: Mapping[Key, float | Histogram]
    before: Figures | None = None

    @property
    def seconds(self) -> float | None:
        """Time over which the rates are computed."""
        return None if self.before is None else self.at - self.before.at

    def value(self, name: str, *labels: str) -> float:
        found = self.values.get((name, labels), 0)
        return sum(found.counts) if isinstance(found, Histogram) else found

    def rate(self, name: str, *labels: str) -> float | None:
        """Return the increase per second of a counter; None if it is unknown."""
        if self.before is None:
            return None
        rise = self.value(name, *labels) - self.before.value(name, *labels)
        return rise / (self.at - self.before.at)

    def quantile_ms(self, share: float, name: str, *labels: str) -> float | None:
        """Return a quantile of a latency since the start, in ms; None without observations."""
        found = self.values.get((name, labels))
        if not isinstance(found, Histogram):
            return None
        return quantile(found.bounds, found.counts, share)


class DisklessPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    snapshots: deque[Figures]

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/diskless", DESCRIBE, BACKLOGS.parameters)
    async def diskless(self, request: Request) -> Response:
        """Show the figures of this broker, and the backlogs of the cluster."""
        service = self.broker.diskless
        figures = None if service is None else self._figures(service)
        return self.pages.show(
            request,
            "diskless.html",
            title="Diskless topics",
            service=service,
            topics=sum(1 for served in self.broker.partitions.topics.values() if served.diskless),
            paths=[] if figures is None else [_path(figures, name) for name in PATHS],
            cache=None if figures is None else _cache(figures),
            writing=None if figures is None else _writing(figures),
            seconds=None if figures is None else figures.seconds,
            **await self._backlogs(request, service),
        )

    def _figures(self, service: DisklessService) -> Figures:
        """Return the figures now, with rates since the last snapshot that is old enough."""
        now = self.broker.clock.monotonic()
        values = {
            (sample.metric.name, sample.labels): sample.value.copy()
            if isinstance(sample.value, Histogram)
            else sample.value
            for sample in service.samples()
        }
        figures = Figures(at=now, values=values)
        old = [known for known in self.snapshots if now - known.at >= SNAPSHOT_SECONDS]
        if not self.snapshots or now - self.snapshots[-1].at >= SNAPSHOT_SECONDS:
            self.snapshots.append(figures)
        return replace(figures, before=old[-1]) if old else figures

    async def _backlogs(self, request: Request, service: DisklessService | None) -> dict[str, Any]:
        """Return the table of backlogs, and the reason if it cannot be read."""
        if service is None:
            return {"table": None, "problem": ""}
        views = ConsolidationViews(partitions=self.broker.partitions, diskless=service)
        try:
            found = await views.backlogs(request)
        except PenstockError as error:
            return {"table": None, "problem": str(error)}
        return {"table": BACKLOGS.view(request, found["partitions"]), "problem": ""}


def _path(figures: Figures, name: str) -> dict[str, Any]:
    """Return the figures of a fetch path; rates are per second, latencies in ms."""
    return dict(
        title=PATHS[name],
        requests=figures.rate(REQUESTS[name]),
        bytes_read=figures.rate(f"{FETCH}bytes_total", name),
        total_bytes=figures.value(f"{FETCH}bytes_total", name),
        p50_ms=figures.quantile_ms(0.5, f"{FETCH}seconds", name),
        p99_ms=figures.quantile_ms(0.99, f"{FETCH}seconds", name),
        running=figures.value(f"{FETCH}running", name),
        waiting=figures.value(f"{FETCH}waiting", name),
        failures=figures.value(f"{FETCH}failures_total", name),
        retries=figures.value(f"{FETCH}retries_total", name),
    )


def _cache(figures: Figures) -> dict[str, Any]:
    """Return the figures of the cache; the share of hits is None without requests."""
    hits, misses = figures.value(f"{CACHE}hits_total"), figures.value(f"{CACHE}misses_total")
    return dict(
        size_bytes=figures.value(f"{CACHE}bytes"),
        blocks=figures.value(f"{CACHE}blocks"),
        hit_share=hits / (hits + misses) if hits + misses else None,
        evictions=figures.value(f"{CACHE}evictions_total"),
    )


def _writing(figures: Figures) -> dict[str, Any]:
    """Return the figures of the writer since the start; rates are per second, latencies in ms."""
    return dict(
        objects=figures.value(f"{WRITE}objects_committed_total"),
        objects_rate=figures.rate(f"{WRITE}objects_committed_total"),
        bytes_rate=figures.rate(f"{WRITE}object_committed_bytes_total"),
        pending_bytes=figures.value(f"{WRITE}pending_bytes"),
        in_flight=figures.value(f"{WRITE}objects_in_flight"),
        failed=figures.value(f"{WRITE}objects_failed_total"),
        refused=figures.value(f"{WRITE}submissions_refused_total"),
        put_p99_ms=figures.quantile_ms(0.99, f"{WRITE}put_seconds"),
        commit_p99_ms=figures.quantile_ms(0.99, f"{WRITE}commit_seconds"),
    )
