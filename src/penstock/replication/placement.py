"""Placement of partitions on brokers by highest random weight, and the order of their leaders.

Each pair of a partition and a broker has a weight, a hash of the two. The brokers of a rack are
sorted by weight; the order takes the heaviest of every rack first, then the second of every rack,
and so on. The first n brokers hold the partition (`succession`). Replicas are therefore in as many
racks as exist, every broker computes the same order, and a broker that joins or leaves changes at
most one replica of a partition.

If the first replica always led, leaders would be balanced over many partitions, but not over the
few partitions of one topic. `place` therefore chooses as leader the replica that leads the fewest
partitions of the topic. A partition with one replica is never placed again, because no other broker
has its records. `place` puts it on the broker that leads the fewest, so the partitions of such a
topic are spread evenly.

Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998); KIP-36
for racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final, Protocol
from uuid import UUID
from zlib import crc32

from penstock.base.errors import BugError

Replicas = tuple[int, ...]
_MASK: Final = 2**64 - 1


def partition_hash(topic_id: UUID, partition: int) -> int:
    """Return a 64-bit hash of a partition for `weight`."""
    return crc32(topic_id.bytes) << 32 | (partition * 0x9E3779B1 & 0xFFFFFFFF)


@lru_cache(maxsize=4096)
def broker_hash(broker_id: int) -> int:
    """Return a 64-bit hash of a broker for `weight`."""
    return _mixed(broker_id + 1)


def weight(partition: int, broker: int) -> int:
    """Return the 64-bit weight of a partition's and a broker's hash.

    No two brokers have the same weight for a partition.
    """
    return _mixed(partition ^ broker)


class Site(Protocol):
    """Broker that may hold partitions. All brokers without a rack count as one rack."""

    @property
    def broker_id(self) -> int: ...

    @property
    def rack(self) -> str | None: ...


def succession(brokers: Iterable[Site], topic_id: UUID, partition: int) -> Replicas:
    """Return all brokers in the order in which they should hold a partition.

    A partition with n replicas is placed on the first n. Brokers without a rack form one rack.
    """
    key = partition_hash(topic_id, partition)
    weighed = [
        (weight(key, broker_hash(broker.broker_id)), broker.rack or "", broker.broker_id)
        for broker in brokers
    ]
    weighed.sort(reverse=True)
    heavier: Counter[str] = Counter()
    ranks = []
    for place_in_all, (_, rack, broker_id) in enumerate(weighed):
        ranks.append((heavier[rack], place_in_all, broker_id))
        heavier[rack] += 1
    ranks.sort()
    return tuple([broker_id for _, _, broker_id in ranks])


def place(
    brokers: Collection[Site],
    topic_id: UUID,
    *,
    partitions: Iterable[int],
    replication_factor: int,
    leaders: Iterable[int] = (),
) -> tuple[Replicas, ...]:
    """Choose the replicas of new partitions of a topic; the first replica of each is its leader.

    `leaders` are the leaders of the topic's existing partitions.

    Raises:
        BugError: `replication_factor` is not from 1 to the number of brokers.
    """
    if not 1 <= replication_factor <= len(brokers):
        raise BugError(f"{replication_factor} replicas are placed on {len(brokers)} brokers")
    led = Counter(leaders)
    placed = []
    for partition in partitions:
        order = succession(brokers, topic_id, partition)
        replicas = order[:replication_factor]
        leader = min(replicas if replication_factor > 1 else order, key=led.__getitem__)
        led[leader] += 1
        followers = [replica for replica in replicas if replica != leader]
        placed.append((leader, *followers[: replication_factor - 1]))
    return tuple(placed)


def placed_again(
    brokers: Collection[Site],
    topic_id: UUID,
    partition: int,
    *,
    replicas: Sequence[int],
    replication_factor: int,
) -> Replicas:
    """Return `replication_factor` replicas of a partition; keep as many of `replicas` as possible.

    A replica whose broker is not in `brokers` is replaced at the same position. If there are too
    many replicas, the first ones stay. New replicas are in racks without another replica of the
    partition, if possible.

    Raises:
        BugError: `replication_factor` is not from 1 to the number of brokers.
    """
    if not 1 <= replication_factor <= len(brokers):
        raise BugError(f"{replication_factor} replicas are placed on {len(brokers)} brokers")
    racks = {broker.broker_id: broker.rack or "" for broker in brokers}
    order = succession(brokers, topic_id, partition)
    made = list(replicas[:replication_factor])
    made += [-1] * (replication_factor - len(made))
    for place_in_all, broker_id in enumerate(made):
        if broker_id not in racks:
            used = {racks[broker] for broker in made if broker in racks}
            left = [broker for broker in order if broker not in made]
            made[place_in_all] = next(
                (broker for broker in left if racks[broker] not in used), left[0]
            )
    return tuple(made)


def _mixed(value: int) -> int:
    """Return a 64-bit mix of a number, different for each number (splitmix64's finaliser)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
