"""Checks of every broker's admin interface at one path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.doctor.brokers import admin_answers
from penstock.apps.doctor.findings import Check, Finding, listed

if TYPE_CHECKING:
    from penstock.apps.session import State

NAMED_MAX: Final = 5
"""Partitions that one finding names; the others are counted."""

AdminAnswer = Mapping[str, Any]


def admin_check(
    name: str,
    path: str,
    *,
    wrong: Callable[[AdminAnswer], Sequence[Finding]],
    well: Callable[[Sequence[AdminAnswer]], str],
) -> Callable[[State, Sequence[str]], Check]:
    """Return a factory of checks of admin interfaces.

    `wrong` returns the problems of one broker; `well` describes the state without problems.
    """

    def look(state: State, admins: Sequence[str]) -> list[Finding]:
        answers = admin_answers(state, admins, path)
        if not answers:
            fix = "give the admin addresses of the brokers with --admin"
            return [Finding(check=name, status="skip", cause="no admin interface answers", fix=fix)]
        found = [finding for answer in answers for finding in wrong(answer)]
        return found or [Finding(check=name, status="ok", cause=well(answers))]

    return lambda state, admins: Check(name, lambda: look(state, admins))


def partition_names(rows: Iterable[Mapping[str, Any]]) -> str:
    """Join the partitions of some rows."""
    return listed([f"{row['topic']}-{row['partition']}" for row in rows], NAMED_MAX)
