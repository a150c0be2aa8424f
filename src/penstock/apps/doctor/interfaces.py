"""Checks of every broker's admin interface: replicas, lost records, dead letters, tiers, damage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.doctor.brokers import admin_answers
from penstock.apps.doctor.findings import Check, Finding, listed
from penstock.apps.session import counted

if TYPE_CHECKING:
    from penstock.apps.session import State

NAMED_MAX: Final = 5
"""Partitions that one finding names; the others are counted."""

AdminAnswer = Mapping[str, Any]
AdminCheck = Callable[["State", Sequence[str]], Check]


def admin_check(
    name: str,
    path: str,
    *,
    wrong: Callable[[str, AdminAnswer], Iterable[Finding]],
    well: Callable[[Sequence[AdminAnswer]], str],
) -> AdminCheck:
    """Return a factory of checks of admin interfaces.

    `wrong` returns the problems of one broker; `well` describes the state without problems.
    """

    def look(state: State, admins: Sequence[str]) -> list[Finding]:
        answers = admin_answers(state, admins, path)
        if not answers:
            fix = "name the admin interfaces of the brokers with --admin"
            return [Finding(name, "skip", "no admin interface answers", fix)]
        found = [finding for answer in answers for finding in wrong(name, answer)]
        return found or [Finding(name, "ok", well(answers))]

    return lambda state, admins: Check(name, lambda: look(state, admins))


def partition_names(rows: Iterable[Mapping[str, Any]]) -> str:
    """Join the partitions of some rows."""
    return listed([f"{row['topic']}-{row['partition']}" for row in rows], NAMED_MAX)


def _grouped(rows: Iterable[AdminAnswer], *keys: str) -> Mapping[Any, list[AdminAnswer]]:
    alike: dict[Any, list[AdminAnswer]] = defaultdict(list)
    for row in rows:
        alike[tuple([row[key] for key in keys])].append(row)
    return alike


def _copies(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    """Yield one finding for each reason, with the number of further copies."""
    for (why,), rows in _grouped(answer["troubled"], "why").items():
        yield Finding(
            name, "warn", f"broker {answer['node_id']}: {partition_names(rows)}: {why}",
            "read the cause in that broker's log; replace a disk that has failed, and restart the"
            " broker: with an empty directory it copies all logs",
        )  # fmt: skip


def _copies_well(answers: Sequence[AdminAnswer]) -> str:
    count = sum(answer["count"] for answer in answers)
    return f"{count} on {counted(len(answers), 'broker')} asked, all follow their leaders in full"


def given_up(state: State, admins: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return the unclean elections of a cluster, newest first; None if no broker answers."""
    for answer in admin_answers(state, admins, "/v1/losses"):
        return list(answer["losses"])
    return None


def loss_check(state: State, admins: Sequence[str]) -> Check:
    """Return the check for records that unclean elections may have lost."""
    name = "unclean elections"
    return Check(name, lambda: [_losses(name, given_up(state, admins))])


def _losses(name: str, losses: Sequence[dict[str, Any]] | None) -> Finding:
    if losses is None:
        fix = "name the admin interface of a broker with --admin"
        return Finding(name, "skip", "no admin interface answers", fix)
    if not losses:
        return Finding(name, "ok", "none by unclean elections")
    more = len(losses) - NAMED_MAX
    told = "; ".join(map(described, losses[:NAMED_MAX])) + (f"; {more} more" if more > 0 else "")
    fix = "send the lost records again; this finding stays until the topic is deleted"
    return Finding(name, "warn", told, fix)


def described(loss: dict[str, Any]) -> str:
    """Describe a loss in words."""
    at = datetime.fromtimestamp(loss["at_ms"] / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"{loss['topic']}-{loss['partition']} from offset {loss['from_offset']} of epoch"
        f" {loss['epoch']} on, by broker {loss['broker']} at {at}, without brokers"
        f" {', '.join(map(str, loss['missing'])) or 'none'}"
    )


FIXES: Final = {
    "unknown_topic_or_partition": "penstock topic create {topic} -c"
    " errors.deadletterqueue.group.enable=true",
    "invalid_config": "penstock config set topic {topic}"
    " errors.deadletterqueue.group.enable=true, or name another topic",
    "message_too_large": "penstock config set topic {topic} max.message.bytes=<more>",
}


def _dead_letters(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    """Yield one finding for each group and topic, with one of the reasons."""
    for (group, topic), rows in _grouped(answer["troubles"], "group", "letter_topic").items():
        fix = FIXES.get(rows[0]["error"], "remove this cause; the broker then continues")
        yield Finding(
            name, "fail", f"broker {answer['node_id']}: group {group!r} is blocked where its"
            f" records wait for topic {topic!r}, {partition_names(rows)}: {rows[0]['reason']}",
            fix.format(topic=topic),
        )  # fmt: skip


FAILURES_MAX: Final = 3
"""Attempts that fail one after the other before it is more than a warning."""


def _tiers(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    broker, rows = answer["node_id"], answer["partitions"]
    if rows and not answer["enabled"]:
        yield Finding(
            f"{name}, setting", "warn", f"broker {broker}: {partition_names(rows)} have"
            " remote.storage.enable, but remote.log.storage.system.enable is off there",
            "set it to true on all brokers: objects of deleted topics in the archive are deleted"
            " only then",
        )  # fmt: skip
    leading = [row for row in rows if row["leads"] and row["error"]]
    for (error,), failed in _grouped(leading, "error").items():
        worst = max(row["failures"] for row in failed)
        yield Finding(
            f"{name}, copying", "fail" if worst >= FAILURES_MAX else "warn",
            f"broker {broker}: {partition_names(failed)} could not be copied to {answer['store']},"
            f" {worst} times: {error}",
            "restore the store, or correct diskless.storage.options; nothing is deleted locally"
            " until then, so disks fill",
        )  # fmt: skip
    growing = [row for row in rows if row["lag_grows"] and not row["error"]]
    if growing:
        waiting = sum(row["lag_bytes"] for row in growing)
        yield Finding(
            f"{name}, lag", "warn", f"broker {broker}: {waiting} bytes of"
            f" {partition_names(growing)} wait for the archive, and it becomes more",
            "raise remote.log.manager.copy.max.bytes.per.second or"
            " remote.log.manager.copier.thread.pool.size, or check whether the store is slow",
        )  # fmt: skip


def _tiers_well(answers: Sequence[AdminAnswer]) -> str:
    led = [row for answer in answers for row in answer["partitions"] if row["leads"]]
    waiting = sum(row["lag_bytes"] or 0 for row in led)
    told = f"{counted(len(led), 'tiered partition')}, {waiting} bytes wait for the archive"
    return told if led else "no topic is tiered"


def _damage(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    """Yield one finding for all damaged logs of a broker, and one for quarantined files."""
    check = f"{name} of broker {answer['node_id']}"
    if damaged := answer["partitions"]:
        yield Finding(
            check, "warn", f"damaged: {partition_names(damaged)}: {damaged[0]['reason']}",
            "copies mend what another one has; else `penstock log verify` says what is damaged, and"
            " `penstock log repair` sets it aside",
        )  # fmt: skip
    if kept := answer["set_aside"]:
        yield Finding(
            check, "warn", "journal or checkpoint were damaged at a start:"
            f" {counted(answer['set_aside_count'], 'file')} set aside, the first: {kept[0]}",
            "the broker's log of that start says which offsets may be lost; look at the disk, and"
            " remove the files when they are no longer needed",
        )  # fmt: skip


def _compaction(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    """Yield one finding for all logs of a broker whose compaction has failed."""
    if failed := answer["uncleanable"]:
        yield Finding(
            f"{name} of broker {answer['node_id']}", "warn",
            f"compaction of {partition_names(failed)} stopped: {failed[0]['reason']}",
            "find the damage with `penstock log verify`, remove it with `penstock log repair`; the"
            " broker tries again after its next start",
        )  # fmt: skip


def _compaction_well(answers: Sequence[AdminAnswer]) -> str:
    ratios = [row["dirty_ratio"] for answer in answers for row in answer["partitions"]]
    told = f"{len(ratios)} compacted logs, the dirtiest {max(ratios, default=0):.0%}"
    return told if ratios else "no topic is compacted"


ADMIN_CHECKS: Final[Sequence[AdminCheck]] = (
    admin_check("copies", "/v1/copies", wrong=_copies, well=_copies_well),
    loss_check,
    admin_check(
        "dead letters", "/v1/dead-letters", wrong=_dead_letters,
        well=lambda answers: f"none wait on {counted(len(answers), 'broker')} asked",
    ),
    admin_check("tiers", "/v1/tiers", wrong=_tiers, well=_tiers_well),
    admin_check(
        "stored records", "/v1/damage", wrong=_damage,
        well=lambda answers: f"none found damaged by {counted(len(answers), 'broker')}",
    ),
    admin_check("compaction", "/v1/compaction", wrong=_compaction, well=_compaction_well),
)  # fmt: skip
