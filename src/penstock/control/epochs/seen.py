"""Detection of a metadata database that was restored from an older copy.

An older copy lacks reserved epochs and topics. With it, brokers would reserve the same epochs
again, and would delete the logs of the missing topics. Each broker therefore stores, in a file of
its directory, the state of the database that it has seen and the promises of its replicas. It
compares them before it serves requests and before it uses an image.

| compared values                        | detects a copy that was made            |
|----------------------------------------|-----------------------------------------|
| version, cluster epoch                 | before the newest stored state ¹        |
| the broker's own epoch and incarnation | before the broker's last registration   |
| promises against reservations          | before a promise of its replicas ²      |

¹ unless other brokers have raised the copy's values beyond the stored ones. ² unless other brokers
have claimed as many epochs in the copy.

The state is stored at a registration, and periodically. Later changes are not detected. A missing
topic is no evidence: it may have been deleted.

The opposite is detected, too. The database may have more registrations of this broker than its
directory records (`is_older`). Then the directory is an older copy, or another process had the
broker's id meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from penstock.control.batch_index.values import PartitionKey
from penstock.control.epochs.values import Reservation
from penstock.control.errors import DatabaseSetBack
from penstock.control.values import Broker, MetadataImage


class SeenDatabase(NamedTuple):
    """State of the metadata database as this broker last saw it, and its own registration.

    `begun` counts the registrations that the broker has begun since. `refused` is the reason why
    the broker rejects the database; empty if it accepts it.
    """

    cluster_id: str
    version: int
    cluster_epoch: int
    broker_epoch: int
    incarnation: UUID
    begun: int = 0
    refused: str = ""


def check(seen: SeenDatabase, image: MetadataImage) -> None:
    """Check that an image comes from the seen database, in the seen state or a later one.

    Raises:
        DatabaseSetBack: the image comes from another database, or from an older copy.
    """
    if seen.refused:
        raise DatabaseSetBack(seen.refused)
    if image.cluster_id != seen.cluster_id:
        raise DatabaseSetBack(
            f"the control plane is that of cluster {image.cluster_id!r}; this broker's directory"
            f" belongs to cluster {seen.cluster_id!r}"
        )
    for what, found, kept in (
        ("version", image.version, seen.version),
        ("cluster epoch", image.cluster_epoch, seen.cluster_epoch),
    ):
        if found < kept:
            raise _set_back(f"its {what} is {found}, but was {kept} before")


def is_older(seen: SeenDatabase, own: Broker) -> bool:
    """Return whether the broker's id was registered more often than its directory records."""
    return own.epoch > seen.broker_epoch + seen.begun


def look(seen: SeenDatabase | None, image: MetadataImage, own: Broker) -> SeenDatabase:
    """Return the state to store next; `seen` is the stored state, None in a new directory.

    Raises:
        DatabaseSetBack: the database is another one, or an older copy.
    """
    if seen is not None:
        _compare(seen, image, own)
    return SeenDatabase(
        image.cluster_id, image.version, image.cluster_epoch, own.epoch, own.incarnation
    )


def _compare(seen: SeenDatabase, image: MetadataImage, own: Broker) -> None:
    check(seen, image)
    if own.epoch < seen.broker_epoch:
        raise _set_back(
            f"its epoch of broker {own.broker_id} is {own.epoch}, but was {seen.broker_epoch}"
            " before"
        )
    if own.epoch == seen.broker_epoch and own.incarnation != seen.incarnation:
        raise _set_back(f"it has given epoch {own.epoch} of broker {own.broker_id} twice")


def _set_back(how: str) -> DatabaseSetBack:
    return DatabaseSetBack(
        f"the control plane was set back: {how}; restore the newest copy of its database"
    )


def set_back(
    promised: Mapping[PartitionKey, int], reserved: Mapping[PartitionKey, Reservation]
) -> list[PartitionKey]:
    """Return the partitions of which this broker has promised an epoch that was never reserved."""
    return [
        key for key, epoch in promised.items() if key in reserved and epoch > reserved[key].reserved
    ]
