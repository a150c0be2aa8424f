"""Tier check: closed segments that are not copied to the archive, from each admin interface."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.apps.doctor.findings import Finding
from penstock.apps.doctor.interfaces import AdminAnswer, admin_check, partition_names
from penstock.apps.session import counted

NAME: Final = "tiers"
FAILURES_MAX: Final = 3
"""Attempts that fail one after the other before it is more than a warning."""


def _findings(answer: AdminAnswer) -> list[Finding]:
    """Return the findings about one broker's tiers."""
    broker, rows = answer["node_id"], answer["partitions"]
    findings = []
    if rows and not answer["enabled"]:
        findings.append(
            Finding(
                check=f"{NAME}, setting",
                status="warn",
                cause=f"broker {broker}: {partition_names(rows)} have remote.storage.enable, but"
                " remote.log.storage.system.enable is off there",
                fix="set it to true on all brokers: objects of deleted topics in the archive are"
                " deleted only then",
            )
        )
    alike: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["leads"] and row["error"]:
            alike[row["error"]].append(row)
    for error, failed in alike.items():
        worst = max(row["failures"] for row in failed)
        findings.append(
            Finding(
                check=f"{NAME}, copying",
                status="fail" if worst >= FAILURES_MAX else "warn",
                cause=f"broker {broker}: {partition_names(failed)} could not be copied to"
                f" {answer['store']}, {worst} times: {error}",
                fix="restore the store, or correct diskless.storage.options; nothing is deleted"
                " locally until then, so disks fill",
            )
        )
    growing = [row for row in rows if row["lag_grows"] and not row["error"]]
    if growing:
        waiting = sum(row["lag_bytes"] for row in growing)
        findings.append(
            Finding(
                check=f"{NAME}, lag",
                status="warn",
                cause=f"broker {broker}: {waiting} bytes of {partition_names(growing)} wait for the"
                " archive, and it becomes more",
                fix="raise remote.log.manager.copy.max.bytes.per.second or"
                " remote.log.manager.copier.thread.pool.size, or check whether the store is slow",
            )
        )
    return findings


def _well(answers: Sequence[AdminAnswer]) -> str:
    led = [row for answer in answers for row in answer["partitions"] if row["leads"]]
    waiting = sum(row["lag_bytes"] or 0 for row in led)
    told = f"{counted(len(led), 'tiered partition')}, {waiting} bytes wait for the archive"
    return told if led else "no topic is tiered"


tiers_check: Final = admin_check(NAME, "/v1/tiers", wrong=_findings, well=_well)
"""Whether tiered partitions are copied to the archive."""
