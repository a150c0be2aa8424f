"""Copies of partitions that do not take part, or not in full: as each admin interface says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.doctor.brokers import admin_answers
from penstock.apps.doctor.findings import Check, Finding, listed

if TYPE_CHECKING:
    from penstock.apps.session import State
    from penstock.client import ClusterMetadata

NAME: Final = "copies"
NAMED_MAX: Final = 5
"""Partitions that one finding names; the others are counted."""


def copies_check(state: State, cluster: ClusterMetadata, admins: Sequence[str]) -> Check:
    """Whether the copies of all brokers that can be asked take part in full."""
    return Check(NAME, lambda: _look(state, cluster, admins))


def _look(state: State, cluster: ClusterMetadata, admins: Sequence[str]) -> list[Finding]:
    answers = admin_answers(state, cluster, admins, "/v1/copies")
    if not answers:
        fix = "name the admin interfaces of the brokers with --admin"
        return [Finding(check=NAME, status="skip", cause="no admin interface answers", fix=fix)]
    findings = [finding for answer in answers for finding in _findings(answer)]
    if findings:
        return findings
    count = sum(answer["count"] for answer in answers)
    cause = f"{count} on {len(answers)} brokers that were asked, all take part in full"
    return [Finding(check=NAME, status="ok", cause=cause)]


def _findings(answer: Mapping[str, Any]) -> list[Finding]:
    """One for each reason; those that are not named have one of them."""
    alike: dict[str, list[str]] = defaultdict(list)
    for row in answer["troubled"]:
        alike[row["why"]].append(f"{row['topic']}-{row['partition']}")
    return [
        Finding(
            check=NAME,
            status="warn",
            cause=f"broker {answer['node_id']}: {listed(names, NAMED_MAX)}: {why}",
            fix="see that broker's log, which says what happened; replace a disk that has"
            " failed, and restart it: with an empty directory it copies all from the others",
        )
        for why, names in alike.items()
    ]
