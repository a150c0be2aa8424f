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
    doc="Requests and new connections whose connection was not read for a time, by what bounded"
    " them.",
    labels=("quota",),
)
THROTTLE_SECONDS: Final = Metric(
    name="penstock_quota_throttle_seconds_total",
    kind="counter",
    doc="Seconds for which connections were not to be read, of all those that were throttled.",
    labels=("quota",),
)
REFUSED: Final = Metric(
    name="penstock_quota_refused_total",
    kind="counter",
    doc="Topics that were not created, grown or deleted because of a quota.",
)
METERS: Final = Metric(
    name="penstock_quota_meters",
    kind="gauge",
    doc="Users, client ids and addresses whose use is measured because a quota bounds them.",
    labels=("quota",),
)
USED: Final = Metric(
    name="penstock_quota_used_ratio",
    kind="gauge",
    doc="What was used lately of a quota, of the clients that are nearest to theirs or beyond; a"
    " label is empty where the quota is for all in one.",
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
    """What quotas did, and who is nearest to theirs."""
    for quota, count in throttles.counts.items():
        yield Sample(THROTTLED, count, (quota,))
        yield Sample(THROTTLE_SECONDS, throttles.seconds[quota], (quota,))
    yield Sample(REFUSED, throttles.refused)
    used = list(table.used(now_ms))
    meters: dict[str, int] = {}
    for quota, _, _ in used:
        meters[quota] = meters.get(quota, 0) + 1
    yield from _meters(meters)
    for quota, scope, ratio in nlargest(SERIES_MAX, used, key=lambda one: one[2]):
        yield Sample(USED, ratio, (quota, *_labels(scope)))


def _meters(meters: Mapping[str, int]) -> Iterator[Sample]:
    for quota, count in meters.items():
        yield Sample(METERS, count, (quota,))


def _labels(scope: Scope) -> tuple[str, str]:
    user, client_id = ["" if name in (None, ALL) else str(name) for name in scope]
    return user, client_id
