"""Command groups `penstock topic` and `penstock config`: topics, and settings of several resources.

The commands that change replicas are in `replicas.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import click

from penstock.apps.client.session import (
    BadInput,
    State,
    client_options,
    counted,
    parse_pairs,
    say,
    show,
    write_json,
)
from penstock.apps.log.consume import consume
from penstock.apps.log.produce import produce
from penstock.apps.log.replicas import elect, reassign, replicas
from penstock.base.settings import whole_number
from penstock.client.admin import ResourceKind

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
    """Change a topic's settings.

    Raises:
        BadInput: a local retention is given for a topic that is not tiered.
    """
    if _local(changes):
        configs = {entry.name: entry.value for entry in client.describe_configs("topic", name)}
        check_local_retention(changes, changes.get(REMOTE_STORAGE, configs.get(REMOTE_STORAGE)))
    client.alter_configs("topic", name, changes, delete=deletions)


def check_local_retention(changes: Mapping[str, str], tiered: str | None) -> None:
    """Reject a local retention for a topic that is not tiered.

    It would have no effect, and Kafka's brokers accept it without an error.
    """
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
    "-p",
    "--partitions",
    type=int,
    default=-1,
    help="Number of partitions of each topic. Default: the brokers' num.partitions.",
)
@click.option(
    "-r",
    "--replicas",
    "factor",
    type=int,
    default=-1,
    help="Number of replicas of each partition. Default: the brokers' default.replication.factor.",
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the topics, such as retention.ms=86400000. May be repeated.",
)
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="Leave a topic that exists already unchanged, instead of failing.",
)
@client_options
def create(
    state: State,
    names: tuple[str, ...],
    partitions: int,
    factor: int,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create topics with the same settings."""
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
@click.option("--internal", is_flag=True, help="List internal topics too.")
@client_options
def list_topics(state: State, internal: bool) -> None:
    """List topics, with their numbers of partitions and replicas."""
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
@click.option(
    "--all", "everything", is_flag=True, help="Show all settings, also those with default values."
)
@client_options
def describe(state: State, name: str, everything: bool) -> None:
    """Show a topic's partitions, offsets, and settings that differ from the defaults.

    JSON output always has all settings.
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
    "-s",
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting to change. May be repeated.",
)
@click.option(
    "-d",
    "--delete",
    "deletions",
    multiple=True,
    metavar="KEY",
    help="Setting to reset to its default. May be repeated.",
)
@client_options
def alter_config(
    state: State, name: str, changes: tuple[str, ...], deletions: tuple[str, ...]
) -> None:
    """Change settings of a topic."""
    pairs = parse_pairs(changes, "--set")
    if not pairs and not deletions:
        raise click.UsageError("no change given: add --set KEY=VALUE or --delete KEY")
    with state.client() as client:
        alter_topic(client, name, pairs, deletions)
    say(state, f"topic {name} changed", topic=name, set=pairs, deleted=list(deletions))


@topic.command("add-partitions")
@click.argument("name")
@click.option(
    "-n", "--num", type=click.IntRange(min=1), required=True, help="Number of partitions to add."
)
@client_options
def add_partitions(state: State, name: str, num: int) -> None:
    """Add partitions to a topic.

    Records with a given key may be written to a different partition from then on.
    """
    with state.client() as client:
        total = len(client.describe_topic(name).partitions) + num
        client.create_partitions(name, total)
    say(state, f"topic {name} has {counted(total, 'partition')}", topic=name, partitions=total)


@topic.command("trim-prefix")
@click.argument("name")
@click.option(
    "-o", "--offset", required=True, help="First offset to keep; end deletes all records."
)
@click.option(
    "-p",
    "--partitions",
    multiple=True,
    type=int,
    help="Partition to delete from. May be repeated. Default: all partitions.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def trim_prefix(
    state: State, name: str, offset: str, partitions: tuple[int, ...], yes: bool
) -> None:
    """Delete the records of a topic before an offset."""
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
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
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


_KINDS = click.Choice(("topic", "broker", "client-metrics", "group"))


@click.group("config", short_help="Manage settings of topics, groups and brokers.")
def config() -> None:
    """Manage settings of topics and groups (by name), and of brokers (by id).

    The kind client-metrics has subscriptions to metrics that clients push; their names are free.
    """


@config.command("describe")
@click.argument("kind", type=_KINDS)
@click.argument("name")
@click.option(
    "--all", "everything", is_flag=True, help="Show all settings, also those with default values."
)
@client_options
def describe_config(state: State, kind: str, name: str, everything: bool) -> None:
    """Show settings; without --all only those that differ from the defaults."""
    with state.client() as client:
        entries = client.describe_configs(
            cast("ResourceKind", kind), name, documentation=state.json
        )
    shown = [entry for entry in entries if everything or entry.source != "default"]
    names = ("name", "value", "source", "read_only", "sensitive", "documentation")
    rows = [{key: getattr(entry, key) for key in names} for entry in shown]
    things = "configurations" if everything else "configurations that differ from the defaults"
    show(state, rows, names[:3], title=f"{kind} {name}", things=things)


@config.command("set")
@click.argument("kind", type=_KINDS)
@click.argument("name")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE…")
@client_options
def set_config(state: State, kind: str, name: str, pairs: tuple[str, ...]) -> None:
    """Change settings."""
    changes = parse_pairs(pairs, "argument")
    with state.client() as client:
        if kind == "topic":
            alter_topic(client, name, changes)
        else:
            client.alter_configs(cast("ResourceKind", kind), name, changes)
    say(state, f"{kind} {name} changed", kind=kind, name=name, set=changes)


@config.command("delete")
@click.argument("kind", type=_KINDS)
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY…")
@client_options
def delete_config(state: State, kind: str, name: str, keys: tuple[str, ...]) -> None:
    """Reset settings to their defaults."""
    with state.client() as client:
        client.alter_configs(cast("ResourceKind", kind), name, delete=keys)
    say(state, f"{kind} {name} changed", kind=kind, name=name, deleted=list(keys))
