"""Command group `penstock queue`: inspects share groups, and redrives their dead letters.

The state of a share group comes from the admin interface of any broker. Records are read like by a
consumer without a group, so none are acquired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from penstock.apps.client.session import State, client_options, counted, default_option, show
from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.extras import check_installed
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.client import Client

PEEKED: Final = 10
REDRIVEN: Final = 10_000
VALUE_CHARS: Final = 60
LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"


class NoQueue(InvalidError):
    """The share group has no stored state."""

    code: ClassVar[str] = "group_id_not_found"


class NoDeadLetterTopic(InvalidError):
    """The share group has no dead letter topic."""

    code: ClassVar[str] = "invalid_config"


class NoAdminInterface(UnavailableError):
    """No broker's admin interface is reachable."""

    code: ClassVar[str] = "broker_not_available"


admin_option = click.option(
    "--admin", metavar="HOST:PORT,…",
    help="Admin interfaces of brokers (PENSTOCK_ADMIN). Default: those that the brokers report.",
)  # fmt: skip


@click.group("queue", short_help="Inspect share groups, and redrive dead letters.")
def queue() -> None:
    """Inspect share groups, and return dead letters to their topics."""


@queue.command("list")
@client_options
def list_queues(state: State) -> None:
    """List share groups, with state and dead letter topic."""
    with state.client() as client:
        rows = [
            {
                "group": group.group_id,
                "state": group.state,
                "dead_letter_topic": letter_topic(client, group.group_id),
            }
            for group in client.list_groups()
            if group.group_type.lower() == "share"
        ]
    show(state, rows, things="share groups")


@queue.command("describe")
@click.argument("name")
@admin_option
@client_options
def describe(state: State, name: str, admin: str | None) -> None:
    """Show how many records of a share group are available, acquired, or dead letters.

    `archiving` counts undeliverable records that are not yet copied to the dead letter topic.
    Records that were never acquired are counted by offsets, which include transaction markers.
    """
    with state.client() as client:
        found = standing(state, client, name, admin)
        topic = found["dead_letter_topic"]
        dead_letters = unredriven(client, name, topic)
    totals = {key: sum(row[key] for row in found["partitions"])
              for key in ("available", "acquired", "archiving")}  # fmt: skip
    facts = {**found, **totals, "dead_letters": dead_letters}
    told = (
        "no dead letters" if topic is None else f"{counted(dead_letters, 'dead letter')} in {topic}"
    )
    title = f"queue {name}: {totals['available']} available, {totals['acquired']} acquired, {told}"
    columns = ("topic", "partition", "start_offset", "log_end_offset", "available", "acquired",
               "archiving")  # fmt: skip
    show(state, found["partitions"], columns, title=title, all_as_json=facts)


@queue.command("oldest")
@click.argument("name")
@admin_option
@client_options
def oldest(state: State, name: str, admin: str | None) -> None:
    """Show the oldest unfinished record of each partition, and its age in ms."""
    check_installed("client")
    now_ms = SYSTEM_CLOCK.now_ms()
    rows = []
    with state.client() as client:
        for entry in standing(state, client, name, admin)["partitions"]:
            first = waiting_records(client, entry, 1, ["offset", "timestamp"])
            for row in first:
                age_ms = max(0, now_ms - row["timestamp"])
                rows.append({"topic": entry["topic"], "partition": entry["partition"], **row,
                             "age_ms": age_ms})  # fmt: skip
    rows.sort(key=lambda row: -row["age_ms"])
    columns = ("topic", "partition", "offset", "timestamp", "age_ms")
    show(state, rows, columns, things="waiting records")


@queue.command("peek")
@click.argument("name")
@default_option(
    "-n --count", PEEKED, "Number of records to show of each partition.", click.IntRange(1, 10_000)
)
@click.option(
    "--dead-letters",
    is_flag=True,
    help="Show dead letters that were not redriven, instead of unfinished records.",
)
@admin_option
@client_options
def peek(state: State, name: str, count: int, dead_letters: bool, admin: str | None) -> None:
    """Show the first unfinished records of each partition, without acquiring them.

    They begin with the oldest unfinished record; later ones may be finished already.
    """
    check_installed("client")
    with state.client() as client:
        if dead_letters:
            _peek_dead_letters(state, client, name, count)
            return
        rows = []
        for entry in standing(state, client, name, admin)["partitions"]:
            place = {"topic": entry["topic"], "partition": entry["partition"]}
            found = waiting_records(client, entry, count, ["offset", "timestamp", "key", "value"])
            rows += [{**place, **_readable(row)} for row in found]
    columns = ("topic", "partition", "offset", "timestamp", "key", "value")
    show(state, rows, columns, things="waiting records")


def _peek_dead_letters(state: State, client: Client, name: str, count: int) -> None:
    from penstock.apps.log.redrive import dead_letters_of, redriven_until

    topic = needed_topic(client, name)
    rows: list[dict[str, Any]] = []
    for partition, start in sorted(redriven_until(client, name, topic).items()):
        batch = client.read_arrow(
            topic, partitions=[partition], start={partition: start}, max_records=count
        )
        rows += [
            {
                "partition": letter.partition, "offset": letter.offset,
                "came_from": "{}-{}@{}".format(*letter.origin), "deliveries": letter.deliveries,
                "message": letter.message, **_readable({"key": letter.key, "value": letter.value}),
            }
            for letter in dead_letters_of(batch)
            if letter.group == name
        ]  # fmt: skip
    columns = ("partition", "offset", "came_from", "deliveries", "message", "key", "value")
    show(state, rows, columns, title=f"dead letters of {name} in {topic}")


@queue.command("redrive")
@click.argument("name")
@default_option(
    "--limit", REDRIVEN, "Largest number of dead letters to read, the oldest first.",
    click.IntRange(1, 1_000_000),
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show how many dead letters would be returned.")
@client_options
def redrive(state: State, name: str, limit: int, dry_run: bool) -> None:
    """Return each dead letter once to the topic and partition that it came from.

    Records and progress are written in the same transactions. The command can therefore be
    interrupted and repeated. All groups that read the topics receive the records.
    """
    check_installed("client")
    from penstock.apps.log.redrive import Redrive
    from penstock.apps.pipeline.replay import whoami

    with state.client() as client:
        topic = needed_topic(client, name)
        work = Redrive(client, name, topic, by=whoami(), at_ms=SYSTEM_CLOCK.now_ms())
        done = work.look(limit) if dry_run else work.run(limit)
    rows = [{"topic": one, "records": count} for one, count in sorted(done.topics.items())]
    facts = {
        "group": name, "dead_letter_topic": topic, "dry_run": dry_run, "topics": done.topics,
        "records": done.records, "doubles": done.doubles, "of_other_groups": done.others,
        "originals_gone": done.lost,
    }  # fmt: skip
    verb = "would be returned" if dry_run else "were returned"
    title = f"{done.records} dead letters of {name} {verb}, {done.doubles} duplicates skipped"
    if done.lost:
        title += (
            f", {done.lost} truncated ones not returned, since their original records were deleted"
        )
    show(state, rows, ("topic", "records"), title=title, all_as_json=facts)


# State of a share group


def letter_topic(client: Client, group: str) -> str | None:
    """Return the dead letter topic in a group's configuration; None if it is not set."""
    entries = client.describe_configs("group", group)
    return next(
        (entry.value for entry in entries if entry.name == LETTER_TOPIC and entry.value), None
    )


def needed_topic(client: Client, group: str) -> str:
    topic = letter_topic(client, group)
    if topic is None:
        raise NoDeadLetterTopic(
            f"group {group!r} has no dead letter topic. Set one with `penstock config set group"
            f" {group} {LETTER_TOPIC}=<topic>`"
        )
    return topic


def standing(state: State, client: Client, group: str, admin: str | None) -> dict[str, Any]:
    """Return a share group's state by partition, with the log end offsets.

    Raises:
        NoAdminInterface: no broker's admin interface answers.
        NoQueue: the group has no stored state.
    """
    from urllib.parse import quote

    from penstock.apps.checks.brokers import admin_answers, known_admins

    addresses = known_admins(state, client.broker_states(), admin)
    path = f"/v1/queues/{quote(group, safe='')}"
    answer = next(iter(admin_answers(state, addresses, path)), None)
    if answer is None:
        raise NoAdminInterface(
            "no broker's admin interface answers: give one with --admin HOST:PORT"
        )
    if not answer["partitions"]:
        raise NoQueue(
            f"share group {group!r} has no stored state; list groups with `penstock queue list`"
        )
    ends: dict[str, dict[int, int]] = {}
    partitions = []
    for row in answer["partitions"]:
        topic = row["topic"]
        if topic not in ends:
            ends[topic] = client.list_offsets(topic, "latest")
        end = ends[topic].get(row["partition"], row["end_offset"])
        available = row["available"] + max(0, end - row["end_offset"])
        partitions.append({**row, "log_end_offset": end, "available": available})
    return {**answer, "partitions": partitions}


def unredriven(client: Client, group: str, topic: str | None) -> int:
    """Return the number of dead letters in a topic, of all groups, that were not redriven."""
    from penstock.apps.log.redrive import redriven_until

    if topic is None or topic not in client.metadata([topic]).topics:
        return 0
    if client.metadata([topic]).topics[topic].error_code:
        return 0
    ends = client.list_offsets(topic, "latest")
    starts = redriven_until(client, group, topic)
    return sum(max(0, end - starts[partition]) for partition, end in ends.items())


def waiting_records(
    client: Client, row: Mapping[str, Any], count: int, columns: list[str]
) -> list[dict[str, Any]]:
    """Return the first `count` records of a partition that a share group has not finished.

    They begin at the oldest unfinished record. `row` is the partition's row of `standing`.
    """
    start, end = row["start_offset"], row["log_end_offset"]
    if start >= end:
        return []
    found = client.read_arrow(
        row["topic"],
        partitions=[row["partition"]],
        start={row["partition"]: start},
        max_records=count,
        columns=columns,
    )
    return list(found.to_pylist())


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's row with key and value as texts of at most `VALUE_CHARS` characters."""
    return {
        name: value.decode(errors="backslashreplace")[:VALUE_CHARS]
        if isinstance(value, bytes)
        else value
        for name, value in row.items()
    }
