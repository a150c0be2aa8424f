"""Metrics of tiered storage, named after Kafka's (`RemoteCopyLagBytes` and so on).

Source: KIP-405, KIP-963 (additional metrics in tiered storage).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.base.metrics import Kind, Metric, Sample

if TYPE_CHECKING:
    from penstock.partitions.tiering.core import TierCore


def _metric(kind: Kind, name: str, doc: str) -> Metric:
    return Metric(name=f"penstock_remote_{name}", kind=kind, doc=doc)


COPY_BYTES: Final = _metric("counter", "copy_bytes_total", "Bytes copied to the archive.")
COPIES: Final = _metric("counter", "copy_requests_total", "Segments copied to the archive.")
COPY_ERRORS: Final = _metric(
    "counter", "copy_errors_total", "Failed attempts to copy or delete segments."
)
COPY_LAG_BYTES: Final = _metric(
    "gauge", "copy_lag_bytes", "Bytes of closed segments that wait to be copied."
)
COPY_LAG_SEGMENTS: Final = _metric(
    "gauge", "copy_lag_segments", "Closed segments that wait to be copied."
)
FETCH_BYTES: Final = _metric(
    "counter", "fetch_bytes_total", "Bytes of batches read from the archive for consumers."
)
FETCHES: Final = _metric("counter", "fetch_requests_total", "Reads from the archive for consumers.")
FETCH_ERRORS: Final = _metric(
    "counter", "fetch_errors_total", "Failed reads from the archive for consumers."
)
FETCH_REJECTED: Final = _metric(
    "counter", "fetch_rejected_total", "Reads rejected because too many waited."
)
DELETED: Final = _metric(
    "counter", "delete_requests_total", "Segments that retention deleted from the archive."
)
DELETED_BYTES: Final = _metric(
    "counter", "delete_bytes_total", "Bytes that retention deleted from the archive."
)
SIZE_BYTES: Final = _metric(
    "gauge", "log_size_bytes", "Bytes in the archive of partitions that this broker leads."
)
SEGMENTS: Final = _metric(
    "gauge", "log_segments", "Segments in the archive of partitions that this broker leads."
)


class TierCounters:
    """Counters of one broker."""

    __slots__ = (
        "copied_bytes", "copied_segments", "copy_errors", "deleted_bytes", "deleted_segments",
        "fetch_errors", "fetch_rejected", "fetched_bytes", "fetches",
    )  # fmt: skip

    def __init__(self) -> None:
        self.copied_bytes = self.copied_segments = self.copy_errors = 0
        self.deleted_bytes = self.deleted_segments = 0
        self.fetched_bytes = self.fetches = self.fetch_errors = self.fetch_rejected = 0


def samples(counters: TierCounters, led: Iterable[TierCore]) -> Iterator[Sample]:
    cores = list(led)
    tiers = [core.bounds for core in cores if core.bounds is not None]
    yield Sample(COPY_BYTES, counters.copied_bytes)
    yield Sample(COPIES, counters.copied_segments)
    yield Sample(COPY_ERRORS, counters.copy_errors)
    yield Sample(COPY_LAG_BYTES, sum(core.lag_bytes for core in cores))
    yield Sample(COPY_LAG_SEGMENTS, sum(core.lag_segments for core in cores))
    yield Sample(FETCH_BYTES, counters.fetched_bytes)
    yield Sample(FETCHES, counters.fetches)
    yield Sample(FETCH_ERRORS, counters.fetch_errors)
    yield Sample(FETCH_REJECTED, counters.fetch_rejected)
    yield Sample(DELETED, counters.deleted_segments)
    yield Sample(DELETED_BYTES, counters.deleted_bytes)
    yield Sample(SIZE_BYTES, sum(bounds.size_bytes for bounds in tiers))
    yield Sample(SEGMENTS, sum(bounds.segments for bounds in tiers))
