"""Detection of restored databases: the state of the database that a broker has seen, on its disk.

A restored copy would reserve epochs twice that it has forgotten, and brokers would delete the logs
of topics that it has forgotten. A broker stores the state that it has seen, and its promises as a
replica, in a file of its directory, and compares them before it serves and before it uses an image.

| compared                               | shows a copy made                       |
|----------------------------------------|-----------------------------------------|
| version, cluster epoch                 | before the newest stored image ¹        |
| the broker's own epoch and incarnation | before its last registration            |
| promises against reservations          | before a promise of its replicas ²      |

¹ unless other brokers changed the copy beyond it. ² unless others claimed as often in the copy.

The state is stored at a registration, and periodically; later changes are not detected. Missing
topics prove nothing: they may have been deleted.

Conversely, a database with more registrations of this broker than its directory shows that the
directory is an older copy, or that another process had the broker's id meanwhile (`is_older`).
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
    """State of the database that a broker has seen, and its own registration.

    `begun` counts registrations that were begun since. `refused` is the reason why this broker
    rejects the database that it has registered with.
    """

    cluster_id: str
    version: int
    cluster_epoch: int
    broker_epoch: int
    incarnation: UUID
    begun: int = 0
    refused: str = ""


def check(seen: SeenDatabase, image: MetadataImage) -> None:
    """Check that an image is of the seen database, or of a later state of it.

    Raises:
        DatabaseSetBack: it is of another database, or of an older copy.
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
            raise _set_back(f"its {what} is {found}, and was {kept} already")


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
            f"its epoch of broker {own.broker_id} is {own.epoch}, and was {seen.broker_epoch}"
            " already"
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
    """Return the partitions whose replica has promised an epoch that was never reserved."""
    return [
        key for key, epoch in promised.items() if key in reserved and epoch > reserved[key].reserved
    ]
