"""Operations on metadata that need more than a rule over the image (`images.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

from penstock.control.drivers.statements import Operation
from penstock.control.epochs.openings import open_first
from penstock.control.metadata import rules, statements
from penstock.control.metadata.images import Images, StampedImage
from penstock.control.values import Broker, Topic


def open_cluster(cluster_id: str, stamp: UUID) -> Operation[str]:
    """Return the cluster's id; a new database stores `cluster_id`."""
    yield statements.make_version(cluster_id, stamp)
    found: str = yield statements.read_cluster_id()
    return found


def unregister_all() -> Operation[None]:
    yield statements.unregister_all()


def register_broker(
    images: Images, *, broker_id: int, incarnation: UUID, **address: Any
) -> Operation[tuple[Broker, StampedImage]]:
    highest: int | None = yield statements.read_epoch(broker_id)
    registered = yield from images.apply(
        partial(
            rules.register_broker,
            broker_id=broker_id,
            incarnation=incarnation,
            highest_epoch=highest or 0,
            **address,
        )
    )
    yield statements.renew_broker(broker_id, incarnation)
    return registered


def renew_broker(broker_id: int, incarnation: UUID) -> Operation[bool]:
    """Renew a registration; return whether the incarnation is registered."""
    count: int = yield statements.renew_broker(broker_id, incarnation)
    return count == 1


def overdue(timeout_ms: int, by: int) -> Operation[list[int]]:
    """Return brokers whose renewal is `timeout_ms` older than that of the broker `by`."""
    return [broker_id for (broker_id,) in (yield statements.read_overdue(timeout_ms, by))]


def expire_brokers(
    images: Images, timeout_ms: int, by: int
) -> Operation[tuple[list[int], StampedImage]]:
    known = yield from images.locked()
    expired = [broker_id for (broker_id,) in (yield statements.lock_overdue(timeout_ms, by))]
    stored = yield from images.store(known, rules.expire_brokers(known.image, expired))
    return expired, stored


def remove_broker(images: Images, broker_id: int) -> Operation[tuple[None, StampedImage]]:
    known = yield from images.locked()
    highest: int | None = yield statements.read_epoch(broker_id)
    left = rules.remove_broker(known.image, broker_id=broker_id, known=highest is not None)
    return None, (yield from images.store(known, left))


def create_topic(
    images: Images, *, min_insync_replicas: int, **topic: Any
) -> Operation[tuple[Topic, StampedImage]]:
    created, stored = yield from images.apply(partial(rules.create_topic, **topic))
    yield from open_first(stored.image, created, created.partitions, min_insync_replicas)
    return created, stored


def create_partitions(
    images: Images, *, min_insync_replicas: int, new: Sequence[Sequence[int]], **grown: Any
) -> Operation[tuple[Topic, StampedImage]]:
    topic, stored = yield from images.apply(partial(rules.create_partitions, new=new, **grown))
    added = topic.partitions[-len(new) :]
    yield from open_first(stored.image, topic, added, min_insync_replicas)
    return topic, stored


def allocate_producer_ids(count: int) -> Operation[range]:
    stop: int = yield statements.allocate_producer_ids(count)
    return rules.producer_ids(stop - count, count)
