"""Replica check: replicas that do not follow or only partially, from each admin interface."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.apps.doctor.findings import Finding
from penstock.apps.doctor.interfaces import AdminAnswer, admin_check, partition_names
from penstock.apps.session import counted

NAME: Final = "copies"


def _findings(answer: AdminAnswer) -> list[Finding]:
    """Return one finding for each reason, with the number of further copies."""
    alike: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in answer["troubled"]:
        alike[row["why"]].append(row)
    return [
        Finding(
            check=NAME,
            status="warn",
            cause=f"broker {answer['node_id']}: {partition_names(rows)}: {why}",
            fix="read the cause in that broker's log; replace a disk that has"
            " failed, and restart the broker: with an empty directory it copies all logs",
        )
        for why, rows in alike.items()
    ]


def _well(answers: Sequence[AdminAnswer]) -> str:
    count = sum(answer["count"] for answer in answers)
    return f"{count} on {counted(len(answers), 'broker')} asked, all follow their leaders in full"


copies_check: Final = admin_check(NAME, "/v1/copies", wrong=_findings, well=_well)
"""Whether the copies of all brokers that can be asked take part in full."""
