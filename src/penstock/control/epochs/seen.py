"""Whether the database is the one that a broker has seen, and no older copy of it.

An epoch that a restored copy has forgotten would be reserved twice, and the logs of topics that it
has forgotten would be deleted. A broker keeps, in a file of its directory that it replaces and
syncs, what it has seen of the database, and what it promised as a replica; before it serves, and
before it goes by an image, it compares.

| compared                               | shows a copy that was made                       |
|----------------------------------------|--------------------------------------------------|
| version, cluster epoch                 | before the newest image that was kept ¹          |
| the broker's own epoch and incarnation | before its last registration                     |
| promises against reservations          | before a promise of its replicas ²               |

¹ unless others have gone on with the copy, beyond it. ² unless others have claimed so often in it.

It is kept when a registration is made, and now and then: what was not kept is not noticed. Topics
that are gone are no sign: they may have been deleted.

The other way round, a database that knows more registrations of this broker than its directory
shows that the directory is an older copy, or that another process had the broker's id meanwhile
(`is_older`): what was promised and acknowledged since is not in it.
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
    """What a broker keeps: whose database it is, how far it was, and the own registration.

    `begun`: how many registrations were begun since. `refused`: why this broker does not go on with
    what was found, if it has registered there before it knew.
    """

    cluster_id: str
    version: int
    cluster_epoch: int
    broker_epoch: int
    incarnation: UUID
    begun: int = 0
    refused: str = ""


def check(seen: SeenDatabase, image: MetadataImage) -> None:
    """Whether an image can be of the database that was seen, or of a later state.

    Raises:
        DatabaseSetBack: it is that of another one, or of an older copy of this one.
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
    """Whether this broker's id was registered more often than its directory knows."""
    return own.epoch > seen.broker_epoch + seen.begun


def look(seen: SeenDatabase | None, image: MetadataImage, own: Broker) -> SeenDatabase:
    """What is to be kept next, by an image and the registration of this process.

    `seen` is what was kept, None in a new directory.

    Raises:
        DatabaseSetBack: the database is another one, or an older copy of this one.
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
    """The partitions of which a replica has promised an epoch that was never reserved."""
    return [
        key for key, epoch in promised.items() if key in reserved and epoch > reserved[key].reserved
    ]
