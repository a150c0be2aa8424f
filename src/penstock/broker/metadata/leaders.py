"""Leaders as clients see them: brokers of diskless partitions, and checks of leader epochs.

A topic is diskless if its own `diskless.enable` is true, from its creation or later (`migration`).
The broker setting `log.diskless.enable` is only the default for new topics.

Every broker serves every diskless partition, so metadata may name any of them as leader. A client
with `diskless_az=<rack>` in its client id gets leaders in that rack. Rendezvous hashing
(`replication/placement.py`) chooses the same broker of a rack for all requests to a partition, so
that this broker caches the partition's newest objects. A consumer with `client.rack` gets the
broker of its rack as preferred read replica.

Source: Inkless (`diskless_az`, `InklessTopicMetadataTransformer`); KIP-320, KIP-392, KIP-595.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.broker.net.errors import FencedLeaderEpoch, InvalidConfig, UnknownLeaderEpoch
from penstock.control import Partition as PartitionRow
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.control.rules.metadata import (
    LINK_CLIENT,
    LINK_CONFIGS,
    LINK_EPOCH,
    LINK_TOPIC_ID,
    is_linked,
    link_epoch,
)
from penstock.control.rules.tiers import REMOTE_CONFIG
from penstock.control.values.epochs import FIRST_EPOCH
from penstock.replication.placement import broker_hash, partition_hash, weight

if TYPE_CHECKING:
    from penstock.control import Broker, MetadataImage, Topic
    from penstock.control import Partition as PartitionRow
    from penstock.partitions import Partition
    from penstock.storage.files.settings import LogConfig


PROMOTION_EPOCHS: Final = 1_000
"""Epochs that a promotion skips: more than a former source's elections until its reversal."""
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
    """Reject diskless topics, because this cluster has no object store; raises InvalidConfig."""
    if configs.get(DISKLESS_CONFIG) == "true":
        raise InvalidConfig(
            f"topic {name!r}: {DISKLESS_CONFIG} = true needs an object store that all brokers"
            " share, but diskless.storage.url is not set"
        )


def kept(changed: Mapping[str, str | None], current: Mapping[str, str]) -> dict[str, str | None]:
    """Return `changed` with the current storage and link added, unless `changed` contains them.

    AlterConfigs replaces all configurations of a topic. Clients that do not know these settings
    must not move the topic, and must not end its link.
    """
    held = (DISKLESS_CONFIG, *LINK_CONFIGS)
    return {**{name: current[name] for name in held if name in current}, **changed}


def check_change(topic: Topic, configs: Mapping[str, str], effective: LogConfig) -> dict[str, str]:
    """Return the configurations to store for a changed topic.

    Raises:
        InvalidConfig: the change would delete the `diskless.enable` of a diskless topic, or links a
            topic that cannot be linked.
    """
    configs = _linked(topic, configs, effective)
    if is_diskless(topic) and DISKLESS_CONFIG not in configs:
        raise InvalidConfig(
            f"topic {topic.name!r} is diskless: {DISKLESS_CONFIG} cannot be deleted. Set it to"
            " false to copy the topic's records to brokers"
        )
    if DISKLESS_CONFIG in configs:
        return {**configs, DISKLESS_CONFIG: "true" if effective.diskless_enable else "false"}
    return dict(configs)


def _linked(topic: Topic, configs: Mapping[str, str], effective: LogConfig) -> dict[str, str]:
    """Return a changed topic's configurations with its link epoch.

    The end of a link raises the epoch, so that clients refresh their metadata, and the log begins a
    leader epoch above those of the source. It is so much higher that elections of a former source
    do not reach it: a reversal compares the logs by epochs.
    """
    replicas = [row.replicas for row in topic.partitions]
    check_linkable(topic.name, effective, replicas, topic.configs)
    epoch = link_epoch(topic)
    if is_linked(topic) and not effective.link_source:
        epoch += PROMOTION_EPOCHS
    elif effective.link_source and not is_linked(topic):
        epoch = max([epoch, *[row.leader_epoch for row in topic.partitions]])
    stored = {**configs, LINK_EPOCH: str(epoch)} if epoch else dict(configs)
    if not effective.link_source:  # a later link may have another source
        stored.pop(LINK_TOPIC_ID, None)
    return stored


def check_linkable(
    name: str, config: LogConfig, replicas: Sequence[Sequence[int]], stored: Mapping[str, str]
) -> None:
    """Check the link of a topic, which has the configurations `stored`; raises InvalidConfig.

    Batches of a linked topic keep the leader epochs of the source. Partitions with several
    replicas have leader epochs of this cluster.
    """
    most = max(map(len, replicas), default=0)
    client, source_id = config.link_client_config, config.link_source_topic_id
    epoch = int(stored.get(LINK_EPOCH, 0))
    linked = bool(config.link_source) or epoch > 0
    for reason, found in (
        (f"{LINK_EPOCH} = {config.link_epoch}: only brokers change it", config.link_epoch != epoch),
        (f"{LINK_TOPIC_ID} = {source_id}: only brokers change it",
         source_id != stored.get(LINK_TOPIC_ID, "")),
        (f"{LINK_CLIENT} = {client!r} must be an absolute path", client[:1] not in ("", "/")),
        (f"a linked topic must have 1 replica until its promotion, not {most}: run `penstock topic"
         " reassign --factor 1` first",
         bool(config.link_source) and most > 1),
        (f"a topic that is or was linked cannot have {DISKLESS_CONFIG} = true",
         linked and config.diskless_enable),
        (f"a topic that is or was linked cannot have {REMOTE_CONFIG} = true",
         linked and config.remote_storage_enable),
    ):  # fmt: skip
        if found:
            raise InvalidConfig(f"topic {name!r}: {reason}")


# -- which broker ---------------------------------------------------------------------------


def rack_of(client_id: str | None, image: MetadataImage) -> str:
    """Return the rack in a client id (`diskless_az=<rack>`); empty if no broker is in it."""
    if client_id is None or "diskless_az=" not in client_id:
        return ""
    found = RACK_IN_CLIENT_ID.search(client_id)
    rack = found[1] if found else ""
    return rack if any(broker.rack == rack for broker in image.serving) else ""


class Placement:
    """Choice of the leaders of diskless partitions for clients of one rack."""

    __slots__ = ("_brokers", "_hashes", "_racks")

    def __init__(self, brokers: Sequence[Broker], rack: str) -> None:
        """Choose among those `brokers` that are in `rack`, or among all if none is."""
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

    def partitions(self, topic: Topic) -> tuple[PartitionRow, ...]:
        """Return a diskless topic's partitions as metadata shows them: all replicas in sync."""
        shown = []
        for index, partition in enumerate(topic.partitions):
            replicas = self.replicas(topic.topic_id, index)
            shown.append(
                PartitionRow(
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
    """Return the broker from which a consumer in `rack` should read; -1 for this broker.

    `key` is the topic id and the partition. `node_id` is this broker.
    """
    own = image.broker(node_id)
    if own is not None and own.rack == rack:
        return -1
    near = [broker for broker in image.serving if broker.rack == rack]
    if not near:
        return -1
    return Placement(near, rack).replicas(*key)[0]


def serving_epoch(topic: Topic, row: PartitionRow) -> int:
    """Return the leader epoch that clients get; for a new partition the one about to be opened.

    Records of a linked topic have the source's leader epochs, so clients get at least these.
    """
    opened = FIRST_EPOCH + 1 if is_unopened(topic, row) else row.leader_epoch
    return max(opened, link_epoch(topic))


def is_unopened(topic: Topic, row: PartitionRow) -> bool:
    """Return whether a new partition with several replicas has not had a leader yet."""
    created = row.leader_epoch == FIRST_EPOCH and len(row.replicas) > 1
    return created and not is_diskless(topic)


def check_epoch(partition: Partition, epoch: int) -> None:
    """Check the leader epoch of a request; a negative epoch is always accepted.

    Raises:
        FencedLeaderEpoch: it is older than the partition's epoch.
        UnknownLeaderEpoch: it is newer than the partition's epoch.
    """
    if epoch < 0 or epoch == partition.leader_epoch:
        return
    known = partition.leader_epoch
    text = f"{partition.topic_partition} has leader epoch {known}, but the request has {epoch}"
    raise FencedLeaderEpoch(text) if epoch < known else UnknownLeaderEpoch(text)


def parts_from(partition: Partition, epoch: int, offset: int) -> tuple[int, int] | None:
    """Return where a partition's log diverges from a client's log: a leader epoch and its end.

    `epoch` is the leader epoch of the client's record before `offset`, -1 if the client sent none.
    The returned epoch is the largest in the partition that does not exceed `epoch`. None means that
    no divergence is known. Diskless logs never diverge, because they are never truncated.

    Raises:
        NotLeading: this broker does not lead the partition.
    """
    if epoch < 0 or partition.everywhere:
        return None
    known, end = partition.end_offset_for_epoch(epoch)
    return (known, end) if known >= 0 and (known < epoch or end < offset) else None


def controller_of(image: MetadataImage) -> int:
    """Return the id of the broker that clients see as controller; -1 without brokers."""
    return min((broker.broker_id for broker in image.serving), default=-1)
