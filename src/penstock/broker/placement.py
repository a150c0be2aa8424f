"""Where the replicas of new partitions go: pure functions over the brokers that are known.

Brokers are laid out in one ring that alternates between racks. Partition `n` of the cluster (the
count runs on over topics, so that leaders stay even) starts at position `n` of the ring; its
followers are the next brokers, one of every rack first. Each full turn of the ring shifts the
followers by one, so that the load of a broker that fails spreads over all others.

Source: the striped placement of Kafka's `StripedReplicaPlacer` (KIP-36 for racks), without its
random shuffle: the same image gives the same placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from penstock.broker.admin_errors import InvalidReplicaAssignment, InvalidReplicationFactor
from penstock.control import Broker

Replicas = tuple[int, ...]


def place(
    brokers: Sequence[Broker], *, partition_count: int, replication_factor: int, start: int
) -> tuple[Replicas, ...]:
    """Choose the replicas of `partition_count` new partitions, the leader first in each.

    Raises:
        InvalidReplicationFactor: not positive, or above the number of brokers.
    """
    if replication_factor < 1:
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: must be at least 1, or -1 for the default"
        )
    if replication_factor > len(brokers):
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: only {len(brokers)} broker(s) are registered"
        )
    ring = _ring(brokers)
    return tuple(
        _replicas(ring, position=start + index, count=replication_factor)
        for index in range(partition_count)
    )


def check_assignment(
    replicas: Sequence[int],
    brokers: Sequence[Broker],
    *,
    partition: int,
    replication_factor: int | None,
) -> Replicas:
    """Return a manual assignment if these brokers can hold it.

    Raises:
        InvalidReplicaAssignment: empty, an unknown or repeated broker, or another number of
            replicas than `replication_factor`.
    """
    known = {broker.broker_id for broker in brokers}
    if not replicas:
        raise InvalidReplicaAssignment(f"partition {partition}: the replica list is empty")
    for broker_id in replicas:
        if broker_id not in known:
            raise InvalidReplicaAssignment(
                f"partition {partition}: broker {broker_id} is not registered"
            )
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(
            f"partition {partition}: a broker appears more than once in {list(replicas)}"
        )
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignment(
            f"partition {partition}: has {len(replicas)} replica(s), "
            f"but the partitions before it have {replication_factor}"
        )
    return tuple(replicas)


def _ring(brokers: Sequence[Broker]) -> list[Broker]:
    racks: dict[str, list[Broker]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.broker_id):
        racks.setdefault(broker.rack or "", []).append(broker)
    stripes = zip_longest(*(racks[name] for name in sorted(racks)))
    return [broker for stripe in stripes for broker in stripe if broker is not None]


def _replicas(ring: list[Broker], *, position: int, count: int) -> Replicas:
    size = len(ring)
    leader = ring[position % size]
    others = [ring[(position + step) % size] for step in range(1, size)]
    if others:
        shift = position // size % len(others)
        others = others[shift:] + others[:shift]
    chosen = [leader]
    racks = {leader.rack or ""}
    for broker in others:
        if len(chosen) < count and (broker.rack or "") not in racks:
            racks.add(broker.rack or "")
            chosen.append(broker)
    for broker in others:
        if len(chosen) < count and broker not in chosen:
            chosen.append(broker)
    return tuple(broker.broker_id for broker in chosen)
