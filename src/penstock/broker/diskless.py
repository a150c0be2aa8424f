"""Which topics are diskless, and which broker a client is sent to for their partitions.

A topic is diskless if its own `diskless.enable` is set, when it is created or later (`migration`):
`log.diskless.enable` is written into a topic when it is created, and does not change it later.

Every broker serves every diskless partition, so metadata may name any of them as leader. A client
that says where it is (`diskless_az=<rack>` within its client id) is sent to a broker of its rack.
The same partition goes to the same broker of a rack, whose cache then has its newest objects: by
the highest weight (`replication/placement.py`), so that a broker that comes or goes moves only its
own share. A consumer with `client.rack` is shown the one of its rack as preferred read replica.

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
    """Whether a topic's records lie in the object store."""
    return topic.configs.get(DISKLESS_CONFIG) == "true"


def configs_of_new(
    configs: Mapping[str, str], effective: LogConfig, *, default: bool
) -> dict[str, str]:
    """The configurations that a new topic is stored with.

    `effective` is what the topic would run with, `default` the broker's `log.diskless.enable`,
    by which compacted topics do not go.
    """
    if DISKLESS_CONFIG in configs:
        return {**configs, DISKLESS_CONFIG: "true" if effective.diskless_enable else "false"}
    diskless = default and "compact" not in effective.cleanup_policy
    return {**configs, DISKLESS_CONFIG: "true"} if diskless else dict(configs)


def check_local(name: str, configs: Mapping[str, str]) -> None:
    """Refuse a new diskless topic where there is no object store; raises InvalidConfig."""
    if configs.get(DISKLESS_CONFIG) == "true":
        raise InvalidConfig(
            f"topic {name!r}: {DISKLESS_CONFIG} = true needs an object store that all brokers"
            " share, and diskless.storage.url is not set"
        )


def kept(wanted: Mapping[str, str | None], current: Mapping[str, str]) -> dict[str, str | None]:
    """A whole new configuration that does not name `diskless.enable`, with what the topic has."""
    if DISKLESS_CONFIG in current and DISKLESS_CONFIG not in wanted:
        return {**wanted, DISKLESS_CONFIG: current[DISKLESS_CONFIG]}
    return dict(wanted)


def check_change(topic: Topic, configs: Mapping[str, str], effective: LogConfig) -> dict[str, str]:
    """The configurations that a topic is changed to; it may become diskless, or local.

    Raises:
        InvalidConfig: it would cease to be diskless without a word.
    """
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
    """The rack that a client id names, if there is a broker of it; else empty."""
    if client_id is None or "diskless_az=" not in client_id:
        return ""
    found = RACK_IN_CLIENT_ID.search(client_id)
    rack = found[1] if found else ""
    return rack if any(broker.rack == rack for broker in image.serving) else ""


class Placement:
    """Who leads diskless partitions, as clients of one rack are told; of one image."""

    __slots__ = ("_brokers", "_hashes", "_racks")

    def __init__(self, brokers: Sequence[Broker], rack: str) -> None:
        """`rack` is the client's, empty for any."""
        near = [broker for broker in brokers if rack and broker.rack == rack]
        self._brokers = [broker.broker_id for broker in near or brokers]
        racks: dict[str, list[int]] = {}
        for broker in brokers:
            if broker.rack:
                racks.setdefault(broker.rack, []).append(broker.broker_id)
        self._racks = list(racks.values())
        self._hashes = {broker.broker_id: broker_hash(broker.broker_id) for broker in brokers}

    def replicas(self, topic_id: UUID, partition: int) -> tuple[int, ...]:
        """The brokers that a client is told of: the leader, then one of every other rack.

        Empty while there is no broker.
        """
        if not self._brokers:
            return ()
        key = partition_hash(topic_id, partition)
        leader = self._chosen(self._brokers, key)
        others = [self._chosen(ids, key) for ids in self._racks if leader not in ids]
        return (leader, *others)

    def partitions(self, topic: Topic) -> tuple[Partition, ...]:
        """The partitions of a diskless topic as a client sees them, all in sync."""
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
    """The broker that a consumer of a rack should read a partition from; -1 for the one asked."""
    own = image.broker(node_id)
    if own is not None and own.rack == rack:
        return -1
    near = [broker for broker in image.serving if broker.rack == rack]
    if not near:
        return -1
    return Placement(near, rack).replicas(*key)[0]
