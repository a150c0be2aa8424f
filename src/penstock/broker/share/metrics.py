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
    doc="Records that members of share groups were given, again too.",
)
GIVEN_UP: Final = Metric(
    name="penstock_share_given_up_records_total",
    kind="counter",
    doc="Records that share groups have given up: rejected, or delivered too often.",
    labels=("cause",),
)
LETTERS: Final = Metric(
    name="penstock_share_dead_letters_total",
    kind="counter",
    doc="Dead letters that share groups' records have got, by why they were given up.",
    labels=("cause",),
)
NO_LETTERS: Final = Metric(
    name="penstock_share_dead_letters_missing_total",
    kind="counter",
    doc="Records that were given up and got no dead letter: deleted before, of an aborted"
    " transaction, or unwanted, as their group names no topic any more, or the one they lie in.",
    labels=("reason",),
)
LETTERS_WAITING: Final = Metric(
    name="penstock_share_dead_letters_waiting_partitions",
    kind="gauge",
    doc="Share partitions with records that wait for their dead letters.",
)
LETTER_FAILURES: Final = Metric(
    name="penstock_share_dead_letter_failures_total",
    kind="counter",
    doc="Attempts at writing dead letters of a share partition that failed.",
)
