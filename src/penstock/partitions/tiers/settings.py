"""Broker settings of tiered storage, with Kafka's names.

The archive is the object store of `diskless.storage.url`. Segments of tiered topics and sealed
segments of diskless topics are below its prefix `archive/`.

Source: Kafka's `RemoteLogManagerConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.base.metrics import Metrics, counter, gauge
from penstock.base.settings import LONG_MAX, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """Settings of how a broker copies segments to the archive, and reads them."""

    PREFIX: ClassVar = "remote.log."

    storage_system_enable: bool = setting(
        False, "Whether topics may set remote.storage.enable. Closed segments of such topics are"
        " copied to the object store of diskless.storage.url.",
    )  # fmt: skip
    manager_task_interval_ms: int = setting(
        30_000, "Time between two searches for segments to copy, and for segments that retention"
        " deletes from the archive and from local disks. Deleted segment files stay on disk for"
        " another file.delete.delay.ms.", 10, 86_400_000,
    )  # fmt: skip
    manager_copier_thread_pool_size: int = setting(
        4, "Segments that are copied in parallel; each takes some 32 MiB of memory.", 1, 256
    )
    manager_copy_max_bytes_per_second: int = setting(
        LONG_MAX, "Bytes that are copied to the archive per second.", 1 << 16, LONG_MAX,
        unit="bytes/s",
    )  # fmt: skip
    manager_fetch_max_bytes_per_second: int = setting(
        LONG_MAX, "Bytes that are read from the archive for consumers per second.", 1 << 16,
        LONG_MAX, unit="bytes/s",
    )  # fmt: skip
    reader_threads: int = setting(
        10, "Requests to the archive that run in parallel for consumers.", 1, 1024
    )
    reader_max_pending_tasks: int = setting(
        100, "Requests to the archive that may wait; more are rejected, and retried.", 1, 100_000
    )
    index_file_cache_total_size_bytes: int = setting(
        64 << 20, "Memory for indexes of archived segments; the least recently used is evicted.",
        1 << 20, LONG_MAX,
    )  # fmt: skip


# Metrics of tiered storage, named after Kafka's (`RemoteCopyLagBytes` and so on).
#
# Source: KIP-405, KIP-963 (additional metrics in tiered storage).


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
