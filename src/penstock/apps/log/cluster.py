"""`penstock cluster status|advise`: leaders, replicas, partition problems, suggested moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

import click

from penstock.apps.log.replicas import DISKLESS, sites, write_plan
from penstock.apps.session import Number, State, client_options, counted, show

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.metadata import ClusterMetadata, PartitionMetadata, TopicAndPartition
    from penstock.client.replicas import BrokerState, Reassignment
    from penstock.replication.advice import Held, Move

READY: Final = "ready"
_MINIMUM: Final = "min.insync.replicas"
RATE_MB_S: Final = 50.0
"""What a broker is taken to copy: half of what `benchmarks/cluster_failover.py` measured."""


@click.group("cluster", short_help="Show brokers and partitions, and suggest moves.")
def cluster() -> None:
    """Show brokers and partitions, and suggest moves."""


@cluster.command("status")
@client_options
def status(state: State) -> None:
    """Show brokers, and partitions without a leader or with replicas out of sync.

    Asks every registered broker whether it can serve, and exits with status 1 if one cannot; the
    number of its replicas that are out of sync is unknown then. A partition is `stopped` if it has
    no leader, `refusing` if fewer replicas are in sync than must acknowledge a record, and `behind`
    if a replica is out of sync. Records that unclean elections discarded are listed if all brokers
    can serve and an admin interface is reachable.
    """
    from penstock.apps.doctor.brokers import known_admins
    from penstock.apps.doctor.losses import described, given_up
    from penstock.client.replicas import SHORT_CALLS, outage

    with state.client(**SHORT_CALLS) as client:
        found = client.metadata()
        lacking = list(troubled(client, found))
        states = client.broker_states()
    brokers = _brokers(found, states)
    lost = None if outage(states) else given_up(state, known_admins(state, states))
    facts = {
        "cluster_id": found.cluster_id,
        "brokers": brokers,
        "partitions": lacking,
        "given_up": lost,
    }
    count = sum(len(topic.partitions) for topic in found.topics.values())
    ready = sum(row["state"] == READY for row in brokers)
    title = (
        f"cluster {found.cluster_id}: {counted(len(brokers), 'broker')}, {ready} ready,"
        f" {counted(count, 'partition')}"
    )
    columns = ("broker", "address", "state", "rack", "roles", "leads", "replicas=copies", "behind")
    shown = [row | {"behind": "unknown"} if row["behind"] is None else row for row in brokers]
    show(state, shown, columns, title=title, all_as_json=facts)
    if not state.json and lacking:
        show(state, lacking, ("topic", "partition", "state", "leader", "replicas", "isr", "needed"))
    if not state.json:
        for loss in lost or ():
            click.echo(f"unclean election: {described(loss)}")
    failed = [row for row in brokers if row["cause"]]
    for row in failed:
        click.echo(f"penstock: broker {row['broker']}: {row['cause']}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


@cluster.command("advise")
@click.option(
    "--moves",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Most partitions to change.",
)
@click.option(
    "--rate",
    type=Number(0, min_open=True),
    default=RATE_MB_S,
    show_default=True,
    help="MB/s that a broker copies, for the estimate of time.",
)
@click.option(
    "--write", "file", type=click.File("w"), help="Write a file for penstock topic reassign --file."
)
@client_options
def advise(state: State, moves: int, rate: float, file: IO[str] | None) -> None:
    """Suggest moves that balance bytes and leaders over brokers, with their cost.

    Drained brokers (`penstock broker drain`) and brokers without the role end up without replicas,
    replicas of a partition are spread over all racks, each broker's bytes are within 10 % of the
    mean, and preferred leaders differ by one at most. `leads` counts current leaders, as in
    `penstock cluster status`; `preferred` counts preferred ones, which `penstock topic elect`
    restores at once. A move of a leader alone copies nothing. Nothing is changed. Diskless topics
    and moving partitions are omitted.
    """
    from penstock.replication import advice

    with state.client() as client:
        found = client.metadata()
        held = list(_held(client, found))
        excluded = client.unplaceable_brokers()
    leads = _leads(found)
    made = advice.advise(sites(found, ()), held, excluded=excluded, moves_max=moves)
    rows = [_move(move, rate) for move in made.moves]
    brokers = [
        {
            "broker": old.broker_id,
            "bytes": old.size_bytes,
            "bytes_after": new.size_bytes,
            "leads": leads[old.broker_id],
            "preferred": old.leads,
            "preferred_after": new.leads,
            "to_go": old.broker_id in excluded,
        }
        for old, new in zip(made.before, made.after, strict=True)
    ]
    if file is not None:
        write_plan(file, {move.place: move.after for move in made.moves})
    copied = sum(move.copied_bytes for move in made.moves)
    seconds = round(made.busiest_bytes / (rate * 1e6), 1)
    facts = {
        "brokers": brokers,
        "moves": rows,
        "copied_bytes": copied,
        "seconds": seconds,
        "unfinished": made.unfinished,
    }
    more = "; there would be more after these" if made.unfinished else ""
    title = (
        f"estimate: {counted(len(rows), 'move')}, {copied} bytes copied, about {seconds} s at"
        f" {rate:g} MB/s{more}"
    )
    columns = (
        "broker", "bytes", "bytes_after", "leads", "preferred", "preferred_after", "leaving=to_go",
    )  # fmt: skip
    show(state, brokers, columns, title=title, all_as_json=facts)
    if not state.json and rows:
        show(
            state, rows, ("topic", "partition", "replicas", "to", "why", "copied_bytes", "seconds")
        )


def _move(move: Move, rate: float) -> dict[str, Any]:
    """Return a move as a row, with the time to copy at `rate` MB/s."""
    return {
        "topic": move.place[0],
        "partition": move.place[1],
        "replicas": list(move.before),
        "to": list(move.after),
        "why": ", ".join(move.why),
        "copied_bytes": move.copied_bytes,
        "seconds": round(move.copied_bytes / (rate * 1e6), 1),
    }


def _held(client: Client, found: ClusterMetadata) -> Iterator[Held]:
    """Yield partitions on brokers' disks that are not moving."""
    from penstock.replication.advice import Held

    ordered, sizes = client.reassignments(), client.partition_sizes()
    for name, topic in sorted(found.topics.items()):
        configs = {config.name: config.value for config in client.describe_configs("topic", name)}
        if configs.get(DISKLESS) == "true":
            continue
        for partition in topic.partitions:
            place = name, partition.index
            if place not in ordered:
                yield Held(
                    place=place, replicas=partition.replicas, size_bytes=max(0, sizes.get(place, 0))
                )


def _leads(found: ClusterMetadata) -> Counter[int]:
    """Count the partitions that each broker leads."""
    return Counter(part.leader for topic in found.topics.values() for part in topic.partitions)


def _brokers(found: ClusterMetadata, states: Mapping[int, BrokerState]) -> list[dict[str, Any]]:
    """Return the registered brokers, and others that are assigned replicas."""
    partitions = [entry for topic in found.topics.values() for entry in topic.partitions]
    leads = _leads(found)
    copies = Counter(replica for partition in partitions for replica in partition.replicas)
    behind = Counter(
        replica for partition in partitions for replica in {*partition.replicas} - {*partition.isr}
    )
    rows = []
    for broker_id in sorted({*found.nodes, *copies}):
        node, asked = found.nodes.get(broker_id), states.get(broker_id)
        state, cause = _state(asked)
        rows.append(
            {
                "broker": broker_id,
                "address": "gone" if node is None else node.address,
                "state": state,
                "cause": cause,
                "rack": None if node is None else node.rack,
                "roles": list(asked.roles) if asked is not None and asked.roles else None,
                "leads": leads[broker_id],
                "copies": copies[broker_id],
                "behind": None if cause else behind[broker_id],
            }
        )
    return rows


def _state(asked: BrokerState | None) -> tuple[str, str]:
    """Return a broker's state, and the cause if it cannot serve."""
    from penstock.client.errors import BrokerRefused, ConnectionRefused, TimedOut

    if asked is None:
        return "gone", ""
    if asked.unavailable:
        return "not ready", asked.unavailable
    if asked.error is None:
        return READY, ""
    if isinstance(asked.error, BrokerRefused):
        return "unknown", ""
    if isinstance(asked.error, ConnectionRefused):
        return "not running", str(asked.error)
    state = "no answer" if isinstance(asked.error, TimedOut) else "unreachable"
    return state, str(asked.error)


def troubled(client: Client, found: ClusterMetadata) -> Iterator[dict[str, Any]]:
    """Yield partitions that lack a leader or replicas; `needed` is the required acknowledgements.

    Adding replicas do not count, and are named if they are missing.
    """
    ordered: dict[TopicAndPartition, Reassignment] | None = None
    for name, topic in sorted(found.topics.items()):
        if not any(
            [_lacks(partition, partition.replicas, found) for partition in topic.partitions]
        ):
            continue
        ordered = client.reassignments() if ordered is None else ordered
        moves = {
            partition.index: ordered.get((name, partition.index)) for partition in topic.partitions
        }
        adding = {index: move.adding for index, move in moves.items() if move is not None}
        wanted = {
            partition.index: [
                broker_id
                for broker_id in partition.replicas
                if broker_id not in adding.get(partition.index, ()) or broker_id not in found.nodes
            ]
            for partition in topic.partitions
        }
        lacking = [
            partition
            for partition in topic.partitions
            if _lacks(partition, wanted[partition.index], found)
        ]
        if not lacking:
            continue
        configs = {config.name: config.value for config in client.describe_configs("topic", name)}
        if configs.get(DISKLESS) == "true":
            continue
        minimum = int(configs.get(_MINIMUM) or 1)
        for entry in lacking:
            count = len(entry.replicas) - len(adding.get(entry.index, ()))
            needed = max(minimum, count // 2 + 1) if count > 1 else minimum
            state = "refusing" if len(entry.isr) < needed else "behind"
            yield {
                "topic": name,
                "partition": entry.index,
                "state": state if entry.leader in found.nodes else "stopped",
                "leader": entry.leader,
                "replicas": wanted[entry.index],
                "isr": list(entry.isr),
                "needed": needed,
            }


def _lacks(one: PartitionMetadata, wanted: Sequence[int], found: ClusterMetadata) -> bool:
    return one.leader not in found.nodes or set(one.isr) != {*wanted}
