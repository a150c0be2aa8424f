"""Topics of the cluster, as inputs of targets, and their fingerprint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from penstock.control import Topic

HASH_BYTES = 16


class NewTopics(Struct, frozen=True, kw_only=True):
    """Event: topics or racks changed.

    `topics` are all current topics. `changed` are the names of changed topics; None means that any
    topic may have changed. `racks` are the racks of brokers by id.
    """

    topics: Mapping[str, Topic]
    changed: Collection[str] | None = None
    racks: Mapping[int, str] = field(default_factory=dict)


def racks_of(topic: Topic, racks: Mapping[int, str]) -> list[frozenset[str]]:
    known: dict[tuple[int, ...], frozenset[str]] = {}
    found = []
    for row in topic.partitions:
        replica_racks = known.get(row.replicas)
        if replica_racks is None:
            replica_racks = frozenset([racks[broker] for broker in row.replicas if broker in racks])
            known[row.replicas] = replica_racks
        found.append(replica_racks)
    return found


def fingerprint(topics: Mapping[str, Topic], names: Collection[str]) -> str:
    """Return a hash that changes when a topic is created, deleted, extended or recreated."""
    digest = blake2b(digest_size=HASH_BYTES)
    for name in sorted(names):
        topic = topics.get(name)
        if topic is not None:
            digest.update(b"%s %d " % (topic.topic_id.bytes, len(topic.partitions)))
    return digest.hexdigest()
