"""Compacted topics: whether every broker goes on compacting its logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.doctor.brokers import admin_answers
from penstock.apps.doctor.findings import Check, Finding, listed

if TYPE_CHECKING:
    from penstock.apps.session import State
    from penstock.client import ClusterMetadata

NAME: Final = "compaction"
NAMED_MAX: Final = 5
"""Partitions that one finding names; the others are counted."""


def compaction_check(state: State, cluster: ClusterMetadata, admins: Sequence[str]) -> Check:
    """Whether the passes of some logs have failed."""
    return Check(NAME, lambda: _look(state, cluster, admins))


def _look(state: State, cluster: ClusterMetadata, admins: Sequence[str]) -> list[Finding]:
    answers = admin_answers(state, cluster, admins, "/v1/compaction")
    if not answers:
        fix = "name the admin interfaces of the brokers with --admin"
        return [Finding(check=NAME, status="skip", cause="no admin interface answers", fix=fix)]
    findings = [_finding(answer) for answer in answers if answer["uncleanable"]]
    if findings:
        return findings
    ratios = [row["dirty_ratio"] for answer in answers for row in answer["partitions"]]
    cause = f"{len(ratios)} compacted logs, the dirtiest {max(ratios, default=0):.0%}"
    return [Finding(check=NAME, status="ok", cause=cause if ratios else "no topic is compacted")]


def _finding(answer: Mapping[str, Any]) -> Finding:
    failed = answer["uncleanable"]
    names = listed([f"{row['topic']}-{row['partition']}" for row in failed], NAMED_MAX)
    return Finding(
        check=f"{NAME} of broker {answer['node_id']}",
        status="warn",
        cause=f"{names} compacted no further: {failed[0]['reason']}",
        fix="`penstock log verify` says what is damaged, `penstock log repair` sets it aside; the"
        " broker tries again after its next start",
    )
