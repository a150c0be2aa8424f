"""Metrics of share groups."""

from __future__ import annotations

from typing import Final

from penstock.base.metrics import Metric

SESSIONS: Final = Metric(
    name="penstock_share_sessions", kind="gauge", doc="Share sessions held by this broker."
)
PARTITIONS: Final = Metric(
    name="penstock_share_partitions",
    kind="gauge",
    doc="Share partitions in this broker's memory: partitions, for each group that reads them.",
)
ACQUIRED: Final = Metric(
    name="penstock_share_acquired_records_total",
    kind="counter",
    doc="Records acquired by members of share groups, redeliveries included.",
)
UNDELIVERABLE: Final = Metric(
    name="penstock_share_given_up_records_total",
    kind="counter",
    doc="Records that share groups archived: rejected, or delivered too often.",
    labels=("cause",),
)
DEAD_LETTERS: Final = Metric(
    name="penstock_share_dead_letters_total",
    kind="counter",
    doc="Dead letters written for records of share groups, by cause.",
    labels=("cause",),
)
DEAD_LETTERS_MISSING: Final = Metric(
    name="penstock_share_dead_letters_missing_total",
    kind="counter",
    doc="Archived records without a dead letter: already deleted, of an aborted transaction, or"
    " unwanted because their group has no dead letter topic, or reads from it.",
    labels=("reason",),
)
DEAD_LETTERS_WAITING: Final = Metric(
    name="penstock_share_dead_letters_waiting_partitions",
    kind="gauge",
    doc="Share partitions with records whose dead letters are not written yet.",
)
DEAD_LETTER_FAILURES: Final = Metric(
    name="penstock_share_dead_letter_failures_total",
    kind="counter",
    doc="Failed attempts to write dead letters of a share partition.",
)
