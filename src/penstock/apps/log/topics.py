"""`penstock topic`: topics and their configurations; `replicas.py` has replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.log.consume import consume
from penstock.apps.log.produce import produce
from penstock.apps.log.replicas import elect, reassign, replicas
from penstock.apps.session import (
    BadInput,
    State,
    client_options,
    counted,
    parse_pairs,
    say,
    show,
    write_json,
)
from penstock.base.settings import whole_number

if TYPE_CHECKING:
    from penstock.client import Client

REMOTE_STORAGE: Final = "remote.storage.enable"


@click.group("topic", short_help="Manage topics: create, list, alter, reassign, delete.")
def topic() -> None:
    """Create, inspect and change topics."""


topic.add_command(produce, "produce")
topic.add_command(consume, "consume")
topic.add_command(reassign)
topic.add_command(elect)
topic.add_command(replicas)


def alter_topic(
    client: Client, name: str, changes: Mapping[str, str], deletions: Sequence[str] = ()
) -> None:
    """Change a topic's configuration.

    Raises:
        BadInput: a local retention is given for a topic that is not tiered.
    """
    if _local(changes):
        configs = {entry.name: entry.value for entry in client.describe_configs("topic", name)}
        check_local_retention(changes, changes.get(REMOTE_STORAGE, configs.get(REMOTE_STORAGE)))
    client.alter_configs("topic", name, changes, delete=deletions)


def check_local_retention(changes: Mapping[str, str], tiered: str | None) -> None:
    """Reject a local retention without effect, which Kafka's brokers accept silently."""
    for name in _local(changes):
        if tiered != "true":
            raise BadInput(
                f"{name}={changes[name]}: this setting affects tiered topics only. Set"
                f" {REMOTE_STORAGE}=true too, or retention.{name.rpartition('.')[2]} instead."
            )


def _local(changes: Mapping[str, str]) -> list[str]:
    return [name for name in changes if name.startswith("local.retention.")]


@topic.command("create")
@click.argument("names", nargs=-1, required=True)
@click.option(
    "-p", "--partitions", type=int, default=-1, help="Number of partitions. Default: the broker's."
)
@click.option("-r", "--replicas", "factor", type=int, default=-1, help="Default: the broker's.")
@click.option(
    "-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Setting of the topics."
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail if a topic exists.")
@client_options
def create(
    state: State,
    names: tuple[str, ...],
    partitions: int,
    factor: int,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create topics."""
    pairs = parse_pairs(configs, "--config")
    check_local_retention(pairs, pairs.get(REMOTE_STORAGE))
    created = []
    with state.client() as client:
        for name in names:
            found = client.create_topic(
                name, partitions, pairs, replication_factor=factor, exist_ok=if_not_exists
            )
            created.append({"topic": name, "partitions": len(found.partitions)})
            if not state.json:
                click.echo(f"topic {name} has {counted(len(found.partitions), 'partition')}")
    if state.json:
        write_json(created)


@topic.command("list")
@click.option("--internal", is_flag=True, help="Internal topics too.")
@client_options
def list_topics(state: State, internal: bool) -> None:
    """List topics."""
    with state.client() as client:
        topics = client.list_topics(internal=internal)
    rows = [
        {
            "topic": item.name,
            "partitions": len(item.partitions),
            "replicas": max((len(part.replicas) for part in item.partitions), default=0),
            "internal": item.internal,
        }
        for item in topics
    ]
    show(state, rows, ("topic", "partitions", "replicas"), things="topics")


@topic.command("describe")
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="Show default settings too.")
@client_options
def describe(state: State, name: str, everything: bool) -> None:
    """Show a topic's partitions, offsets, and configuration that differs from the defaults.

    JSON has all configurations.
    """
    with state.client() as client:
        found = client.describe_topic(name)
        earliest = client.list_offsets(name, "earliest")
        latest = client.list_offsets(name, "latest")
        configs = client.describe_configs("topic", name)
    partitions: list[dict[str, Any]] = [
        {
            "partition": part.index,
            "leader": part.leader,
            "leader_epoch": part.leader_epoch,
            "replicas": list(part.replicas),
            "isr": list(part.isr),
            "log_start_offset": earliest[part.index],
            "high_watermark": latest[part.index],
        }
        for part in found.partitions
    ]
    described = [{"name": c.name, "value": c.value, "source": c.source} for c in configs]
    facts = {
        "topic": name,
        "topic_id": str(found.topic_id) if found.topic_id else None,
        "internal": found.internal,
        "partitions": partitions,
        "configs": described,
    }
    columns = (
        "partition", "leader", "epoch=leader_epoch", "replicas", "isr", "start=log_start_offset",
        "high_watermark",
    )  # fmt: skip
    title = f"topic {name} ({found.topic_id})"
    show(state, partitions, columns, title=title, all_as_json=facts)
    if not state.json:
        shown = [row for row in described if everything or row["source"] != "default"]
        things = "configurations that differ from the defaults (--all shows the others)"
        show(state, shown, ("configuration=name", "value", "source"), things=things)


@topic.command("alter-config")
@click.argument("name")
@click.option(
    "-s", "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Setting to change."
)
@click.option(
    "-d", "--delete", "deletions", multiple=True, metavar="KEY", help="Reset to the default."
)
@client_options
def alter_config(
    state: State, name: str, changes: tuple[str, ...], deletions: tuple[str, ...]
) -> None:
    """Change a topic's configuration."""
    pairs = parse_pairs(changes, "--set")
    if not pairs and not deletions:
        raise click.UsageError("no change given: add --set KEY=VALUE or --delete KEY")
    with state.client() as client:
        alter_topic(client, name, pairs, deletions)
    say(state, f"topic {name} changed", topic=name, set=pairs, deleted=list(deletions))


@topic.command("add-partitions")
@click.argument("name")
@click.option("-n", "--num", type=click.IntRange(min=1), required=True, help="How many to add.")
@client_options
def add_partitions(state: State, name: str, num: int) -> None:
    """Add partitions to a topic; keys may move to other partitions from then on."""
    with state.client() as client:
        total = len(client.describe_topic(name).partitions) + num
        client.create_partitions(name, total)
    say(state, f"topic {name} has {counted(total, 'partition')}", topic=name, partitions=total)


@topic.command("trim-prefix")
@click.argument("name")
@click.option("-o", "--offset", required=True, help="First offset to keep; 'end' keeps nothing.")
@click.option("-p", "--partitions", multiple=True, type=int, help="Partition. Default: all.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def trim_prefix(
    state: State, name: str, offset: str, partitions: tuple[int, ...], yes: bool
) -> None:
    """Delete the records before an offset."""
    before = -1 if offset == "end" else whole_number(offset)
    if before is None:
        raise click.UsageError(f"--offset {offset}: must be a whole number or 'end'")
    with state.client() as client:
        chosen = partitions or [part.index for part in client.describe_topic(name).partitions]
        if not yes:
            click.confirm(
                f"delete the records of {name}, {counted(len(chosen), 'partition')},"
                f" before {offset}?",
                abort=True,
                err=True,
            )
        starts = client.delete_records(name, dict.fromkeys(chosen, before))
    rows = [{"topic": name, "partition": p, "log_start_offset": at} for p, at in starts.items()]
    show(state, rows, ("partition", "start=log_start_offset"))


@topic.command("delete")
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def delete(state: State, names: tuple[str, ...], yes: bool) -> None:
    """Delete topics with their records and committed offsets."""
    if not yes:
        click.confirm(f"delete {', '.join(names)} with all records?", abort=True, err=True)
    with state.client() as client:
        for name in names:
            client.delete_topic(name)
            if not state.json:
                click.echo(f"topic {name} deleted")
    if state.json:
        write_json([{"topic": name, "deleted": True} for name in names])
