"""Pure checks of replication factors and replica assignments against the registered brokers."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized

from penstock.broker.admin_errors import InvalidReplicaAssignment, InvalidReplicationFactor
from penstock.broker.settings import EXCLUDED_BROKERS
from penstock.control import Broker, MetadataImage
from penstock.control.values import PERSISTENCE
from penstock.replication.placement import Replicas


def check_factor(replication_factor: int, brokers: Sized, excluded: Collection[int] = ()) -> int:
    """Return `replication_factor` if `brokers` are enough for it; raises InvalidReplicationFactor.

    `excluded` are the ids of brokers that are not in `brokers`; the error message lists them.
    """
    if replication_factor < 1:
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: must be at least 1, or -1 for the default"
        )
    if replication_factor > len(brokers):
        names = ", ".join(map(str, sorted(excluded)))
        why = f"({EXCLUDED_BROKERS}, or broker.roles without {PERSISTENCE})"
        beside = f"; broker(s) {names} are excluded {why}" if names else ""
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: only {len(brokers)} broker(s) can get"
            f" replicas{beside}"
        )
    return replication_factor


def check_assignment(
    replicas: Sequence[int],
    brokers: Sequence[Broker],
    *,
    partition: int,
    replication_factor: int | None,
) -> Replicas:
    """Return a manual assignment that the brokers can hold; raises InvalidReplicaAssignment."""
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
    """Reject replicas on brokers without the role `persistence`; raises InvalidReplicaAssignment.

    Brokers in `holding` already have a replica of the partition and are not checked.
    """
    named = {broker for replicas in placed for broker in replicas}.difference(holding)
    for broker in image.brokers:
        if broker.broker_id in named and PERSISTENCE not in broker.roles:
            raise InvalidReplicaAssignment(
                f"broker {broker.broker_id} cannot get replicas: its broker.roles ="
                f" {','.join(broker.roles)} does not include {PERSISTENCE}"
            )
