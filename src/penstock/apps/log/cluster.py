"""Command group `penstock cluster`: state of brokers and partitions, and advice on moving
replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import (
    Number,
    State,
    client_options,
    counted,
    default_option,
    show,
)
from penstock.apps.log.replicas import DISKLESS, sites, write_plan

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.protocol import ClusterMetadata, PartitionMetadata, TopicAndPartition
    from penstock.client.replicas import BrokerState, Reassignment
    from penstock.replication.advice import Held, Move

READY: Final = "ready"
_MINIMUM: Final = "min.insync.replicas"
RATE_MB_S: Final = 50.0
"""Assumed rate at which a broker copies replicas: half of what `benchmarks/cluster_failover.py`
measured.
"""


@click.group("cluster", short_help="Show brokers and partitions, and suggest replica moves.")
def cluster() -> None:
    """Show brokers and partitions, and suggest moves of replicas."""


@cluster.command("status")
@client_options
def status(state: State) -> None:
    """Show brokers, and partitions without a leader or with replicas out of sync.

    Every registered broker is asked whether it can serve, and the exit status is 1 if one cannot.
    The number of its replicas that are out of sync is then shown as unknown.

    A partition is `stopped` if it has no leader. It is `refusing` if fewer replicas are in sync
    than must acknowledge a record, and `behind` if a replica is out of sync. Unclean elections,
    which may have discarded records, are listed if all brokers can serve and an admin interface is
    reachable.
    """
    from penstock.apps.checks.brokers import known_admins
    from penstock.apps.checks.interfaces import described, given_up
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
        show(state, lacking)
    if not state.json:
        for loss in lost or ():
            click.echo(f"unclean election: {described(loss)}")
    failed = [row for row in brokers if row["cause"]]
    for row in failed:
        click.echo(f"penstock: broker {row['broker']}: {row['cause']}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


@cluster.command("advise")
@default_option(
    "--moves", 100, "Largest number of partitions to change.", click.IntRange(1, 10_000)
)
@default_option(
    "--rate", RATE_MB_S,
    "Rate in MB/s at which a broker copies replicas, for the estimate of time.",
    Number(0, min_open=True),
)  # fmt: skip
@click.option(
    "--write",
    "file",
    type=click.File("w"),
    help="Write the moves to this file, for penstock topic reassign --file.",
)
@client_options
def advise(state: State, moves: int, rate: float, file: IO[str] | None) -> None:
    """Suggest moves of replicas that balance bytes and leaders over brokers, with their cost.

    Nothing is changed. After the moves, drained brokers (`penstock broker drain`), and brokers
    whose broker.roles exclude replicas, hold none. The replicas of a partition are spread over all
    racks. Each broker's bytes are within 10 % of the mean, and the numbers of preferred leaders
    differ by one at most.

    The column `leads` counts current leaders, as in `penstock cluster status`. The column
    `preferred` counts preferred leaders, which `penstock topic elect` makes the current ones at
    once. A move of a leader alone copies nothing. Diskless topics, and partitions that are being
    moved, are left out.
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
    more = "; more moves would follow" if made.unfinished else ""
    title = (
        f"estimate: {counted(len(rows), 'move')}, {copied} bytes copied, about {seconds} s at"
        f" {rate:g} MB/s{more}"
    )
    columns = (
        "broker", "bytes", "bytes_after", "leads", "preferred", "preferred_after", "leaving=to_go",
    )  # fmt: skip
    show(state, brokers, columns, title=title, all_as_json=facts)
    if not state.json and rows:
        show(state, rows)


def _move(move: Move, rate: float) -> dict[str, Any]:
    """Return the output row of an advised move, with the seconds for copying at `rate` MB/s."""
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
    """Yield the partitions with replicas on disks, from which moves are advised.

    Partitions that are being moved are left out.
    """
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
    """Return the number of partitions that each broker leads."""
    return Counter(part.leader for topic in found.topics.values() for part in topic.partitions)


def _brokers(found: ClusterMetadata, states: Mapping[int, BrokerState]) -> list[dict[str, Any]]:
    """Return a row for each registered broker, and for each other broker with assigned replicas."""
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
    """Return a broker's state in words, and the cause if it cannot serve."""
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
    """Yield a row for each partition without a leader, or with replicas out of sync.

    `needed` is the number of replicas that must acknowledge a record. Replicas that a reassignment
    is adding are ignored, unless their broker is not registered.
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
