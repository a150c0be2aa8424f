"""Command group `penstock group`: lists, describes and deletes groups, and changes their
offsets.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from penstock.apps.client.session import (
    Number,
    State,
    client_options,
    counted,
    default_option,
    say,
    show,
    to_stderr,
    write_json,
)
from penstock.apps.log.formats import parse_position, resolve
from penstock.apps.log.queues import admin_option
from penstock.base.errors import InvalidError, RetriableError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.apps.log.lag import Row
    from penstock.client import Client, GroupDescription

INTERVAL_SECONDS_MIN: Final = 0.1


class UnknownGroup(InvalidError):
    """The group does not exist."""

    code: ClassVar[str] = "group_id_not_found"


@click.group("group", short_help="Manage consumer groups: list, describe, seek, delete.")
def group() -> None:
    """Manage consumer groups and their offsets."""


@group.command("list")
@client_options
def list_groups(state: State) -> None:
    """List all groups, with type and state."""
    with state.client() as client:
        groups = client.list_groups()
    rows = [
        {
            "group": g.group_id,
            "type": g.group_type,
            "state": g.state,
            "protocol_type": g.protocol_type,
        }
        for g in groups
    ]
    show(state, rows, things="groups")


@group.command("describe")
@click.argument("name")
@client_options
def describe(state: State, name: str) -> None:
    """Show a group's state, members, committed offsets and lag in records."""
    with state.client() as client:
        found = client.describe_group(name)
        offsets = _lag(client, name, found)
    if found.state == "Dead" and not offsets:
        raise UnknownGroup(f"group {name!r} does not exist; list groups with `penstock group list`")
    facts = {
        "group": name,
        "state": found.state,
        "protocol_type": found.protocol_type,
        "protocol": found.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [{"topic": topic, "partition": p} for topic, p in member.partitions],
            }
            for member in found.members
        ],
        "offsets": offsets,
        "total_lag": sum(row["lag"] or 0 for row in offsets),
    }
    title = (
        f"group {name}: {found.state}, {counted(len(found.members), 'member')},"
        f" {found.protocol or '-'}"
    )
    columns = (
        "topic", "partition", "committed=committed_offset", "end=log_end_offset", "lag",
        "client=client_id",
    )  # fmt: skip
    show(state, offsets, columns, title=title, things="committed offsets", all_as_json=facts)


def _lag(client: Client, name: str, found: GroupDescription) -> list[dict[str, Any]]:
    committed = client.committed(name)
    owners = {at: member for member in found.members for at in member.partitions}
    ends = {
        topic: client.list_offsets(topic, "latest")
        for topic in sorted({topic for topic, _ in [*committed, *owners]})
    }
    rows: list[dict[str, Any]] = []
    for topic, partition in sorted({*committed, *owners}):
        at = committed.get((topic, partition))
        end = ends[topic].get(partition)
        owner = owners.get((topic, partition))
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "committed_offset": None if at is None else at.offset,
                "log_end_offset": end,
                "lag": None if at is None or end is None else max(0, end - at.offset),
                "client_id": None if owner is None else owner.client_id,
                "metadata": None if at is None else at.metadata,
            }
        )
    return rows


@group.command("watch")
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@click.option("--once", is_flag=True, help="Show the groups once and end.")
@default_option(
    "--interval", 5.0, "Seconds between two looks.", Number(min=INTERVAL_SECONDS_MIN, max=3600)
)
@admin_option
@client_options
def watch(
    state: State, names: tuple[str, ...], once: bool, interval: float, admin: str | None
) -> None:
    """Show the state of groups by the trend of their lag, until Ctrl-C or with --once.

    States are OK, WARN, ERR, STOP, STALL and REWIND. Each group that is not OK has one line with
    the reason. With --output json, --once writes an array, and a watch one line for each group and
    look.
    """
    from penstock.apps.log.lag import NOT_FOUND, LagWatch, write_groups
    from penstock.apps.process.daemon import handled

    with state.client() as client:
        look = LagWatch(state, client, names, admin=admin).look
        if once:
            rows = look()
            (write_json if state.json else write_groups)(rows)
            missing = [row["group_id"] for row in rows if row["state"] == NOT_FOUND]
            if missing:
                names_text = " or ".join(map(repr, missing))
                raise UnknownGroup(
                    f"no group is named {names_text}; list groups with `penstock group list`"
                )
            return
        with suppress(KeyboardInterrupt), handled(signal.default_int_handler, (signal.SIGTERM,)):
            _watch(look, interval, as_json=state.json)


def _watch(look: Callable[[], list[Row]], interval_seconds: float, *, as_json: bool) -> None:
    """Show groups repeatedly: in place on a terminal, else one table after another.

    If brokers do not respond, the reason is shown and the watch continues.
    """
    from rich.console import Console
    from rich.live import Live

    from penstock.apps.log.lag import table, write_groups

    console = Console()
    live = not as_json and console.is_terminal
    rows: list[Row] = []
    with Live(console=console, auto_refresh=False) if live else nullcontext() as display:
        while True:
            trouble = ""
            try:
                rows = look()
            except (RetriableError, UnavailableError) as error:
                trouble = str(error)
            if display is not None:
                display.update(table(rows, trouble), refresh=True)
            elif trouble:
                to_stderr(f"penstock: {trouble}")
            elif as_json:
                now_ms = SYSTEM_CLOCK.now_ms()
                for row in rows:
                    click.echo(json.dumps({"time_ms": now_ms, **row}))
            else:
                write_groups(rows)
            signal.sigtimedwait((), interval_seconds)


@group.command("seek")
@click.argument("name")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    help="Topic whose offsets change. May be repeated. Default: all topics with committed"
    " offsets of the group.",
)
@click.option(
    "-p",
    "--partitions",
    multiple=True,
    type=int,
    help="Partition whose offset changes. May be repeated. Default: all partitions.",
)
@click.option(
    "--to",
    required=True,
    help="New position: beginning, end, an offset, -N (N before the end), or @MS (the first"
    " record at or after a timestamp in ms since 1970).",
)
@click.option(
    "--execute",
    is_flag=True,
    help="Commit the new offsets; without this option they are only shown.",
)
@client_options
def seek(
    state: State,
    name: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    to: str,
    execute: bool,
) -> None:
    """Change a group's committed offsets; without --execute only show the changes."""
    position = parse_position(to.removeprefix("s") if to.startswith("s@") else to)
    with state.client() as client:
        committed = client.committed(name)
        chosen = topics or tuple(sorted({topic for topic, _ in committed}))
        if not chosen:
            raise click.UsageError(
                f"group {name} has no committed offsets: give a topic with --topic"
            )
        changes: dict[tuple[str, int], int] = {}
        for topic in chosen:
            targets = resolve(client, topic, position, list(partitions) or None)
            changes.update({(topic, p): offset for p, offset in targets.items()})
        if execute:
            client.commit_offsets(name, changes)
    rows = [
        {
            "topic": topic,
            "partition": p,
            "from": committed[topic, p].offset if (topic, p) in committed else None,
            "to": offset,
            "executed": execute,
        }
        for (topic, p), offset in sorted(changes.items())
    ]
    title = f"group {name}" + ("" if execute else " (dry run; add --execute to commit the offsets)")
    show(state, rows, ("topic", "partition", "from", "to"), title=title)


@group.command("offset-delete")
@click.argument("name")
@click.option("-t", "--topic", required=True, help="Topic whose committed offsets are deleted.")
@click.option(
    "-p",
    "--partitions",
    multiple=True,
    type=int,
    help="Partition whose offset is deleted. May be repeated. Default: all with an offset.",
)
@client_options
def offset_delete(state: State, name: str, topic: str, partitions: tuple[int, ...]) -> None:
    """Delete a group's committed offsets of a topic."""
    with state.client() as client:
        chosen = partitions or tuple(p for t, p in client.committed(name) if t == topic)
        if not chosen:
            raise click.UsageError(f"group {name} has no committed offsets of topic {topic}")
        client.delete_offsets(name, [(topic, p) for p in chosen])
    text = f"group {name}: {counted(len(chosen), 'offset')} of {topic} deleted"
    say(state, text, group=name, topic=topic, partitions=list(chosen))


@group.command("delete")
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def delete(state: State, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups that have no members, with their committed offsets."""
    if not yes:
        click.confirm(f"delete {', '.join(names)} with all offsets?", abort=True, err=True)
    with state.client() as client:
        for name in names:
            client.delete_group(name)
            if not state.json:
                click.echo(f"group {name} deleted")
    if state.json:
        write_json([{"group": name, "deleted": True} for name in names])
