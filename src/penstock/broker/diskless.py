"""Diskless topics, and the broker that a client is sent to for their partitions.

A topic is diskless if its own `diskless.enable` is set, at creation or later (`migration`).
`log.diskless.enable` only sets the value of new topics.

Every broker serves every diskless partition, so metadata may name any of them as leader. A client
with `diskless_az=<rack>` in its client id is sent to a broker of its rack. Rendezvous hashing
(`replication/placement.py`) sends a partition to the same broker of a rack, which caches its newest
objects. A consumer with `client.rack` gets the broker of its rack as preferred read replica.

Source: Inkless (`diskless_az`, `InklessTopicMetadataTransformer`); KIP-392.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.broker.admin_errors import InvalidConfig
from penstock.control import Partition
from penstock.control.batch_index.rules import DISKLESS_CONFIG
from penstock.replication.placement import broker_hash, partition_hash, weight

if TYPE_CHECKING:
    from penstock.control import Broker, MetadataImage, Topic
    from penstock.storage.config import LogConfig

RACK_IN_CLIENT_ID: Final = re.compile(r"(?:^|[,;\s])diskless_az=([^,;\s]+)")


def is_diskless(topic: Topic) -> bool:
    return topic.configs.get(DISKLESS_CONFIG) == "true"


def configs_of_new(
    configs: Mapping[str, str], effective: LogConfig, *, default: bool
) -> dict[str, str]:
    """Return the configurations to store for a new topic; `default` is `log.diskless.enable`."""
    if DISKLESS_CONFIG in configs:
        return {**configs, DISKLESS_CONFIG: "true" if effective.diskless_enable else "false"}
    diskless = default and "compact" not in effective.cleanup_policy
    return {**configs, DISKLESS_CONFIG: "true"} if diskless else dict(configs)


def check_local(name: str, configs: Mapping[str, str]) -> None:
    """Reject a new diskless topic without an object store; raises InvalidConfig."""
    if configs.get(DISKLESS_CONFIG) == "true":
        raise InvalidConfig(
            f"topic {name!r}: {DISKLESS_CONFIG} = true needs an object store that all brokers"
            " share, and diskless.storage.url is not set"
        )


def kept(changed: Mapping[str, str | None], current: Mapping[str, str]) -> dict[str, str | None]:
    """Return a new configuration that retains the topic's `diskless.enable` if it names none."""
    if DISKLESS_CONFIG in current and DISKLESS_CONFIG not in changed:
        return {**changed, DISKLESS_CONFIG: current[DISKLESS_CONFIG]}
    return dict(changed)


def check_change(topic: Topic, configs: Mapping[str, str], effective: LogConfig) -> dict[str, str]:
    """Return the configurations of a changed topic; raises InvalidConfig."""
    if is_diskless(topic) and DISKLESS_CONFIG not in configs:
        raise InvalidConfig(
            f"topic {topic.name!r} is diskless: {DISKLESS_CONFIG} cannot be deleted; set it to"
            " false, and its records are copied to brokers"
        )
    if DISKLESS_CONFIG in configs:
        return {**configs, DISKLESS_CONFIG: "true" if effective.diskless_enable else "false"}
    return dict(configs)


# -- which broker ---------------------------------------------------------------------------


def rack_of(client_id: str | None, image: MetadataImage) -> str:
    """Return the rack that a client id names if a broker has it; else an empty string."""
    if client_id is None or "diskless_az=" not in client_id:
        return ""
    found = RACK_IN_CLIENT_ID.search(client_id)
    rack = found[1] if found else ""
    return rack if any(broker.rack == rack for broker in image.serving) else ""


class Placement:
    """Leaders of diskless partitions for clients of one rack, by one image."""

    __slots__ = ("_brokers", "_hashes", "_racks")

    def __init__(self, brokers: Sequence[Broker], rack: str) -> None:
        """Place partitions for a client's `rack`; empty for any."""
        near = [broker for broker in brokers if rack and broker.rack == rack]
        self._brokers = [broker.broker_id for broker in near or brokers]
        racks: dict[str, list[int]] = {}
        for broker in brokers:
            if broker.rack:
                racks.setdefault(broker.rack, []).append(broker.broker_id)
        self._racks = list(racks.values())
        self._hashes = {broker.broker_id: broker_hash(broker.broker_id) for broker in brokers}

    def replicas(self, topic_id: UUID, partition: int) -> tuple[int, ...]:
        """Return a partition's leader, then one broker per other rack; empty without brokers."""
        if not self._brokers:
            return ()
        key = partition_hash(topic_id, partition)
        leader = self._chosen(self._brokers, key)
        others = [self._chosen(ids, key) for ids in self._racks if leader not in ids]
        return (leader, *others)

    def partitions(self, topic: Topic) -> tuple[Partition, ...]:
        """Return the partitions of a diskless topic for a client, all in sync."""
        shown = []
        for index, partition in enumerate(topic.partitions):
            replicas = self.replicas(topic.topic_id, index)
            shown.append(
                Partition(
                    index=index,
                    leader=replicas[0] if replicas else -1,
                    leader_epoch=partition.leader_epoch,
                    replicas=replicas,
                    isr=replicas,
                )
            )
        return tuple(shown)

    def _chosen(self, broker_ids: Sequence[int], key: int) -> int:
        if len(broker_ids) == 1:
            return broker_ids[0]
        hashes = self._hashes
        return max(broker_ids, key=lambda broker_id: weight(key, hashes[broker_id]))


def preferred(image: MetadataImage, rack: str, node_id: int, key: tuple[UUID, int]) -> int:
    """Return the broker from which a rack's consumer should read; -1 for this broker."""
    own = image.broker(node_id)
    if own is not None and own.rack == rack:
        return -1
    near = [broker for broker in image.serving if broker.rack == rack]
    if not near:
        return -1
    return Placement(near, rack).replicas(*key)[0]
