"""`penstock log tiers`: parts of tiered topics on brokers and in the archive."""

from __future__ import annotations

from typing import Any

import click

from penstock.apps.log.queues import NoAdminInterface, admin_option
from penstock.apps.session import State, client_options, show


@click.command("tiers", short_help="Show which parts of tiered topics are archived.")
@click.argument("topic", required=False)
@admin_option
@client_options
def tiers(state: State, topic: str | None, admin: str | None) -> None:
    """Show which part of each tiered partition is on its brokers, and which in the archive.

    A partition begins at `start`, is in the archive up to `tiered to`, and on the broker from
    `local from` on; both have the part between the last two. `lag` is the part to be copied, known
    by the leader. `failures` counts attempts since the last success, with the last error. The
    figures come from the admin interface of each broker, for its own replicas.
    """
    from penstock.apps.doctor.brokers import admin_answers, known_admins

    with state.client() as client:
        states = client.broker_states()
        if topic is not None:
            client.describe_topic(topic)
    path = "/v1/tiers" if topic is None else f"/v1/tiers?topic={topic}"
    answers = admin_answers(state, known_admins(state, states, admin), path)
    if not answers:
        raise NoAdminInterface("no broker's admin interface answers: name one with --admin")
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
        state.notice(f"penstock: brokers {', '.join(map(str, missing))} were not asked")
    for answer in answers:
        more = answer["partition_count"] - len(answer["partitions"])
        if more:
            state.notice(f"penstock: broker {answer['node_id']} has {more} more: name a topic")
    columns = (
        "partition=place", "broker", "role", "start=start_offset", "tiered to=tiered_end",
        "local from=local_start", "end=end_offset", "tiered_bytes", "local_bytes",
        "lag bytes=lag_bytes", "lag segments=lag_segments", "failures", "error",
    )  # fmt: skip
    show(state, rows, columns, things="tiered partitions")
