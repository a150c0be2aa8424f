"""The topics of the cluster as groups see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.control import Topic

HASH_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopics:
    """The topics as they are now; those of `changed` names differ, or all may (None).

    `racks` are those of brokers, by their ids, as far as they have one.
    """

    topics: Mapping[str, Topic]
    changed: Collection[str] | None = None
    racks: Mapping[int, str] = field(default_factory=dict)


def racks_of(topic: Topic, racks: Mapping[int, str]) -> list[frozenset[str]]:
    """The racks that have a replica, for each partition."""
    known: dict[tuple[int, ...], frozenset[str]] = {}
    found = []
    for row in topic.partitions:
        places = known.get(row.replicas)
        if places is None:
            places = frozenset([racks[broker] for broker in row.replicas if broker in racks])
            known[row.replicas] = places
        found.append(places)
    return found


def fingerprint(topics: Mapping[str, Topic], names: Collection[str]) -> str:
    """A hash that changes when one of these topics comes, goes, grows or is made anew."""
    digest = blake2b(digest_size=HASH_BYTES)
    for name in sorted(names):
        topic = topics.get(name)
        if topic is not None:
            digest.update(b"%s %d " % (topic.topic_id.bytes, len(topic.partitions)))
    return digest.hexdigest()
