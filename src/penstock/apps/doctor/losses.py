"""Loss check: unclean elections, from the admin interface of any broker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.doctor.brokers import admin_answers
from penstock.apps.doctor.findings import Check, Finding

if TYPE_CHECKING:
    from penstock.apps.session import State

NAME: Final = "unclean elections"
NAMED_MAX: Final = 5


def given_up(state: State, admins: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return the unclean elections of a cluster, newest first; None if no broker answers."""
    for answer in admin_answers(state, admins, "/v1/losses"):
        return list(answer["losses"])
    return None


def loss_check(state: State, admins: Sequence[str]) -> Check:
    """Return the check for records that unclean elections may have lost."""
    return Check(NAME, lambda: [_finding(given_up(state, admins))])


def _finding(losses: Sequence[dict[str, Any]] | None) -> Finding:
    if losses is None:
        fix = "name the admin interface of a broker with --admin"
        return Finding(check=NAME, status="skip", cause="no admin interface answers", fix=fix)
    if not losses:
        return Finding(check=NAME, status="ok", cause="none by unclean elections")
    more = len(losses) - NAMED_MAX
    told = "; ".join(map(described, losses[:NAMED_MAX])) + (f"; {more} more" if more > 0 else "")
    return Finding(
        check=NAME,
        status="warn",
        cause=told,
        fix="send the lost records again; this finding stays until the topic is deleted",
    )


def described(loss: dict[str, Any]) -> str:
    """Describe a loss in words."""
    at = datetime.fromtimestamp(loss["at_ms"] / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"{loss['topic']}-{loss['partition']} from offset {loss['from_offset']} of epoch"
        f" {loss['epoch']} on, by broker {loss['broker']} at {at}, without brokers"
        f" {', '.join(map(str, loss['missing'])) or 'none'}"
    )
