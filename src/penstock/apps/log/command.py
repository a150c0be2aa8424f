"""Command group `penstock log`: shows, checks and repairs stored records, and shows tiers."""

from __future__ import annotations

from typing import Any, Final

import click

from penstock.apps.client.session import LazyGroup, State, client_options, show
from penstock.apps.log.queues import NoAdminInterface, admin_option

_COMMANDS: Final = {
    "dump": ("log.dump", "dump", "Show batches, records, indexes, snapshots, journal."),
    "verify": ("log.verify", "verify", "Check stored batches and the files beside them."),
    "repair": ("log.verify", "repair", "Rebuild indexes, and quarantine unreadable batches."),
    "stats": ("log.stats", "stats", "Count bytes, records, codecs, keys, producers."),
    "tiers": ("log.command", "tiers", "Show which parts of tiered topics are archived."),
}


@click.group(
    "log", cls=LazyGroup, entries=_COMMANDS, short_help="Show, check and repair stored batches."
)
def log() -> None:
    """Show, check and repair stored batches.

    They are read from a running broker (TOPIC), from a data directory of Penstock or Apache Kafka
    (--data-dir), or from the object store of diskless topics (--objects).
    """


@click.command("tiers", short_help="Show which parts of tiered topics are archived.")
@click.argument("topic", required=False)
@admin_option
@client_options
def tiers(state: State, topic: str | None, admin: str | None) -> None:
    """Show which part of each tiered partition is on its brokers, and which is in the archive.

    The column `start` is the first offset of a partition. The archive has the offsets below `tiered
    to`, and the broker has those from `local from` on; offsets between these two are in both. `lag`
    is the part that is not archived yet, which only the leader reports. `failures` counts failed
    attempts since the last success, and `error` is the last failure. Each broker reports its own
    replicas over its admin interface. Without TOPIC all tiered topics are shown.
    """
    from penstock.apps.checks.brokers import admin_answers, known_admins

    with state.client() as client:
        states = client.broker_states()
        if topic is not None:
            client.describe_topic(topic)
    path = "/v1/tiers" if topic is None else f"/v1/tiers?topic={topic}"
    answers = admin_answers(state, known_admins(state, states, admin), path)
    if not answers:
        raise NoAdminInterface(
            "no broker's admin interface answers: give one with --admin HOST:PORT"
        )
    rows: list[dict[str, Any]] = [
        {
            **row,
            "broker": answer["node_id"],
            "place": f"{row['topic']}-{row['partition']}",
            "role": "leader" if row["leads"] else "replica",
        }
        for answer in answers
        for row in answer["partitions"]
    ]
    rows.sort(key=lambda row: (row["topic"], row["partition"], not row["leads"], row["broker"]))
    asked = {answer["node_id"] for answer in answers}
    missing = sorted(states.keys() - asked)
    if missing:
        state.notice(
            f"penstock: no admin interface of brokers {', '.join(map(str, missing))} answered"
        )
    for answer in answers:
        more = answer["partition_count"] - len(answer["partitions"])
        if more:
            state.notice(
                f"penstock: broker {answer['node_id']} has {more} more partitions: give a TOPIC to"
                " show them"
            )
    columns = (
        "partition=place", "broker", "role", "start=start_offset", "tiered to=tiered_end",
        "local from=local_start", "end=end_offset", "tiered_bytes", "local_bytes",
        "lag bytes=lag_bytes", "lag segments=lag_segments", "failures", "error",
    )  # fmt: skip
    show(state, rows, columns, things="tiered partitions")
