"""`penstock cluster status`: brokers, what they lead and copy, and what partitions lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.session import State, client_options, show

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.metadata import ClusterMetadata, PartitionMetadata
    from penstock.client.replicas import Place, Reassignment

_MINIMUM: Final = "min.insync.replicas"
_DISKLESS: Final = "diskless.enable"


@click.group("cluster", short_help="Brokers and the state of their partitions.")
def cluster() -> None:
    """Brokers and the state of their partitions."""


@cluster.command("status")
@client_options
def status(state: State) -> None:
    """Show brokers, and partitions without a leader or with copies that are behind.

    A partition is `stopped` when it has no leader, `refusing` when fewer copies are in sync than
    must acknowledge, and `behind` when some copy is not in sync. Below is what unclean elections
    gave up, where the admin interface of a broker can be asked from here.
    """
    with state.client() as client:
        found = client.metadata()
        lacking = list(troubled(client, found))
    from penstock.apps.doctor.losses import described, given_up

    brokers, lost = _brokers(found), given_up(state, found)
    facts = {
        "cluster_id": found.cluster_id,
        "brokers": brokers,
        "partitions": lacking,
        "given_up": lost,
    }
    count = sum(len(topic.partitions) for topic in found.topics.values())
    title = f"cluster {found.cluster_id}: {len(brokers)} brokers, {count} partitions"
    columns = ("broker", "address", "rack", "leads", "copies", "behind")
    show(state, brokers, columns, title=title, all_as_json=facts)
    if not state.json and lacking:
        show(state, lacking, ("topic", "partition", "state", "leader", "replicas", "isr", "needed"))
    if not state.json:
        for loss in lost or ():
            click.echo(f"given up: {described(loss)}")


def _brokers(found: ClusterMetadata) -> list[dict[str, Any]]:
    """Those that are registered, and those that are not and should have copies."""
    partitions = [one for topic in found.topics.values() for one in topic.partitions]
    leads = Counter(one.leader for one in partitions)
    copies = Counter(replica for one in partitions for replica in one.replicas)
    behind = Counter(replica for one in partitions for replica in {*one.replicas} - {*one.isr})
    rows = []
    for broker_id in sorted({*found.nodes, *copies}):
        node = found.nodes.get(broker_id)
        rows.append(
            {
                "broker": broker_id,
                "address": "gone" if node is None else node.address,
                "rack": None if node is None else node.rack,
                "leads": leads[broker_id],
                "copies": copies[broker_id],
                "behind": behind[broker_id],
            }
        )
    return rows


def troubled(client: Client, found: ClusterMetadata) -> Iterator[dict[str, Any]]:
    """Partitions that lack a leader or copies; `needed` is how many copies must acknowledge.

    Brokers that are to become replicas do not count, and are named if they are not there.
    """
    ordered: dict[Place, Reassignment] | None = None
    for name, topic in sorted(found.topics.items()):
        if not any([_lacks(one, one.replicas, found) for one in topic.partitions]):
            continue
        ordered = client.reassignments() if ordered is None else ordered
        moves = {one.index: ordered.get((name, one.index)) for one in topic.partitions}
        adding = {index: move.adding for index, move in moves.items() if move is not None}
        wanted = {
            one.index: [
                broker_id
                for broker_id in one.replicas
                if broker_id not in adding.get(one.index, ()) or broker_id not in found.nodes
            ]
            for one in topic.partitions
        }
        lacking = [one for one in topic.partitions if _lacks(one, wanted[one.index], found)]
        if not lacking:
            continue
        configs = {one.name: one.value for one in client.describe_configs("topic", name)}
        if configs.get(_DISKLESS) == "true":
            continue
        minimum = int(configs.get(_MINIMUM) or 1)
        for one in lacking:
            count = len(one.replicas) - len(adding.get(one.index, ()))
            needed = max(minimum, count // 2 + 1) if count > 1 else minimum
            state = "refusing" if len(one.isr) < needed else "behind"
            yield {
                "topic": name,
                "partition": one.index,
                "state": state if one.leader in found.nodes else "stopped",
                "leader": one.leader,
                "replicas": wanted[one.index],
                "isr": list(one.isr),
                "needed": needed,
            }


def _lacks(one: PartitionMetadata, wanted: Sequence[int], found: ClusterMetadata) -> bool:
    return one.leader not in found.nodes or set(one.isr) != {*wanted}
