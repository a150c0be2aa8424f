"""Damage check: damaged stored records, and files quarantined at a broker's start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.apps.doctor.findings import Finding
from penstock.apps.doctor.interfaces import AdminAnswer, admin_check, partition_names
from penstock.apps.session import counted

NAME: Final = "stored records"


def _findings(answer: AdminAnswer) -> list[Finding]:
    """Return one finding for all damaged logs of a broker, and one for quarantined files."""
    check, found = f"{NAME} of broker {answer['node_id']}", []
    if damaged := answer["partitions"]:
        found.append(
            Finding(
                check=check,
                status="warn",
                cause=f"damaged: {partition_names(damaged)}: {damaged[0]['reason']}",
                fix="copies mend what another one has; else `penstock log verify` says what is"
                " damaged, and `penstock log repair` sets it aside",
            )
        )
    if kept := answer["set_aside"]:
        found.append(
            Finding(
                check=check,
                status="warn",
                cause="journal or checkpoint were damaged at a start:"
                f" {counted(answer['set_aside_count'], 'file')} set aside, the first: {kept[0]}",
                fix="the broker's log of that start says which offsets may be lost; look at the"
                " disk, and remove the files when they are no longer needed",
            )
        )
    return found


def _well(answers: Sequence[AdminAnswer]) -> str:
    return f"none found damaged by {counted(len(answers), 'broker')}"


damage_check: Final = admin_check(NAME, "/v1/damage", wrong=_findings, well=_well)
"""Whether records were found damaged."""
