"""Compacted topics: check that every broker compacts its logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.apps.doctor.findings import Finding
from penstock.apps.doctor.interfaces import AdminAnswer, admin_check, partition_names

NAME: Final = "compaction"


def _findings(answer: AdminAnswer) -> list[Finding]:
    """Return one finding for all logs of a broker whose compaction has failed."""
    failed = answer["uncleanable"]
    if not failed:
        return []
    finding = Finding(
        check=f"{NAME} of broker {answer['node_id']}",
        status="warn",
        cause=f"compaction of {partition_names(failed)} stopped: {failed[0]['reason']}",
        fix="find the damage with `penstock log verify`, remove it with `penstock log repair`; the"
        " broker tries again after its next start",
    )
    return [finding]


def _well(answers: Sequence[AdminAnswer]) -> str:
    ratios = [row["dirty_ratio"] for answer in answers for row in answer["partitions"]]
    told = f"{len(ratios)} compacted logs, the dirtiest {max(ratios, default=0):.0%}"
    return told if ratios else "no topic is compacted"


compaction_check: Final = admin_check(NAME, "/v1/compaction", wrong=_findings, well=_well)
"""Whether the passes of some logs have failed."""
