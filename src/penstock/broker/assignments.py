"""Whether the brokers that are registered can hold what a client asks for: pure checks."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized

from penstock.broker.admin_errors import InvalidReplicaAssignment, InvalidReplicationFactor
from penstock.broker.settings import EXCLUDED_BROKERS
from penstock.control import Broker, MetadataImage
from penstock.control.values import PERSISTENCE
from penstock.replication.placement import Replicas


def check_factor(replication_factor: int, brokers: Sized, excluded: Collection[int] = ()) -> int:
    """Return a replication factor if there are as many brokers, without those `excluded`.

    Raises:
        InvalidReplicationFactor: not positive, or above the number of brokers.
    """
    if replication_factor < 1:
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: must be at least 1, or -1 for the default"
        )
    if replication_factor > len(brokers):
        names = ", ".join(map(str, sorted(excluded)))
        why = f"({EXCLUDED_BROKERS}, or broker.roles without {PERSISTENCE})"
        beside = f" beside {names}, which get no new replicas {why}" if names else ""
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: only {len(brokers)} broker(s) are registered"
            + beside
        )
    return replication_factor


def check_assignment(
    replicas: Sequence[int],
    brokers: Sequence[Broker],
    *,
    partition: int,
    replication_factor: int | None,
) -> Replicas:
    """Return a manual assignment if these brokers can hold it.

    Raises:
        InvalidReplicaAssignment: empty, an unknown or repeated broker, or another number of
            replicas than `replication_factor`.
    """
    known = {broker.broker_id for broker in brokers}
    if not replicas:
        raise InvalidReplicaAssignment(f"partition {partition}: the replica list is empty")
    for broker_id in replicas:
        if broker_id not in known:
            raise InvalidReplicaAssignment(
                f"partition {partition}: broker {broker_id} is not registered"
            )
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(
            f"partition {partition}: a broker appears more than once in {list(replicas)}"
        )
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignment(
            f"partition {partition}: has {len(replicas)} replica(s), "
            f"but the partitions before it have {replication_factor}"
        )
    return tuple(replicas)


def check_roles(
    placed: Sequence[Replicas], image: MetadataImage, holding: Collection[int] = ()
) -> None:
    """Refuse replicas on brokers that are to have none, unless they are `holding` some already.

    Raises:
        InvalidReplicaAssignment: a broker has not the role for it.
    """
    named = {one for replicas in placed for one in replicas}.difference(holding)
    for one in image.brokers:
        if one.broker_id in named and PERSISTENCE not in one.roles:
            raise InvalidReplicaAssignment(
                f"broker {one.broker_id} gets no replicas: its broker.roles is"
                f" {','.join(one.roles)}, without {PERSISTENCE}"
            )
