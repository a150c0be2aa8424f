"""Dead letters of share groups that brokers cannot write: as each admin interface says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.doctor.brokers import admin_answers
from penstock.apps.doctor.findings import Check, Finding, listed

if TYPE_CHECKING:
    from penstock.apps.session import State
    from penstock.client import ClusterMetadata

NAME: Final = "dead letters"
NAMED_MAX: Final = 5
"""Partitions that one finding names; the others are counted."""
FIXES: Final = {
    "unknown_topic_or_partition": "penstock topic create {topic} -c"
    " errors.deadletterqueue.group.enable=true",
    "invalid_config": "penstock config set topic {topic}"
    " errors.deadletterqueue.group.enable=true, or name another topic",
    "message_too_large": "penstock config set topic {topic} max.message.bytes=<more>",
}


def dead_letters_check(state: State, cluster: ClusterMetadata, admins: Sequence[str]) -> Check:
    """Whether share groups' dead letters can be written."""
    return Check(NAME, lambda: _look(state, cluster, admins))


def _look(state: State, cluster: ClusterMetadata, admins: Sequence[str]) -> list[Finding]:
    answers = admin_answers(state, cluster, admins, "/v1/dead-letters")
    if not answers:
        fix = "name the admin interfaces of the brokers with --admin"
        return [Finding(check=NAME, status="skip", cause="no admin interface answers", fix=fix)]
    findings = [finding for answer in answers for finding in _findings(answer)]
    cause = f"none wait on {len(answers)} brokers that were asked"
    return findings or [Finding(check=NAME, status="ok", cause=cause)]


def _findings(answer: Mapping[str, Any]) -> list[Finding]:
    """One for each group and topic, with one of the reasons."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in answer["troubles"]:
        alike[row["group"], row["letter_topic"]].append(row)
    findings = []
    for (group, topic), rows in alike.items():
        names = listed([f"{row['topic']}-{row['partition']}" for row in rows], NAMED_MAX)
        fix = FIXES.get(rows[0]["error"], "mend what is named; the broker goes on by itself")
        findings.append(
            Finding(
                check=NAME,
                status="fail",
                cause=f"broker {answer['node_id']}: group {group!r} stands still where its records"
                f" wait for topic {topic!r}, {names}: {rows[0]['reason']}",
                fix=fix.format(topic=topic),
            )
        )
    return findings
