"""Commands that change replicas: `penstock topic reassign|elect|replicas` and `penstock broker`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import click

from penstock.apps.client.session import (
    Number,
    State,
    client_options,
    counted,
    default_option,
    path_option,
    say,
    show,
)
from penstock.base.errors import InvalidError, PenstockError
from penstock.replication.placement import placed_again

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.protocol import (
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
MIN_INSYNC: Final = "min.insync.replicas"
WAIT_SECONDS: Final = 3600.0
"""Default time in which added replicas must have the logs."""


class Refused(InvalidError):
    """The cluster rejected a part of the request; the message has the first reasons."""

    code: ClassVar[str] = "invalid_request"


class Site(NamedTuple):
    """Broker that may hold replicas, with its rack."""

    broker_id: int
    rack: str | None


def sites(found: ClusterMetadata, excluded: Collection[int]) -> list[Site]:
    """Return the running brokers that may get replicas, without the excluded ones."""
    nodes = found.nodes.values()
    return [Site(node.node_id, node.rack) for node in nodes if node.node_id not in excluded]


def eligible(client: Client) -> list[Site]:
    """Return the running brokers that may get replicas."""
    return sites(client.metadata(()), client.unplaceable_brokers())


def again(
    brokers: Sequence[Site],
    topic: TopicMetadata,
    one: PartitionMetadata,
    ordered: Reassignment | None,
    factor: int | None = None,
) -> tuple[int, ...]:
    """Return new replicas of a partition on the given brokers, with as few changes as possible.

    Replicas that the pending reassignment `ordered` removes do not count as present. `factor` is
    the number of replicas; None keeps the present number.

    Raises:
        Refused: there are fewer brokers than replicas.
    """
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
    """Request reassignments of partitions to new replicas; None cancels a pending reassignment.

    A call has at most `ORDERED_AT_ONCE` partitions.

    Raises:
        Refused: the cluster rejected the request for a partition.
    """
    refused: list[str] = []
    partitions = list(target)
    for start in range(0, len(partitions), ORDERED_AT_ONCE):
        part = {
            partition: target[partition]
            for partition in partitions[start : start + ORDERED_AT_ONCE]
        }
        refused += map(str, client.reassign(part).values())
    _check_all_moved(refused, len(target), "rejected")


def check_factor(client: Client, factor: int) -> None:
    """Raise Refused if there are fewer brokers that may hold replicas than `factor`."""
    found = eligible(client)
    if factor > len(found):
        raise Refused(
            f"replication factor {factor} is above the number of eligible brokers, {len(found)}."
            " Start more brokers, or give a lower factor"
        )


def give_replicas(state: State, client: Client, topics: Sequence[str], factor: int) -> None:
    """Change the replication factor of topics; wait until the added replicas have the logs.

    A min.insync.replicas above the factor is lowered to the factor.

    Raises:
        Refused: the cluster rejected the request for a partition.
        TimedOut: replicas are missing after `WAIT_SECONDS`; the brokers continue.
    """
    moved = {
        topic: entries
        for topic in map(client.describe_topic, topics)
        if (entries := [entry for entry in topic.partitions if len(entry.replicas) != factor])
    }
    if not moved:
        return
    state.notice(f"penstock: changing the replicas of {counted(len(moved), 'topic')}")
    brokers = eligible(client)
    target: dict[TopicAndPartition, Sequence[int] | None] = {}
    for topic, entries in moved.items():
        configs = {item.name: item.value for item in client.describe_configs("topic", topic.name)}
        if int(configs[MIN_INSYNC] or 1) > factor:
            client.alter_configs("topic", topic.name, {MIN_INSYNC: str(factor)})
            state.notice(f"penstock: {topic.name}: {MIN_INSYNC} = {factor}, the number of replicas")
        for entry in entries:
            target[topic.name, entry.index] = again(brokers, topic, entry, None, factor)
    order(client, target)
    client.await_reassigned(target, WAIT_SECONDS, progress(state))


def _check_all_moved(refused: Sequence[str], count: int, what: str) -> None:
    """Raise Refused if there are reasons of partitions; names up to `TOLD_MAX` of them."""
    if refused:
        more = len(refused) - TOLD_MAX
        told = "; ".join(refused[:TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")
        raise Refused(f"{len(refused)} of {counted(count, 'partition')} {what}: {told}")


def waiting_options(command: Any) -> Any:
    command = click.option(
        "--no-wait",
        is_flag=True,
        help="Return at once, without waiting until the moves are complete.",
    )(command)
    return default_option(
        "--timeout limit",
        WAIT_SECONDS,
        "Seconds to wait until the moves are complete; pending moves continue afterwards.",
        Number(0),
    )(command)


def progress(state: State) -> Callable[[int, int], None]:
    """Return a function that reports the number of moved partitions on stderr."""
    return lambda done, total: state.notice(f"{done} of {counted(total, 'partition')} moved")


@click.command("reassign")
@click.argument("name", required=False)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=int,
    multiple=True,
    help="Partition of the topic. May be repeated. Default: all partitions.",
)
@click.option(
    "--replicas",
    "brokers",
    metavar="ID,…",
    help="Ids of the brokers that are to hold the replicas; the first is the preferred leader.",
)
@click.option(
    "--factor",
    type=click.IntRange(min=1),
    help="New replication factor; as few replicas as possible are added or removed.",
)
@click.option("--cancel", is_flag=True, help="Cancel the pending reassignments.")
@path_option(
    "--file plan",
    "JSON file of partitions and their new replicas, instead of NAME and the options above.",
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

    Added brokers first copy the log and join the in-sync replicas; then removed replicas are
    deleted. Acknowledged records are on a quorum of replicas at every moment.

    The file of --file has the form {"version": 1, "partitions": [{"topic": "orders", "partition":
    0, "replicas": [1, 2, 3]}]}. `penstock cluster advise` and Kafka's kafka-reassign-partitions.sh
    write such files.
    """
    ways = (brokers is not None) + (factor is not None) + cancel
    if plan is not None:
        if name is not None or partitions or ways:
            raise click.UsageError(
                "--file contains topics, partitions and replicas: omit NAME, --partition,"
                " --replicas, --factor and --cancel"
            )
        with state.client() as client:
            _carry_out(state, client, read_plan(plan), no_wait, limit)
        return
    if name is None or ways != 1:
        raise click.UsageError("give --file, or a topic and one of --replicas, --factor, --cancel")
    with state.client() as client:
        ordered, brokers_left = client.reassignments(), eligible(client)
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
    """Return replicas by topic and partition from a JSON file in the form of Kafka's reassignments.

    Raises:
        click.UsageError: the file cannot be read, has another form, or names a partition twice.
    """
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
    "-p",
    "--partition",
    "partitions",
    type=int,
    multiple=True,
    help="Partition of the topic. May be repeated. Default: all partitions.",
)
@click.option(
    "--unclean",
    is_flag=True,
    help="For partitions without a leader, elect a remaining replica even if records are lost.",
)
@click.option("--yes", is_flag=True, help="With --unclean: do not ask for confirmation.")
@client_options
def elect(state: State, name: str, partitions: tuple[int, ...], unclean: bool, yes: bool) -> None:
    """Elect the preferred replica of each partition as leader, if it is in sync.

    With --unclean, a partition that has no leader because most of its replicas are lost gets a
    leader among the remaining ones. Records that only the lost replicas have are then lost, even if
    they were acknowledged; `penstock cluster status` lists such elections. A lost replica that
    returns copies the new log.
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
    """Show the replicas of topics (all by default), and pending reassignments."""
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
    show(state, rows, things="partitions")


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


@click.group("broker", short_help="Drain and remove brokers.")
def broker() -> None:
    """Drain brokers, and remove them permanently."""


@broker.command("drain")
@click.argument("broker_id", type=click.IntRange(min=0))
@click.option("--dry-run", is_flag=True, help="Only show which replicas would move where.")
@click.option(
    "--undo",
    is_flag=True,
    help="Allow new replicas on the broker again; replicas that have moved do not return.",
)
@waiting_options
@client_options
def drain(
    state: State, broker_id: int, dry_run: bool, undo: bool, no_wait: bool, limit: float
) -> None:
    """Move all replicas of a broker to other brokers, and exclude it from new topics.

    Each replica moves to a broker that has no replica of the partition yet, in another rack if
    possible. Brokers are chosen by weight, as for new topics. The drained broker may be stopped.
    From now on it gets no replicas of new topics (placement.excluded.brokers).
    """
    if undo and dry_run:
        raise click.UsageError("give one of --dry-run and --undo")
    with state.client() as client:
        _check_known(client, broker_id)
        if undo:
            client.exclude_broker(broker_id, False)
            say(state, f"broker {broker_id} may get new replicas", broker=broker_id)
            return
        changed = not dry_run and broker_id not in client.excluded_brokers()
        if changed:
            client.exclude_broker(broker_id)
        try:
            target = _away(client, broker_id)
        except Refused:
            if changed:
                client.exclude_broker(broker_id, False)
            raise
        if not dry_run:
            order(client, target)
            if not no_wait:
                client.await_reassigned(target, limit, progress(state))
    if dry_run:
        rows = [
            {"topic": name, "partition": index, "replicas": list(replicas)}
            for (name, index), replicas in target.items()
        ]
        show(state, rows, things="replicas to move")
        return
    done = "ordered to move away" if no_wait else "moved away"
    text = f"{counted(len(target), 'replica')} of broker {broker_id} {done}"
    say(state, text, broker=broker_id, partitions=len(target))


def _check_known(client: Client, broker_id: int) -> None:
    """Reject an id that no registered broker, no excluded broker and no replica has.

    Raises:
        UnknownBroker: the id is unknown; names the known ones.
    """
    from penstock.client.errors import UnknownBroker

    found = client.metadata()
    partitions = [part for topic in found.topics.values() for part in topic.partitions]
    known = {*found.nodes, *client.excluded_brokers()}.union(
        *(part.replicas for part in partitions)
    )
    if broker_id not in known:
        names = ", ".join(map(str, sorted(known)))
        raise UnknownBroker(f"unknown broker {broker_id}; the cluster has brokers {names}")


def _away(client: Client, broker_id: int) -> dict[TopicAndPartition, Sequence[int]]:
    """Return new replicas for all partitions with a replica on a broker, to drain that broker.

    Diskless partitions, and those that a pending reassignment already moves away, are left out.

    Raises:
        Refused: some partitions cannot be moved; names them.
    """
    found = client.metadata()
    ordered = client.reassignments()
    others = sites(found, {broker_id, *client.unplaceable_brokers()})
    target: dict[TopicAndPartition, Sequence[int]] = {}
    refused: list[str] = []
    for name, topic in sorted(found.topics.items()):
        held = [partition for partition in topic.partitions if broker_id in partition.replicas]
        leaving = [
            entry for entry in held if not _leaves(ordered.get((name, entry.index)), broker_id)
        ]
        if not leaving:
            continue
        configs = {config.name: config.value for config in client.describe_configs("topic", name)}
        if configs.get(DISKLESS) != "true":
            for item in leaving:
                where = name, item.index
                try:
                    target[where] = again(others, topic, item, ordered.get(where))
                except Refused as error:
                    refused.append(str(error))
    _check_all_moved(refused, len(target) + len(refused), "cannot be moved")
    return target


def _leaves(move: object, broker_id: int) -> bool:
    return broker_id in getattr(move, "removing", ())


@broker.command("remove")
@click.argument("broker_id", type=click.IntRange(min=0))
@client_options
def remove(state: State, broker_id: int) -> None:
    """Remove a broker from the cluster.

    It must be stopped and hold no replicas; `penstock broker drain` moves them away.
    """
    with state.client() as client:
        client.unregister_broker(broker_id)
        client.exclude_broker(broker_id, False)
    say(state, f"broker {broker_id} is removed", broker=broker_id)
