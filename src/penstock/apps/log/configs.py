"""`penstock config`: show and change settings of topics, brokers and groups."""

from __future__ import annotations

from typing import cast

import click

from penstock.apps.log.topics import alter_topic
from penstock.apps.session import State, client_options, parse_pairs, say, show
from penstock.client.admin import ResourceKind

_KINDS = click.Choice(("topic", "broker", "client-metrics", "group"))


@click.group("config", short_help="Manage settings of topics, groups and brokers.")
def config() -> None:
    """Manage configurations of topics and groups (by name) and brokers (by id).

    client-metrics are subscriptions to metrics that clients push, by any name.
    """


@config.command("describe")
@click.argument("kind", type=_KINDS)
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="Show default values too.")
@client_options
def describe(state: State, kind: str, name: str, everything: bool) -> None:
    """Show a configuration; without --all only values that differ from the default."""
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
    """Set configurations."""
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
    """Reset configurations to their defaults."""
    with state.client() as client:
        client.alter_configs(cast("ResourceKind", kind), name, delete=keys)
    say(state, f"{kind} {name} changed", kind=kind, name=name, deleted=list(keys))
