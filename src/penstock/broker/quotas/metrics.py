"""Metrics of quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from penstock.base.metrics import Metric, Sample
from penstock.broker.quotas.limits import SERIES_MAX
from penstock.broker.quotas.table import ALL

if TYPE_CHECKING:
    from penstock.broker.quotas.table import QuotaTable, Scope

THROTTLED: Final = Metric(
    name="penstock_quota_throttled_total",
    kind="counter",
    doc="Throttled requests and new connections, by quota.",
    labels=("quota",),
)
THROTTLE_SECONDS: Final = Metric(
    name="penstock_quota_throttle_seconds_total",
    kind="counter",
    doc="Total throttle time in seconds, by quota.",
    labels=("quota",),
)
REFUSED: Final = Metric(
    name="penstock_quota_refused_total",
    kind="counter",
    doc="Topics whose creation, growth or deletion a quota rejected.",
)
METERS: Final = Metric(
    name="penstock_quota_meters",
    kind="gauge",
    doc="Users, client ids and addresses that are measured because they have a quota.",
    labels=("quota",),
)
USED: Final = Metric(
    name="penstock_quota_used_ratio",
    kind="gauge",
    doc="Recent use as a fraction of the quota, of the clients nearest to or above it; a label is"
    " empty if the quota is shared by all.",
    labels=("quota", "user", "client_id"),
)


class Throttles:
    """Counts of throttling; one object per broker."""

    __slots__ = ("counts", "refused", "seconds")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.refused = 0

    def throttled(self, quota: str, milliseconds: float) -> None:
        self.counts[quota] = self.counts.get(quota, 0) + 1
        self.seconds[quota] = self.seconds.get(quota, 0.0) + milliseconds / 1000


def quota_samples(throttles: Throttles, table: QuotaTable, now_ms: float) -> Iterator[Sample]:
    """Yield the effects of quotas, and the clients nearest to theirs."""
    for quota, count in throttles.counts.items():
        yield Sample(THROTTLED, count, (quota,))
        yield Sample(THROTTLE_SECONDS, throttles.seconds[quota], (quota,))
    yield Sample(REFUSED, throttles.refused)
    used = list(table.used(now_ms))
    meters: dict[str, int] = {}
    for quota, _, _ in used:
        meters[quota] = meters.get(quota, 0) + 1
    yield from _meters(meters)
    for quota, scope, ratio in nlargest(SERIES_MAX, used, key=lambda row: row[2]):
        yield Sample(USED, ratio, (quota, *_labels(scope)))


def _meters(meters: Mapping[str, int]) -> Iterator[Sample]:
    for quota, count in meters.items():
        yield Sample(METERS, count, (quota,))


def _labels(scope: Scope) -> tuple[str, str]:
    user, client_id = ["" if name in (None, ALL) else str(name) for name in scope]
    return user, client_id
