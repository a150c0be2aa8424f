"""Checks through the admin interfaces of brokers, for `penstock doctor`.

They cover replicas, unclean elections, dead letters, tiering, damaged records and compaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from penstock.apps.checks.brokers import admin_answers
from penstock.apps.checks.findings import Check, Finding, listed
from penstock.apps.client.session import State, counted

NAMED_MAX: Final = 5
"""Most partitions that one finding names; further ones are only counted."""

AdminAnswer = Mapping[str, Any]
AdminCheck = Callable[["State", Sequence[str]], Check]


def admin_check(
    name: str,
    path: str,
    *,
    wrong: Callable[[str, AdminAnswer], Iterable[Finding]],
    well: Callable[[Sequence[AdminAnswer]], str],
) -> AdminCheck:
    """Return a factory of checks that query `path` of every admin interface.

    `wrong` yields the problems in one broker's answer. `well` describes the answers if no broker
    has a problem.
    """

    def look(state: State, admins: Sequence[str]) -> list[Finding]:
        answers = admin_answers(state, admins, path)
        if not answers:
            fix = "give the brokers' admin interfaces with --admin"
            return [Finding(name, "skip", "no admin interface answers", fix)]
        found = [finding for answer in answers for finding in wrong(name, answer)]
        return found or [Finding(name, "ok", well(answers))]

    return lambda state, admins: Check(name, lambda: look(state, admins))


def partition_names(rows: Iterable[Mapping[str, Any]]) -> str:
    """Join the partitions in rows of an answer as names, as `orders-0`, up to `NAMED_MAX`."""
    return listed([f"{row['topic']}-{row['partition']}" for row in rows], NAMED_MAX)


def _grouped(rows: Iterable[AdminAnswer], *keys: str) -> Mapping[Any, list[AdminAnswer]]:
    alike: dict[Any, list[AdminAnswer]] = defaultdict(list)
    for row in rows:
        alike[tuple([row[key] for key in keys])].append(row)
    return alike


def _copies(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    """Yield one finding for each reason why replicas do not follow their leaders."""
    for (why,), rows in _grouped(answer["troubled"], "why").items():
        yield Finding(
            name, "warn", f"broker {answer['node_id']}: {partition_names(rows)}: {why}",
            "read the cause in that broker's log. Replace a failed disk and restart the broker;"
            " with an empty directory it copies all logs from the leaders",
        )  # fmt: skip


def _copies_well(answers: Sequence[AdminAnswer]) -> str:
    count = sum(answer["count"] for answer in answers)
    return f"{count} replicas on {counted(len(answers), 'broker')} follow their leaders"


def given_up(state: State, admins: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return the unclean elections of a cluster, newest first; None if no broker answers."""
    for answer in admin_answers(state, admins, "/v1/losses"):
        return list(answer["losses"])
    return None


def loss_check(state: State, admins: Sequence[str]) -> Check:
    """Return the check for unclean elections, in which records may have been lost."""
    name = "unclean elections"
    return Check(name, lambda: [_losses(name, given_up(state, admins))])


def _losses(name: str, losses: Sequence[dict[str, Any]] | None) -> Finding:
    if losses is None:
        fix = "give the admin interface of a broker with --admin"
        return Finding(name, "skip", "no admin interface answers", fix)
    if not losses:
        return Finding(name, "ok", "there were none")
    more = len(losses) - NAMED_MAX
    told = "; ".join(map(described, losses[:NAMED_MAX])) + (f"; {more} more" if more > 0 else "")
    fix = "produce the lost records again; this finding remains until the topic is deleted"
    return Finding(name, "warn", told, fix)


def described(loss: dict[str, Any]) -> str:
    """Describe an unclean election: the records that may be lost, the new leader, and the time."""
    at = datetime.fromtimestamp(loss["at_ms"] / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"{loss['topic']}-{loss['partition']} may have lost records from offset"
        f" {loss['from_offset']} of epoch {loss['epoch']} on; broker {loss['broker']} was elected"
        f" at {at} without brokers {', '.join(map(str, loss['missing'])) or 'none'}"
    )


FIXES: Final = {
    "unknown_topic_or_partition": "penstock topic create {topic} -c"
    " errors.deadletterqueue.group.enable=true",
    "invalid_config": "penstock config set topic {topic}"
    " errors.deadletterqueue.group.enable=true, or name another topic",
    "message_too_large": "penstock config set topic {topic} max.message.bytes=<larger value>",
}


def _dead_letters(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    """Yield a finding for each share group that cannot write its dead letters to a topic.

    The group is then blocked in the partitions of the answer; the finding has the first reason.
    """
    for (group, topic), rows in _grouped(answer["troubles"], "group", "letter_topic").items():
        fix = FIXES.get(rows[0]["error"], "remove this cause; the broker then retries")
        yield Finding(
            name, "fail",
            f"broker {answer['node_id']}: group {group!r} is blocked in {partition_names(rows)},"
            f" because its dead letters cannot be written to topic {topic!r}: {rows[0]['reason']}",
            fix.format(topic=topic),
        )  # fmt: skip


FAILURES_MAX: Final = 3
"""Consecutive failed attempts from which on a finding is a failure instead of a warning."""


def _tiers(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    broker, rows = answer["node_id"], answer["partitions"]
    if rows and not answer["enabled"]:
        yield Finding(
            f"{name}, setting", "warn",
            f"broker {broker}: {partition_names(rows)} have remote.storage.enable=true, but the"
            " broker has remote.log.storage.system.enable=false",
            "set remote.log.storage.system.enable=true on all brokers; otherwise archived objects"
            " of deleted topics are never deleted",
        )  # fmt: skip
    leading = [row for row in rows if row["leads"] and row["error"]]
    for (error,), failed in _grouped(leading, "error").items():
        worst = max(row["failures"] for row in failed)
        yield Finding(
            f"{name}, copying", "fail" if worst >= FAILURES_MAX else "warn",
            f"broker {broker}: {partition_names(failed)} could not be copied to {answer['store']};"
            f" {worst} attempts failed: {error}",
            "repair the object store, or correct diskless.storage.options. Until then no local"
            " segments are deleted, and disks fill",
        )  # fmt: skip
    growing = [row for row in rows if row["lag_grows"] and not row["error"]]
    if growing:
        waiting = sum(row["lag_bytes"] for row in growing)
        yield Finding(
            f"{name}, lag", "warn",
            f"broker {broker}: {waiting} bytes of {partition_names(growing)} are not archived yet,"
            " and the amount grows",
            "raise remote.log.manager.copy.max.bytes.per.second or"
            " remote.log.manager.copier.thread.pool.size, or check whether the object store is"
            " slow",
        )  # fmt: skip


def _tiers_well(answers: Sequence[AdminAnswer]) -> str:
    led = [row for answer in answers for row in answer["partitions"] if row["leads"]]
    waiting = sum(row["lag_bytes"] or 0 for row in led)
    told = f"{counted(len(led), 'tiered partition')}, {waiting} bytes not archived yet"
    return told if led else "no topic is tiered"


def _damage(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    """Yield a finding for a broker's damaged logs, and one for files that it has set aside.

    These are journals and checkpoints that were damaged when the broker started.
    """
    check = f"{name} of broker {answer['node_id']}"
    if damaged := answer["partitions"]:
        yield Finding(
            check, "warn", f"damaged: {partition_names(damaged)}: {damaged[0]['reason']}",
            "the broker restores the records if another replica has them. Otherwise list the"
            " damage with `penstock log verify`, and quarantine it with `penstock log repair`",
        )  # fmt: skip
    if kept := answer["set_aside"]:
        yield Finding(
            check, "warn",
            "the journal or the checkpoint was damaged at a start;"
            f" {counted(answer['set_aside_count'], 'file')} set aside, the first: {kept[0]}",
            "read in the broker's log of that start which offsets may be lost, and check the"
            " disk. Delete the files when they are no longer needed",
        )  # fmt: skip


def _compaction(name: str, answer: AdminAnswer) -> Iterable[Finding]:
    """Yield one finding for all logs of a broker whose compaction has failed."""
    if failed := answer["uncleanable"]:
        yield Finding(
            f"{name} of broker {answer['node_id']}", "warn",
            f"compaction of {partition_names(failed)} stopped: {failed[0]['reason']}",
            "list the damage with `penstock log verify`, and quarantine it with `penstock log"
            " repair`. The broker compacts the log again after its next start",
        )  # fmt: skip


def _compaction_well(answers: Sequence[AdminAnswer]) -> str:
    ratios = [row["dirty_ratio"] for answer in answers for row in answer["partitions"]]
    told = f"{len(ratios)} compacted logs, highest dirty ratio {max(ratios, default=0):.0%}"
    return told if ratios else "no topic is compacted"


ADMIN_CHECKS: Final[Sequence[AdminCheck]] = (
    admin_check("copies", "/v1/copies", wrong=_copies, well=_copies_well),
    loss_check,
    admin_check(
        "dead letters", "/v1/dead-letters", wrong=_dead_letters,
        well=lambda answers: f"no blocked groups on {counted(len(answers), 'broker')}",
    ),
    admin_check("tiers", "/v1/tiers", wrong=_tiers, well=_tiers_well),
    admin_check(
        "stored records", "/v1/damage", wrong=_damage,
        well=lambda answers: f"no damage found by {counted(len(answers), 'broker')}",
    ),
    admin_check("compaction", "/v1/compaction", wrong=_compaction, well=_compaction_well),
)  # fmt: skip
