"""Dead letter check: dead letters of share groups that brokers fail to write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.apps.doctor.findings import Finding
from penstock.apps.doctor.interfaces import AdminAnswer, admin_check, partition_names
from penstock.apps.session import counted

NAME: Final = "dead letters"
FIXES: Final = {
    "unknown_topic_or_partition": "penstock topic create {topic} -c"
    " errors.deadletterqueue.group.enable=true",
    "invalid_config": "penstock config set topic {topic}"
    " errors.deadletterqueue.group.enable=true, or name another topic",
    "message_too_large": "penstock config set topic {topic} max.message.bytes=<more>",
}


def _findings(answer: AdminAnswer) -> list[Finding]:
    """Return one finding for each group and topic, with one of the reasons."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in answer["troubles"]:
        alike[row["group"], row["letter_topic"]].append(row)
    findings = []
    for (group, topic), rows in alike.items():
        names = partition_names(rows)
        fix = FIXES.get(rows[0]["error"], "remove this cause; the broker then continues")
        findings.append(
            Finding(
                check=NAME,
                status="fail",
                cause=f"broker {answer['node_id']}: group {group!r} is blocked where its records"
                f" wait for topic {topic!r}, {names}: {rows[0]['reason']}",
                fix=fix.format(topic=topic),
            )
        )
    return findings


def _well(answers: Sequence[AdminAnswer]) -> str:
    return f"none wait on {counted(len(answers), 'broker')} asked"


dead_letters_check: Final = admin_check(NAME, "/v1/dead-letters", wrong=_findings, well=_well)
"""Whether share groups' dead letters can be written."""
