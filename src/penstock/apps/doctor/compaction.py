"""Compaction check: reports brokers whose log cleaner fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.apps.doctor.findings import Finding
from penstock.apps.doctor.interfaces import AdminAnswer, admin_check, partition_names

NAME: Final = "compaction"


def _findings(answer: AdminAnswer) -> list[Finding]:
    """Return a finding if passes of a broker's cleaner have failed."""
    failed = answer["uncleanable"]
    if not failed:
        return []
    finding = Finding(
        check=f"{NAME} of broker {answer['node_id']}",
        status="warn",
        cause=f"{partition_names(failed)} compacted no further: {failed[0]['reason']}",
        fix="`penstock log verify` says what is damaged, `penstock log repair` sets it aside; the"
        " broker tries again after its next start",
    )
    return [finding]


def _well(answers: Sequence[AdminAnswer]) -> str:
    ratios = [row["dirty_ratio"] for answer in answers for row in answer["partitions"]]
    told = f"{len(ratios)} compacted logs, the dirtiest {max(ratios, default=0):.0%}"
    return told if ratios else "no topic is compacted"


compaction_check: Final = admin_check(NAME, "/v1/compaction", wrong=_findings, well=_well)
"""Whether the passes of some logs have failed."""
