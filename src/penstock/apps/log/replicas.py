"""`penstock topic reassign|elect|replicas`: assignment of partitions to brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import click

from penstock.apps.session import Number, State, client_options, counted, say, show
from penstock.base.errors import InvalidError, PenstockError
from penstock.replication.placement import placed_again

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.metadata import (
        ClusterMetadata,
        PartitionMetadata,
        TopicAndPartition,
        TopicMetadata,
    )
    from penstock.client.replicas import Reassignment

ORDERED_AT_ONCE: Final = 1_000
TOLD_MAX: Final = 5
PLAN_BYTES_MAX: Final = 64 << 20
DISKLESS: Final = "diskless.enable"


class Refused(InvalidError):
    """Part of the request was rejected; the message has every reason."""

    code: ClassVar[str] = "invalid_request"


class Site(NamedTuple):
    """Broker that may hold partitions."""

    broker_id: int
    rack: str | None


def sites(found: ClusterMetadata, excluded: Collection[int]) -> list[Site]:
    """Return the running brokers that may get replicas."""
    nodes = found.nodes.values()
    return [Site(node.node_id, node.rack) for node in nodes if node.node_id not in excluded]


def again(
    brokers: Sequence[Site],
    topic: TopicMetadata,
    one: PartitionMetadata,
    ordered: Reassignment | None,
    factor: int | None = None,
) -> tuple[int, ...]:
    """Return a new assignment on these brokers that keeps most replicas and the factor."""
    replicas = [own for own in one.replicas if ordered is None or own not in ordered.removing]
    factor = len(replicas) if factor is None else factor
    if not 1 <= factor <= len(brokers):
        raise Refused(
            f"{topic.name}-{one.index} cannot have {factor} replicas: only"
            f" {len(brokers)} brokers are eligible"
        )
    if topic.topic_id is None:
        raise Refused(f"the brokers did not return the id of topic {topic.name}; retry")
    return placed_again(
        brokers, topic.topic_id, one.index, replicas=replicas, replication_factor=factor
    )


def order(client: Client, target: Mapping[TopicAndPartition, Sequence[int] | None]) -> None:
    """Order replicas, so many in one call; raises Refused if any is."""
    refused: list[str] = []
    partitions = list(target)
    for start in range(0, len(partitions), ORDERED_AT_ONCE):
        part = {
            partition: target[partition]
            for partition in partitions[start : start + ORDERED_AT_ONCE]
        }
        refused += map(str, client.reassign(part).values())
    if refused:
        more = len(refused) - TOLD_MAX
        told = "; ".join(refused[:TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")
        raise Refused(f"{len(refused)} of {counted(len(target), 'partition')} rejected: {told}")


def waiting_options(command: Any) -> Any:
    command = click.option(
        "--no-wait", is_flag=True, help="Do not wait until the moves are complete."
    )(command)
    return click.option(
        "--timeout", "limit", type=Number(0), default=3600.0, show_default=True,
        help="Seconds to wait; pending moves continue afterwards.",
    )(command)  # fmt: skip


def progress(state: State) -> Callable[[int, int], None]:
    """Return a function that writes progress to stderr."""
    return lambda done, total: state.notice(f"{done} of {counted(total, 'partition')} moved")


@click.command("reassign")
@click.argument("name", required=False)
@click.option(
    "-p", "--partition", "partitions", type=int, multiple=True, help="Partition. Default: all."
)
@click.option(
    "--replicas",
    "brokers",
    metavar="ID,…",
    help="Ids of brokers; the first is the preferred leader.",
)
@click.option(
    "--factor",
    type=click.IntRange(min=1),
    help="New replication factor; moves as few replicas as possible.",
)
@click.option("--cancel", is_flag=True, help="Cancel the pending reassignment.")
@click.option(
    "--file",
    "plan",
    type=click.Path(path_type=Path),
    help="JSON file of partitions and their replicas.",
)
@waiting_options
@client_options
def reassign(
    state: State,
    name: str | None,
    partitions: tuple[int, ...],
    brokers: str | None,
    factor: int | None,
    cancel: bool,
    plan: Path | None,
    no_wait: bool,
    limit: float,
) -> None:
    """Change the replicas of partitions, without interrupting clients.

    Added brokers copy the log and join; then removed replicas are deleted. Acknowledged records are
    on a quorum of replicas at every moment.

    A file names topics and partitions itself: {"version": 1, "partitions": [{"topic": "orders",
    "partition": 0, "replicas": [1, 2, 3]}]}, as `penstock cluster advise` and Kafka's
    kafka-reassign-partitions.sh write it.
    """
    ways = (brokers is not None) + (factor is not None) + cancel
    if plan is not None:
        if name is not None or partitions or ways:
            raise click.UsageError("--file names topics, partitions and replicas itself")
        with state.client() as client:
            _carry_out(state, client, read_plan(plan), no_wait, limit)
        return
    if name is None or ways != 1:
        raise click.UsageError("give --file, or a topic and one of --replicas, --factor, --cancel")
    with state.client() as client:
        found, ordered = client.metadata(), client.reassignments()
        brokers_left = sites(found, client.unplaceable_brokers())
        topic = client.describe_topic(name)
        chosen = _chosen(topic, partitions)
        target: dict[TopicAndPartition, Sequence[int] | None] = {}
        for entry in chosen:
            if brokers is not None:
                target[name, entry.index] = _broker_ids(brokers)
            elif factor is not None:
                known = ordered.get((name, entry.index))
                target[name, entry.index] = again(brokers_left, topic, entry, known, factor)
        if cancel:
            target = {(name, item.index): None for item in chosen if (name, item.index) in ordered}
        order(client, target)
        if not no_wait and not cancel:
            client.await_reassigned(target, limit, progress(state))
    done = "cancelled" if cancel else "ordered" if no_wait else "moved"
    say(
        state,
        f"{counted(len(target), 'partition')} of {name} {done}",
        topic=name,
        partitions=len(target),
    )


def _carry_out(
    state: State,
    client: Client,
    target: Mapping[TopicAndPartition, Sequence[int]],
    no_wait: bool,
    limit: float,
) -> None:
    order(client, target)
    if not no_wait:
        client.await_reassigned(target, limit, progress(state))
    done = "ordered" if no_wait else "moved"
    say(state, f"{counted(len(target), 'partition')} {done}", partitions=len(target))


def read_plan(path: Path) -> dict[TopicAndPartition, Sequence[int]]:
    """Replicas by topic and partition from Kafka's JSON of a reassignment; raises UsageError."""
    try:
        with path.open("rb") as file:
            rows = json.loads(file.read(PLAN_BYTES_MAX + 1))["partitions"]
        target: dict[TopicAndPartition, Sequence[int]] = {
            (row["topic"], row["partition"]): tuple(row["replicas"]) for row in rows
        }
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise click.UsageError(
            f"--file {path}: must be JSON of at most {PLAN_BYTES_MAX >> 20} MiB with"
            f' {{"partitions": [{{"topic": …, "partition": …, "replicas": […]}}]}}: {error!r}'
        ) from error
    if len(target) != len(rows):
        raise click.UsageError(f"--file {path}: a partition is named more than once")
    return target


def write_plan(file: IO[str], target: Mapping[TopicAndPartition, Sequence[int]]) -> None:
    """Write a plan in the form that `read_plan` reads."""
    rows = [
        {"topic": name, "partition": index, "replicas": list(replicas)}
        for (name, index), replicas in target.items()
    ]
    json.dump({"version": 1, "partitions": rows}, file, indent=1)
    file.write("\n")


@click.command("elect")
@click.argument("name")
@click.option(
    "-p", "--partition", "partitions", type=int, multiple=True, help="Partition. Default: all."
)
@click.option("--unclean", is_flag=True, help="Elect a remaining replica; records may be lost.")
@click.option("--yes", is_flag=True, help="Do not ask, with --unclean.")
@client_options
def elect(state: State, name: str, partitions: tuple[int, ...], unclean: bool, yes: bool) -> None:
    """Elect the preferred replica of each partition as leader, if it is in sync.

    With --unclean: partitions without a leader, as most of their replicas are lost, get a leader
    among the replicas that are left. Records that only the lost replicas have are lost too,
    acknowledged or not; this is recorded (`penstock cluster status`). Lost replicas that return
    copy the new log.
    """
    if unclean and not yes:
        click.confirm(
            f"discard records of {name} that only lost replicas have?", abort=True, err=True
        )
    with state.client() as client:
        chosen = _chosen(client.describe_topic(name), partitions)
        indexes = [item.index for item in chosen]
        outcomes = client.elect_leaders(name, indexes, unclean=unclean)
    rows = [
        {
            "topic": name,
            "partition": entry.index,
            "preferred": next(iter(entry.replicas), -1),
            "outcome": _outcome(outcomes.get(entry.index)),
        }
        for entry in chosen
    ]
    show(state, rows, ("partition", "preferred", "outcome"))


def _outcome(error: PenstockError | None) -> str:
    if error is None:
        return "elected"
    return "leads already" if error.code == "election_not_needed" else str(error)


@click.command("replicas")
@click.argument("names", nargs=-1)
@client_options
def replicas(state: State, names: tuple[str, ...]) -> None:
    """Show the replicas of topics (all by default), and pending changes."""
    with state.client() as client:
        found = client.metadata(names or None)
        ordered = client.reassignments()
        for name in names:
            client.describe_topic(name)
    rows = []
    for name, topic in sorted(found.topics.items()):
        for partition in topic.partitions:
            move = ordered.get((name, partition.index))
            rows.append(
                {
                    "topic": name,
                    "partition": partition.index,
                    "leader": partition.leader,
                    "replicas": list(partition.replicas),
                    "isr": list(partition.isr),
                    "adding": list(move.adding) if move else [],
                    "removing": list(move.removing) if move else [],
                }
            )
    columns = ("topic", "partition", "leader", "replicas", "isr", "adding", "removing")
    show(state, rows, columns, things="partitions")


def _chosen(topic: TopicMetadata, partitions: Sequence[int]) -> list[PartitionMetadata]:
    missing = [partition for partition in partitions if not 0 <= partition < len(topic.partitions)]
    if missing:
        raise click.UsageError(
            f"--partition {missing[0]}: {topic.name} has partitions 0 to"
            f" {len(topic.partitions) - 1}"
        )
    return [
        partition
        for partition in topic.partitions
        if not partitions or partition.index in partitions
    ]


def _broker_ids(words: str) -> list[int]:
    try:
        return [int(word) for word in words.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--replicas {words}: must be ids of brokers, as 1,2,3") from error
