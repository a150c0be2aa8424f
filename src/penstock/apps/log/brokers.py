"""`penstock broker drain|remove`: remove a broker permanently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.apps.log.replicas import (
    DISKLESS,
    again,
    order,
    progress,
    sites,
    waiting_options,
)
from penstock.apps.session import State, client_options, counted, say, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client import Client
    from penstock.client.metadata import TopicAndPartition


@click.group("broker", short_help="Drain and remove brokers.")
def broker() -> None:
    """Remove brokers permanently."""


@broker.command("drain")
@click.argument("broker_id", type=click.IntRange(min=0))
@click.option("--dry-run", is_flag=True, help="Show what would move where.")
@click.option("--undo", is_flag=True, help="Allow it new replicas again; nothing moves back.")
@waiting_options
@client_options
def drain(
    state: State, broker_id: int, dry_run: bool, undo: bool, no_wait: bool, limit: float
) -> None:
    """Move all replicas of a broker to brokers that have none of the partition yet.

    The targets follow the weights of new topics, in other racks where possible. The broker may be
    stopped. From now on it gets no replicas of new topics (placement.excluded.brokers).
    """
    if undo and dry_run:
        raise click.UsageError("give one of --dry-run and --undo")
    with state.client() as client:
        _check_known(client, broker_id)
        if undo:
            client.exclude_broker(broker_id, False)
            say(state, f"broker {broker_id} may get new replicas", broker=broker_id)
            return
        if not dry_run:
            client.exclude_broker(broker_id)
        target = _away(client, broker_id)
        if not dry_run:
            order(client, target)
            if not no_wait:
                client.await_reassigned(target, limit, progress(state))
    if dry_run:
        rows = [
            {"topic": name, "partition": index, "replicas": list(replicas)}
            for (name, index), replicas in target.items()
        ]
        show(state, rows, ("topic", "partition", "replicas"), things="replicas to move")
        return
    done = "ordered to move away" if no_wait else "moved away"
    text = f"{counted(len(target), 'replica')} of broker {broker_id} {done}"
    say(state, text, broker=broker_id, partitions=len(target))


def _check_known(client: Client, broker_id: int) -> None:
    """Raise UnknownBroker for an id that is not registered, excluded, or assigned replicas."""
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
    """The replicas that partitions are to have without a broker."""
    found = client.metadata()
    ordered = client.reassignments()
    others = sites(found, {broker_id, *client.unplaceable_brokers()})
    target: dict[TopicAndPartition, Sequence[int]] = {}
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
                target[name, item.index] = again(
                    others, topic, item, ordered.get((name, item.index))
                )
    return target


def _leaves(move: object, broker_id: int) -> bool:
    return broker_id in getattr(move, "removing", ())


@broker.command("remove")
@click.argument("broker_id", type=click.IntRange(min=0))
@client_options
def remove(state: State, broker_id: int) -> None:
    """Remove a broker from the cluster: it must be stopped and hold no replicas."""
    with state.client() as client:
        client.unregister_broker(broker_id)
        client.exclude_broker(broker_id, False)
    say(state, f"broker {broker_id} is removed", broker=broker_id)
