"""Command group `penstock migrate`: moves a cluster from Apache Kafka by links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from penstock.apps.client.session import (
    STATUS_PROBLEMS,
    BadInput,
    State,
    client_options,
    counted,
    default_option,
    say,
    show,
)
from penstock.apps.link.command import (
    broker_config_option,
    check_promotion,
    factor_option,
    report_groups,
    source_client,
    source_config_option,
    source_option,
)
from penstock.apps.log.replicas import give_replicas

if TYPE_CHECKING:
    from penstock.client import Client

record_option = default_option(
    "--record",
    "penstock-cut-over.json",
    "File with the offsets of the cut-over, which `penstock migrate back` needs.",
    click.Path(path_type=Path),
)
topics_argument = click.argument("topics", nargs=-1)


@click.group("migrate", short_help="Move topics, groups and rules from Apache Kafka.")
def migrate() -> None:
    """Move topics, groups and rules from Apache Kafka to the cluster of -b.

    Without TOPICS, `plan` and `run` are about all topics of the source that are not internal, and
    `cut-over` is about all linked topics.
    """


@migrate.command("plan")
@topics_argument
@source_option()
@source_config_option
@client_options
def plan(state: State, topics: tuple[str, ...], source: str, source_config: Path | None) -> None:
    """Show what a migration moves, and what it cannot move and why. Nothing is changed.

    Exit status 1 if problems prevent the migration.
    """
    from penstock.link.migration import plan as plan_migration

    with source_client(source, source_config) as origin, state.client() as target:
        found = plan_migration(origin, target, topics)
    if state.json:
        show(state, (), all_as_json=asdict(found))
    else:
        show(state, found.topics, things="topics")
        show(state, found.groups, things="groups")
        click.echo(
            f"{counted(found.acls, 'ACL')}, {counted(found.quotas, 'quota')},"
            f" {counted(len(found.users), 'user')},"
            f" {counted(len(found.transactions), 'open transaction')}"
        )
        for note in found.notes:
            click.echo(f"note: {note}")
        for problem in found.problems:
            click.echo(f"problem: {problem}")
    if found.problems:
        raise SystemExit(STATUS_PROBLEMS)


@migrate.command("run")
@topics_argument
@source_option()
@source_config_option
@broker_config_option
@default_option(
    "--wait-seconds",
    0.0,
    "Time for which the lag is printed every second, until it is 0.",
    click.FloatRange(0),
)
@client_options
def run(
    state: State,
    topics: tuple[str, ...],
    source: str,
    source_config: Path | None,
    broker_config: str,
    wait_seconds: float,
) -> None:
    """Link all topics, and copy ACLs and quotas. Run it again to add what is new in the source.

    The brokers then copy records and the groups' offsets. `penstock link status` shows the lag.
    """
    from penstock.link.migration import run as run_migration
    from penstock.link.source import Origin

    with source_client(source, source_config) as origin, state.client() as target:
        copied = run_migration(origin, target, topics, Origin(source, broker_config))
        say(
            state,
            f"{counted(copied.topics, 'topic')} linked, {counted(copied.acls, 'ACL')} and"
            f" {counted(copied.quotas, 'quota')} copied",
            **asdict(copied),
        )
        _show_lag(state, origin, target, topics, wait_seconds)


def _show_lag(
    state: State, source: Client, target: Client, topics: tuple[str, ...], seconds: float
) -> None:
    from penstock.link.topics import LinkBehind, lag_of, linked_topics, wait_until_copied

    names = list(linked_topics(target, topics))
    for _ in range(int(seconds)):
        try:
            wait_until_copied(source, target, names, timeout_seconds=1.0)
            break
        except LinkBehind:
            lag = sum(part.records for part in lag_of(source, target, names))
            state.notice(f"penstock: {counted(lag, 'record')} to copy")


@migrate.command("cut-over")
@topics_argument
@source_option()
@source_config_option
@record_option
@click.option(
    "--deny-writes",
    is_flag=True,
    help="Stop the source's producers by ACLs that deny User:* to write. The source needs an"
    " authorizer, and the links need ACLs of their own or a super user.",
)
@click.option(
    "--writers-stopped", is_flag=True, help="The source's producers are stopped; do not ask."
)
@default_option(
    "--timeout-seconds", 30.0, "Time in which the rest must be copied.", click.FloatRange(0)
)
@factor_option
@client_options
def cut_over(
    state: State,
    topics: tuple[str, ...],
    source: str,
    source_config: Path | None,
    record: Path,
    deny_writes: bool,
    writers_stopped: bool,
    timeout_seconds: float,
    factor: int,
) -> None:
    """Compare both clusters, stop writes to the source, copy the rest, and promote all topics.

    Without --deny-writes, the command asks you to stop the producers when everything else is done.
    If it fails before the promotion, the topics stay linked, and writes to the source are allowed
    again.
    """
    from penstock.link.migration import cut_over as cut_over_topics
    from penstock.link.migration import encode
    from penstock.link.topics import linked_topics

    if record.exists():
        raise BadInput(f"{record} exists: it is the record of another cut-over. Name a new file.")
    with source_client(source, source_config) as origin, state.client() as target:
        names = sorted(linked_topics(target, topics))
        check_promotion(state, target, names, factor)

        def stop_writers() -> None:
            if not (deny_writes or writers_stopped):
                click.confirm("Stop the producers of the source. Are they stopped?", abort=True)

        done, failed = cut_over_topics(
            origin, target, names, stop_writers=stop_writers, deny_writes=deny_writes,
            timeout_seconds=timeout_seconds,
        )  # fmt: skip
        record.write_bytes(encode(done))
        report_groups(state, failed)
        text = (
            f"{counted(len(names), 'topic')} promoted, {done.pause_ms} ms after the producers were"
            f" stopped; {record} has the offsets"
        )
        if factor > 1:
            state.notice(f"penstock: {text}. Start the clients")
        give_replicas(state, target, names, factor)
    say(
        state,
        text,
        topics=names,
        pause_ms=done.pause_ms,
        groups_failed=failed,
    )


@migrate.command("back")
@source_option()
@source_config_option
@record_option
@click.option(
    "--writers-stopped", is_flag=True, help="The target's producers are stopped; do not ask."
)
@client_options
def back(
    state: State,
    source: str,
    source_config: Path | None,
    record: Path,
    writers_stopped: bool,
) -> None:
    """Return to the source within an hour: write the records since the cut-over to it.

    Keys, values, headers and timestamps stay. Groups continue in the source after the last record
    that they have committed in the target.
    """
    from penstock.link.migration import back as write_back
    from penstock.link.migration import decode

    if not record.exists():
        raise BadInput(f"{record} does not exist: name the record of the cut-over with --record.")
    if not writers_stopped:
        click.confirm("Stop the producers of the target. Are they stopped?", abort=True)
    with source_client(source, source_config) as origin, state.client() as target:
        written = write_back(origin, target, decode(record.read_bytes()))
    rows: list[dict[str, Any]] = [
        {"topic": topic, "partition": partition, "records": count}
        for (topic, partition), count in sorted(written.items())
    ]
    show(state, rows, things="records were written since the cut-over")
