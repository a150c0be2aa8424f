"""Tiered topics: whether what is closed comes into the archive, as each admin interface says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.doctor.brokers import admin_answers
from penstock.apps.doctor.findings import Check, Finding, listed

if TYPE_CHECKING:
    from penstock.apps.session import State
    from penstock.client import ClusterMetadata

NAME: Final = "tiers"
NAMED_MAX: Final = 5
"""Partitions that one finding names; the others are counted."""
FAILURES_MAX: Final = 3
"""Attempts that fail one after the other before it is more than a warning."""


def tiers_check(state: State, cluster: ClusterMetadata, admins: Sequence[str]) -> Check:
    """Whether tiered partitions are copied to the archive."""
    return Check(NAME, lambda: _look(state, cluster, admins))


def _look(state: State, cluster: ClusterMetadata, admins: Sequence[str]) -> list[Finding]:
    answers = admin_answers(state, cluster, admins, "/v1/tiers")
    if not answers:
        fix = "name the admin interfaces of the brokers with --admin"
        return [Finding(check=NAME, status="skip", cause="no admin interface answers", fix=fix)]
    findings = [finding for answer in answers for finding in _findings(answer)]
    if findings:
        return findings
    led = [row for answer in answers for row in answer["partitions"] if row["leads"]]
    waiting = sum(row["lag_bytes"] or 0 for row in led)
    cause = f"{len(led)} tiered partitions, {waiting} bytes wait for the archive"
    return [Finding(check=NAME, status="ok", cause=cause if led else "no topic is tiered")]


def _findings(answer: Mapping[str, Any]) -> list[Finding]:
    """What is wrong on one broker."""
    broker, rows = answer["node_id"], answer["partitions"]
    findings = []
    if rows and not answer["enabled"]:
        findings.append(
            Finding(
                check=f"{NAME}, setting",
                status="warn",
                cause=f"broker {broker}: {_names(rows)} have remote.storage.enable, and"
                " remote.log.storage.system.enable is off there",
                fix="set it to true on all brokers: what deleted topics have left in the archive is"
                " let go only with it",
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
                cause=f"broker {broker}: {_names(failed)} could not be copied to"
                f" {answer['store']}, {worst} times: {error}",
                fix="bring the store back, or mend diskless.storage.options; nothing is deleted"
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
                cause=f"broker {broker}: {waiting} bytes of {_names(growing)} wait for the archive,"
                " and it becomes more",
                fix="raise remote.log.manager.copy.max.bytes.per.second or"
                " remote.log.manager.copier.thread.pool.size, or see whether the store is slow",
            )
        )
    return findings


def _names(rows: Iterable[Mapping[str, Any]]) -> str:
    return listed([f"{row['topic']}-{row['partition']}" for row in rows], NAMED_MAX)
