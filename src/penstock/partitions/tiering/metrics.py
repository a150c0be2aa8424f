"""Metrics of tiered storage, named after Kafka's (`RemoteCopyLagBytes` and so on).

Source: KIP-405, KIP-963 (additional metrics in tiered storage).
"""

from __future__ import annotations

from penstock.base.metrics import Metrics, counter, gauge


class TierCounters(Metrics, prefix="penstock_remote_"):
    """Tiered storage metrics of one broker."""

    copied_bytes = counter("copy_bytes_total", "Bytes copied to the archive.")
    copied_segments = counter("copy_requests_total", "Segments copied to the archive.")
    copy_errors = counter("copy_errors_total", "Failed attempts to copy or delete segments.")
    lag_bytes = gauge("copy_lag_bytes", "Bytes of closed segments that wait to be copied.")
    lag_segments = gauge("copy_lag_segments", "Closed segments that wait to be copied.")
    fetched_bytes = counter(
        "fetch_bytes_total", "Bytes of batches read from the archive for consumers."
    )
    fetches = counter("fetch_requests_total", "Reads from the archive for consumers.")
    fetch_errors = counter("fetch_errors_total", "Failed reads from the archive for consumers.")
    fetch_rejected = counter("fetch_rejected_total", "Reads rejected because too many waited.")
    deleted_segments = counter(
        "delete_requests_total", "Segments that retention deleted from the archive."
    )
    deleted_bytes = counter("delete_bytes_total", "Bytes that retention deleted from the archive.")
    size_bytes = gauge(
        "log_size_bytes", "Bytes in the archive of partitions that this broker leads."
    )
    segments = gauge(
        "log_segments", "Segments in the archive of partitions that this broker leads."
    )
