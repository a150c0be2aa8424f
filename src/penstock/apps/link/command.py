"""Command group `penstock link`: topics that follow topics of another cluster."""

from __future__ import annotations

from contextlib import nullcontext
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
    path_option,
    say,
    show,
)
from penstock.apps.log.replicas import check_factor, give_replicas
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.client import Client
    from penstock.link.source import Origin

source_config_option = path_option(
    "--source-config",
    "Properties file with the client options of the source, for this command. Default: no"
    " security.",
)

factor_option = click.option(
    "--replication-factor",
    "factor",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Replicas of the promoted topics. The command waits until the added ones have the logs.",
)


def source_option(*, required: bool = True) -> Callable[[Any], Any]:
    return click.option(
        "--source",
        required=required,
        metavar="HOST:PORT,…",
        help="Brokers of the source cluster. The brokers of the target connect to them, too.",
    )


def broker_config_option(command: Any) -> Any:
    """Add `--broker-config`, the path of the options with which brokers connect to the source."""
    return click.option(
        "--broker-config",
        default="",
        metavar="PATH",
        help="Absolute path, on each broker of the target, of a properties file with the client"
        " options of the source. Default: no security.",
    )(command)


def source_client(bootstrap: str, config: Path | None) -> Client:
    """Return a client of the source cluster.

    Raises:
        UnusableFile: the file cannot be read.
    """
    from penstock.client import Client
    from penstock.link.source import options_of

    options = options_of("" if config is None else str(config))
    return Client(bootstrap, client_id="penstock-link", api_timeout_ms=10_000, security=options)


def one_origin(target: Client, topics: tuple[str, ...]) -> tuple[list[str], Origin]:
    """Return linked topics and their common source; raises BadInput if they have several."""
    from penstock.link.topics import linked_topics

    found = linked_topics(target, topics)
    origins = sorted(set(found.values()))
    if len(origins) != 1:
        names = ", ".join(origin.bootstrap for origin in origins) or "none"
        raise BadInput(f"the topics have these sources: {names}. Name topics of a single source.")
    return list(found), origins[0]


def check_source(source: Client, config: Path | None, topics: Sequence[str]) -> None:
    """Raise MissingRights if this command's user may not read and describe topics of the source."""
    from penstock.link.rights import FOLLOWED, check_rights, on_topics
    from penstock.link.source import options_of

    options = options_of("" if config is None else str(config))
    check_rights("source", source, options, on_topics(topics, FOLLOWED))


def check_promotion(state: State, target: Client, topics: Sequence[str], factor: int) -> None:
    """Check that this command may promote topics, and give them `factor` replicas.

    Raises:
        MissingRights: the user lacks rights.
        Refused: there are fewer brokers that may hold replicas.
    """
    from penstock.link.rights import CHANGED, check_rights, on_topics

    needs = on_topics(topics, CHANGED, moves=factor > 1)
    check_rights("target", target, state.security(), needs)
    if factor > 1:  # the number of brokers needs rights on the cluster
        check_factor(target, factor)


def report_groups(state: State, failed: Mapping[str, str]) -> None:
    """Report the groups whose offsets were not copied, with reasons."""
    for group, reason in failed.items():
        state.notice(f"penstock: offsets of group {group} were not copied: {reason}")


@click.group("link", short_help="Follow topics of another cluster, batch for batch.")
def link() -> None:
    """Follow topics of another cluster, batch for batch.

    A linked topic has the same batches, offsets and leader epochs as its source, which is a
    Penstock or Apache Kafka cluster. It rejects producers until it is promoted.
    """


@link.command("create")
@click.argument("topics", nargs=-1, required=True)
@source_option()
@source_config_option
@broker_config_option
@client_options
def create(
    state: State,
    topics: tuple[str, ...],
    source: str,
    source_config: Path | None,
    broker_config: str,
) -> None:
    """Create topics that follow the topics of the same names in the source.

    They get the source's number of partitions and its topics' own settings, and one replica.
    Committed offsets of the source's groups are copied every few seconds.
    """
    from penstock.link.rights import CREATED, check_rights, on_topics
    from penstock.link.source import Origin
    from penstock.link.topics import create as create_links

    with source_client(source, source_config) as origin, state.client() as target:
        check_source(origin, source_config, topics)
        check_rights("target", target, state.security(), on_topics(topics, CREATED))
        notes = create_links(origin, target, topics, Origin(source, broker_config))
    for name, left in notes.items():
        for setting, reason in left.items():
            state.notice(f"penstock: {name}: {setting}: {reason}")
    say(state, f"{counted(len(topics), 'topic')} linked to {source}", topics=list(topics))


@link.command("status")
@click.argument("topics", nargs=-1)
@source_config_option
@click.option(
    "--verify",
    is_flag=True,
    help="Also read all batches of both sides, and compare their CRCs. Exit status 1 if they"
    " differ.",
)
@client_options
def status(state: State, topics: tuple[str, ...], source_config: Path | None, verify: bool) -> None:
    """Show how far linked topics are behind their sources, by partition.

    `lag_ms` is the age of the oldest record that is not copied. If a topic was deleted or created
    again at the source, cause and remedy are written to stderr, and the exit status is 1. With
    `--verify`, the columns `source crc` and `target crc` are CRC-32C values over the CRC fields of
    all batches that both sides have.
    """
    from penstock.link.topics import compare, lag_of, linked_topics, problems

    rows: list[dict[str, Any]] = []
    troubled: list[dict[str, Any]] = []
    with state.client() as target:
        by_origin: dict[Origin, list[str]] = {}
        for name, origin in linked_topics(target, topics).items():
            by_origin.setdefault(origin, []).append(name)
        for origin, names in by_origin.items():
            with source_client(origin.bootstrap, source_config) as source:
                reasons = problems(source, target, names)
                names = [name for name in names if name not in reasons]
                check_source(source, source_config, names)
                lags = lag_of(source, target, names, now_ms=SYSTEM_CLOCK.now_ms())
                sums = {
                    (found.topic, found.partition): found
                    for name in (names if verify else ())
                    for found in compare(source, target, name)
                }
            for name, reason in reasons.items():
                troubled.append({"topic": name, "source": origin.bootstrap, "problem": reason})
                state.notice(f"penstock: {reason}")
            for lag in lags:
                row = {**asdict(lag), "lag": lag.records, "source": origin.bootstrap}
                if verify:
                    found = sums[lag.topic, lag.partition]
                    row |= {
                        "source_crc": f"{found.source:08x}",
                        "target_crc": f"{found.target:08x}",
                        "equal": found.equal,
                    }
                rows.append(row)
    columns = ["topic", "partition", "source", "source_end", "target_end", "lag", "lag ms=lag_ms"]
    columns += ["source_crc", "target_crc", "equal"] if verify else []
    show(state, rows, columns, things="linked topics with a source", all_as_json=[*rows, *troubled])
    if troubled or not all(row.get("equal", True) for row in rows):
        raise SystemExit(STATUS_PROBLEMS)


@link.command("promote")
@click.argument("topics", nargs=-1, required=True)
@source_config_option
@factor_option
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Time in which the rest of the source's records must be copied.",
)
@click.option(
    "--source-lost",
    is_flag=True,
    help="Promote without the source, with the records that are copied.",
)
@client_options
def promote(
    state: State,
    topics: tuple[str, ...],
    source_config: Path | None,
    timeout_seconds: float,
    source_lost: bool,
    factor: int,
) -> None:
    """End links, so that topics accept producers.

    Stop the producers of the source first. The command waits until all records are copied, copies
    the groups' offsets, and ends the links. Idempotent producers continue with their sequences.
    Open transactions are aborted. A link that has ended cannot be resumed. Producers may write
    while the added replicas copy the logs.
    """
    from penstock.link.topics import promote as promote_topics

    with state.client() as target:
        names, origin = one_origin(target, topics)
        check_promotion(state, target, names, factor)
        reach = nullcontext() if source_lost else source_client(origin.bootstrap, source_config)
        with reach as source:
            failed = promote_topics(source, target, names, timeout_seconds=timeout_seconds)
        report_groups(state, failed)
        done = f"{counted(len(names), 'topic')} promoted"
        if factor > 1:
            state.notice(f"penstock: {done}, and open for producers")
        give_replicas(state, target, names, factor)
    say(state, done, topics=names, groups_failed=failed)


@link.command("reverse")
@click.argument("topics", nargs=-1, required=True)
@source_option()
@broker_config_option
@click.option("--yes", is_flag=True, help="Remove records that only this cluster has.")
@client_options
def reverse(
    state: State, topics: tuple[str, ...], source: str, broker_config: str, yes: bool
) -> None:
    """Make topics of a former source follow the promoted topics of another cluster.

    Run it with -b of the former source, which must be Penstock, and --source of the cluster whose
    topics were promoted. Records above the offset at which the logs diverge are removed; the
    command lists them, and requires --yes to remove any. Of several replicas, the first stays, and
    min.insync.replicas becomes 1; `penstock link promote --replication-factor` adds replicas again.
    """
    from penstock.link.rights import CHANGED, check_rights, on_topics
    from penstock.link.source import Origin
    from penstock.link.topics import reverse as reverse_topics
    from penstock.link.topics import surplus

    origin = Origin(source, broker_config)
    with state.client() as follower:
        moves = any(
            len(row.replicas) > 1
            for name in topics
            for row in follower.describe_topic(name).partitions
        )
        needs = on_topics(topics, CHANGED, moves=moves)
        check_rights("former source", follower, state.security(), needs)
        lost = surplus(follower, origin, topics)
        if lost and not yes:
            show(state, [asdict(part) for part in lost])
            raise BadInput("the records above are only on this cluster. Remove them with --yes.")
        give_replicas(state, follower, topics, 1)
        reverse_topics(follower, origin, topics)
    removed = sum(part.records for part in lost)
    say(
        state,
        f"{counted(len(topics), 'topic')} linked to {source}, {counted(removed, 'record')} removed",
        topics=list(topics),
        removed=removed,
    )


@link.command("delete")
@click.argument("topics", nargs=-1, required=True)
@client_options
def delete(state: State, topics: tuple[str, ...]) -> None:
    """Delete linked topics with their copied records; topics without a link are rejected."""
    from penstock.link.topics import delete as delete_topics

    with state.client() as target:
        delete_topics(target, topics)
    say(state, f"{counted(len(topics), 'linked topic')} deleted", topics=list(topics))
