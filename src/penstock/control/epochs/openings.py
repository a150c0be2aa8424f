"""Operations that open the first epochs of partitions, in the transaction that creates them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.control.batch_index.values import PartitionKey
from penstock.control.drivers.statements import Operation
from penstock.control.epochs import rules, statements
from penstock.control.epochs.values import PartitionEpoch
from penstock.control.values import MetadataImage, Partition, Topic


def open_first(
    image: MetadataImage, topic: Topic, added: Iterable[Partition], min_insync_replicas: int
) -> Operation[None]:
    made = {
        (topic.topic_id, partition.index): rules.first_epoch(image, partition, min_insync_replicas)
        for partition in added
        if len(partition.replicas) > 1 and not rules.is_diskless(topic)
    }
    yield from add_first(made)


def add_first(made: Mapping[PartitionKey, PartitionEpoch]) -> Operation[None]:
    yield statements.add_partitions(
        [(*key, epoch.epoch, epoch.leader, epoch.incarnation) for key, epoch in made.items()]
    )
    yield statements.add_epochs([statements.epoch_row(key, epoch) for key, epoch in made.items()])
