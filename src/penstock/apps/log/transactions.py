"""Command group `penstock transaction`: lists, describes and aborts transactions."""

from __future__ import annotations

import click

from penstock.apps.client.session import State, client_options, moment, say, show


@click.group("transaction", short_help="Inspect and abort transactions.")
def transaction() -> None:
    """Inspect and abort transactions."""


@transaction.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only ids in this state, such as Ongoing; case is ignored. May be repeated.",
)
@click.option(
    "--running-ms",
    type=click.IntRange(0),
    default=None,
    help="Only ids whose newest transaction began at least this many milliseconds ago.",
)
@client_options
def list_transactions(state: State, states: tuple[str, ...], running_ms: int | None) -> None:
    """List transactional ids, with state, producer id and coordinator."""
    with state.client() as client:
        found = client.list_transactions(
            states, running_ms=-1 if running_ms is None else running_ms
        )
    rows = [
        {
            "id": entry.transactional_id,
            "state": entry.state,
            "producer_id": entry.producer_id,
            "coordinator": entry.coordinator,
        }
        for entry in found
    ]
    show(state, rows, things="transactional ids")


@transaction.command("describe")
@click.argument("name")
@client_options
def describe(state: State, name: str) -> None:
    """Show the producer of a transactional id, and the partitions of its open transaction."""
    with state.client() as client:
        found = client.describe_transaction(name)
    rows = [{"topic": topic, "partition": partition} for topic, partition in found.partitions]
    facts = {
        "id": name,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms,
        "partitions": rows,
    }
    title = (
        f"{name}: {found.state}, producer {found.producer_id} in epoch {found.producer_epoch},"
        f" timeout {found.timeout_ms} ms, began {moment(found.start_ms) or 'never'}"
    )
    show(state, rows, title=title, things="open partitions", all_as_json=facts)


@transaction.command("abort")
@click.argument("name")
@client_options
def abort(state: State, name: str) -> None:
    """Abort the open transaction of a transactional id, and fence its producer."""
    with state.client() as client:
        found = client.abort_transaction(name)
    say(
        state,
        f"transaction of {name} aborted, its producer is fenced",
        id=name,
        producer_epoch=found.producer_epoch,
    )
