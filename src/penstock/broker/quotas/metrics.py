"""Metrics of quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from penstock.base.metrics import Metrics, Sample, counter, counters, gauges
from penstock.broker.quotas.table import ALL

if TYPE_CHECKING:
    from penstock.broker.quotas.table import QuotaTable, Scope

SERIES_MAX: Final = 100
"""Maximum number of entities in metrics; those with the highest use of their quotas are kept."""


class Throttles(Metrics, prefix="penstock_quota_"):
    """Metrics of quotas; one object per broker."""

    counts: dict[str, int] = counters(
        "throttled_total", "Throttled requests and new connections, by quota.", "quota"
    )
    seconds: dict[str, float] = counters(
        "throttle_seconds_total", "Total throttle time in seconds, by quota.", "quota"
    )
    refused = counter(
        "refused_total", "Topics whose creation, growth or deletion a quota rejected."
    )
    meters: dict[str, int] = gauges(
        "meters",
        "Users, client ids and addresses that are measured because they have a quota.",
        "quota",
    )
    used: dict[tuple[str, str, str], float] = gauges(
        "used_ratio",
        "Recent use divided by the quota, for the clients with the highest values; a label is empty"
        " if all users or all client ids share the quota.",
        "quota",
        "user",
        "client_id",
    )

    def throttled(self, quota: str, milliseconds: float) -> None:
        self.counts[quota] += 1
        self.seconds[quota] += milliseconds / 1000


def quota_samples(throttles: Throttles, table: QuotaTable, now_ms: float) -> Iterator[Sample]:
    """Yield the metrics of throttling, and of the clients with the highest use of their quotas."""
    used = list(table.used(now_ms))
    throttles.meters = Counter(quota for quota, _, _ in used)
    throttles.used = {
        (quota, *_labels(scope)): ratio
        for quota, scope, ratio in nlargest(SERIES_MAX, used, key=lambda row: row[2])
    }
    return throttles.samples()


def _labels(scope: Scope) -> tuple[str, str]:
    user, client_id = ["" if name in (None, ALL) else str(name) for name in scope]
    return user, client_id
