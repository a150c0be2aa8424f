"""How the first epochs of partitions are opened, in the transaction that creates them."""

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
    """Open the first epochs of new partitions that have several replicas."""
    made = {
        (topic.topic_id, one.index): rules.first_epoch(image, one, min_insync_replicas)
        for one in added
        if len(one.replicas) > 1 and not rules.is_diskless(topic)
    }
    yield from add_first(made)


def add_first(made: Mapping[PartitionKey, PartitionEpoch]) -> Operation[None]:
    """Give partitions their first rows."""
    yield statements.add_partitions(
        [(*key, one.epoch, one.leader, one.incarnation) for key, one in made.items()]
    )
    yield statements.add_epochs([statements.epoch_row(key, one) for key, one in made.items()])
