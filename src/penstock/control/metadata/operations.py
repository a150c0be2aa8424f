"""The operations of metadata that are more than a rule over the image (`images.py`)."""

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
    """The cluster's id, which is `cluster_id` if the database has none yet."""
    yield statements.make_version(cluster_id, stamp)
    found: str = yield statements.read_cluster_id()
    return found


def unregister_all() -> Operation[None]:
    """Forget who was registered, as all of them are gone; epochs stay."""
    yield statements.unregister_all()


def register_broker(
    images: Images, *, broker_id: int, incarnation: UUID, **address: Any
) -> Operation[tuple[Broker, StampedImage]]:
    """Register a broker, renewed now."""
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
    """Whether the incarnation is registered; its renewal is now."""
    count: int = yield statements.renew_broker(broker_id, incarnation)
    return count == 1


def overdue(timeout_ms: int, by: int) -> Operation[list[int]]:
    """The brokers that were renewed so long before a broker."""
    return [broker_id for (broker_id,) in (yield statements.read_overdue(timeout_ms, by))]


def expire_brokers(
    images: Images, timeout_ms: int, by: int
) -> Operation[tuple[list[int], StampedImage]]:
    """Unregister those that were renewed so long before a broker, and say which."""
    known = yield from images.locked()
    expired = [broker_id for (broker_id,) in (yield statements.lock_overdue(timeout_ms, by))]
    stored = yield from images.store(known, rules.expire_brokers(known.image, expired))
    return expired, stored


def remove_broker(images: Images, broker_id: int) -> Operation[tuple[None, StampedImage]]:
    """Forget what is set for a broker that is gone for good."""
    known = yield from images.locked()
    highest: int | None = yield statements.read_epoch(broker_id)
    left = rules.remove_broker(known.image, broker_id=broker_id, known=highest is not None)
    return None, (yield from images.store(known, left))


def create_topic(
    images: Images, *, min_insync_replicas: int, **topic: Any
) -> Operation[tuple[Topic, StampedImage]]:
    """Create a topic; epochs of its partitions are open then, where they have several replicas."""
    created, stored = yield from images.apply(partial(rules.create_topic, **topic))
    yield from open_first(stored.image, created, created.partitions, min_insync_replicas)
    return created, stored


def create_partitions(
    images: Images, *, min_insync_replicas: int, new: Sequence[Sequence[int]], **grown: Any
) -> Operation[tuple[Topic, StampedImage]]:
    """Add partitions to a topic, as `create_topic` does."""
    topic, stored = yield from images.apply(partial(rules.create_partitions, new=new, **grown))
    added = topic.partitions[-len(new) :]
    yield from open_first(stored.image, topic, added, min_insync_replicas)
    return topic, stored


def allocate_producer_ids(count: int) -> Operation[range]:
    """Ids that were never handed out."""
    stop: int = yield statements.allocate_producer_ids(count)
    return rules.producer_ids(stop - count, count)
