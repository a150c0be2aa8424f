"""Metrics of the exactly-once sink: counters, sampled at scrape time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.base.metrics import Metric, Sample
from penstock.broker.batch_commits.staging import Staged

COMMITS: Final = Metric(
    name="penstock_sink_commits_total",
    kind="counter",
    doc="Posted commits of exactly-once sinks, by outcome.",
    labels=("outcome",),
)
RECORDS: Final = Metric(
    name="penstock_sink_records_total",
    kind="counter",
    doc="Records appended by commits of exactly-once sinks, diskless topics included.",
)
BYTES: Final = Metric(
    name="penstock_sink_bytes_total",
    kind="counter",
    doc="Bytes of record batches appended by commits of exactly-once sinks.",
)
REDRIVES: Final = Metric(
    name="penstock_sink_redrives_total",
    kind="counter",
    doc="Retries of interrupted commits without their client.",
)
SKIPPED: Final = Metric(
    name="penstock_sink_skipped_partitions_total",
    kind="counter",
    doc="Partitions of commits that were skipped because their topic was deleted.",
)
RENEWED: Final = Metric(
    name="penstock_sink_renewed_producers_total",
    kind="counter",
    doc="Partitions that got a new producer because their log lost its end.",
)
OPEN_INTENTS: Final = Metric(
    name="penstock_sink_open_intents",
    kind="gauge",
    doc="Commits of exactly-once sinks that are recorded but not finished.",
)
STAGED_BYTES: Final = Metric(
    name="penstock_sink_staged_bytes", kind="gauge", doc="Bytes of staged blobs."
)
STAGED_BLOBS: Final = Metric(
    name="penstock_sink_staged_blobs", kind="gauge", doc="Files in the staging directory."
)
ORPHANS: Final = Metric(
    name="penstock_sink_orphans_removed_total",
    kind="counter",
    doc="Staged blobs that were removed because no commit named them.",
)


@dataclass(slots=True, kw_only=True)
class SinkCounters:
    commits: dict[str, int] = field(
        default_factory=lambda: {"appended": 0, "replayed": 0, "refused": 0, "failed": 0}
    )
    records: int = 0
    size_bytes: int = 0
    redrives: int = 0
    skipped: int = 0
    renewed: int = 0


def sink_samples(
    counters: SinkCounters, *, prepared_commits: int, staged: Staged, orphans: int
) -> Iterator[Sample]:
    for outcome, count in counters.commits.items():
        yield Sample(COMMITS, count, (outcome,))
    yield Sample(RECORDS, counters.records)
    yield Sample(BYTES, counters.size_bytes)
    yield Sample(REDRIVES, counters.redrives)
    yield Sample(SKIPPED, counters.skipped)
    yield Sample(RENEWED, counters.renewed)
    yield Sample(OPEN_INTENTS, prepared_commits)
    yield Sample(STAGED_BYTES, staged.size_bytes)
    yield Sample(STAGED_BLOBS, staged.files)
    yield Sample(ORPHANS, orphans)
