"""Metrics of the exactly-once sink."""

from __future__ import annotations

from penstock.base.metrics import Metrics, counter, counters, gauge


class SinkCounters(Metrics, prefix="penstock_sink_"):
    commits: dict[str, int] = counters(
        "commits_total", "Posted commits of exactly-once sinks, by outcome.", "outcome"
    )
    records = counter(
        "records_total",
        "Records appended by commits of exactly-once sinks, diskless topics included.",
    )
    size_bytes = counter(
        "bytes_total", "Bytes of record batches appended by commits of exactly-once sinks."
    )
    redrives = counter("redrives_total", "Retries of unfinished commits by the broker itself.")
    skipped = counter(
        "skipped_partitions_total",
        "Partitions of commits that were skipped because their topic was deleted.",
    )
    renewed = counter(
        "renewed_producers_total",
        "Partitions that got a new producer because their log lost its end.",
    )
    open_intents = gauge(
        "open_intents", "Commits of exactly-once sinks that are recorded but not finished."
    )
    staged_bytes = gauge("staged_bytes", "Bytes of staged blobs.")
    staged_blobs = gauge("staged_blobs", "Files in the staging directory.")
    orphans = counter(
        "orphans_removed_total", "Staged blobs that were removed because no commit named them."
    )

    def __init__(self) -> None:
        super().__init__()
        self.commits.update(appended=0, replayed=0, refused=0, failed=0)
