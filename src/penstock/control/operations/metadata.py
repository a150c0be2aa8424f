"""Methods of the control plane for topics, brokers, their configs, and producer ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from penstock.control.drivers.statements import Operation, operation, query
from penstock.control.operations import images
from penstock.control.operations.epochs import open_first
from penstock.control.operations.images import OverImages, StampedImage, image_operation
from penstock.control.rules import metadata
from penstock.control.values.errors import StaleBroker
from penstock.control.values.topics import ROLES, Broker, Topic


def open_cluster(cluster_id: str, stamp: UUID) -> Operation[str]:
    """Return the id of the cluster. A new database stores `cluster_id` as its id."""
    yield images.make_version(cluster_id, stamp)
    found: str = yield images.read_cluster_id()
    return found


def unregister_all() -> Operation[None]:
    yield images.unregister_all()


class Metadata(OverImages):
    """Methods of `ControlPlane` for topics, brokers, configs and producer ids."""

    @image_operation
    def register_broker(
        self,
        *,
        broker_id: int,
        host: str,
        port: int,
        rack: str | None,
        incarnation: UUID,
        endpoints: Sequence[tuple[str, str, int]] = (),
        roles: Sequence[str] = ROLES,
    ) -> Operation[tuple[Broker, StampedImage]]:
        """Register a broker process in a new broker epoch; return the registered broker.

        A repeated call with the same arguments changes nothing.
        """
        highest: int | None = yield images.read_epoch(broker_id)
        registered = yield from self._images.apply(
            partial(
                metadata.register_broker,
                broker_id=broker_id,
                host=host,
                port=port,
                rack=rack,
                incarnation=incarnation,
                highest_epoch=highest or 0,
                endpoints=endpoints,
                roles=roles,
            )
        )
        yield images.renew_broker(broker_id, incarnation)
        return registered

    @image_operation
    def unregister_broker(
        self, *, broker_id: int, incarnation: UUID
    ) -> Operation[tuple[None, StampedImage]]:
        """Unregister a broker if this incarnation still owns the id.

        Raises:
            StaleBroker: a newer incarnation owns the id.
        """
        known = yield from self._images.locked()
        left = metadata.unregister_broker(known.image, broker_id=broker_id, incarnation=incarnation)
        return None, (yield from self._images.store(known, left))

    @image_operation
    def remove_broker(self, broker_id: int) -> Operation[tuple[None, StampedImage]]:
        """Delete the configs of a broker that is gone permanently. Its id may be registered again.

        Raises:
            BrokerInUse: the broker is registered, or is or becomes a replica of a partition.
            UnknownBroker: the broker was never registered.
        """
        known = yield from self._images.locked()
        highest: int | None = yield images.read_epoch(broker_id)
        left = metadata.remove_broker(known.image, broker_id=broker_id, known=highest is not None)
        return None, (yield from self._images.store(known, left))

    async def renew_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        """Renew a registration, with the time of the control plane's clock.

        Raises:
            StaleBroker: another incarnation owns the id, or the broker is not registered.
        """

        def renew() -> Operation[bool]:
            count: int = yield images.renew_broker(broker_id, incarnation)
            return count == 1

        if not await self._database.read(renew):
            metadata.check_incarnation(
                await self.image(), broker_id=broker_id, incarnation=incarnation
            )
            raise StaleBroker(broker_id, registered=False)

    async def expire_brokers(self, timeout_ms: int, *, by: int) -> list[int]:
        """Unregister brokers that have not renewed their registrations; return their ids.

        These are the brokers whose last renewal is more than `timeout_ms` older than that of the
        caller, the broker `by`. After an outage of the control plane, callers first wait until
        the other brokers could renew theirs.
        """
        overdue = await self._overdue(timeout_ms, by)
        return await self._expire_overdue(timeout_ms, by) if overdue else []

    @query
    def _overdue(self, timeout_ms: int, by: int) -> Operation[list[tuple[int]]]:
        found: list[tuple[int]] = yield images.read_overdue(timeout_ms, by)
        return found

    @image_operation
    def _expire_overdue(
        self, timeout_ms: int, by: int
    ) -> Operation[tuple[list[int], StampedImage]]:
        known = yield from self._images.locked()
        expired = [broker_id for (broker_id,) in (yield images.lock_overdue(timeout_ms, by))]
        left = metadata.expire_brokers(known.image, expired)
        return expired, (yield from self._images.store(known, left))

    @image_operation
    def create_topic(
        self,
        *,
        name: str,
        topic_id: UUID,
        partitions: Sequence[Sequence[int]],
        configs: Mapping[str, str],
        internal: bool = False,
        min_insync_replicas: int = 1,
    ) -> Operation[tuple[Topic, StampedImage]]:
        """Create a topic. `partitions` has the replicas of each partition, the leader first.

        Opens the first epochs of replicated partitions, unless the topic is diskless. The topic's
        setting `min_insync_replicas` determines their acknowledgement quorums.

        Raises:
            TopicExists, TopicIdTaken: another topic has the name or the id.
            InvalidTopicName, InvalidPartitions, InvalidReplicas: the name, count or replicas are
                invalid.
            InvalidQuorum: a replicated partition has fewer replicas than `min_insync_replicas`.
        """
        created, stored = yield from self._images.apply(
            partial(
                metadata.create_topic,
                name=name,
                topic_id=topic_id,
                partitions=partitions,
                configs=configs,
                internal=internal,
            )
        )
        yield from open_first(stored.image, created, created.partitions, min_insync_replicas)
        return created, stored

    @image_operation
    def delete_topic(self, topic_id: UUID) -> Operation[tuple[Topic, StampedImage]]:
        """Delete a topic and the offsets of all groups in it; return the deleted topic.

        Raises:
            UnknownTopic: no topic has this id.
        """
        return self._images.apply(partial(metadata.delete_topic, topic_id=topic_id))

    @image_operation
    def create_partitions(
        self,
        *,
        topic_id: UUID,
        expected_count: int,
        new: Sequence[Sequence[int]],
        min_insync_replicas: int = 1,
    ) -> Operation[tuple[Topic, StampedImage]]:
        """Add partitions to a topic. `new` and `min_insync_replicas` are as in `create_topic`.

        Raises:
            UnknownTopic: no topic has this id.
            StaleTopic: the topic does not have `expected_count` partitions.
            InvalidPartitions, InvalidReplicas: `new` is empty or too long, or a list of replicas is
                invalid.
            InvalidQuorum: as in `create_topic`.
        """
        topic, stored = yield from self._images.apply(
            partial(
                metadata.create_partitions,
                topic_id=topic_id,
                expected_count=expected_count,
                new=new,
            )
        )
        added = topic.partitions[-len(new) :]
        yield from open_first(stored.image, topic, added, min_insync_replicas)
        return topic, stored

    @image_operation
    def set_topic_configs(
        self, *, topic_id: UUID, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> Operation[tuple[Topic, StampedImage]]:
        """Replace a topic's own configs if they equal `expected`, or in any case if that is None.

        Raises:
            UnknownTopic: no topic has this id.
            StaleTopic: the configs differ from `expected`.
        """
        return self._images.apply(
            partial(
                metadata.set_topic_configs, topic_id=topic_id, configs=configs, expected=expected
            )
        )

    @image_operation
    def set_broker_configs(
        self, *, broker: str, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> Operation[tuple[None, StampedImage]]:
        """Replace a broker's dynamic configs. An empty name stands for the cluster-wide defaults.

        Raises:
            StaleConfigs: the configs differ from `expected`, unless that is None.
        """
        known = yield from self._images.locked()
        image = metadata.set_broker_configs(
            known.image, broker=broker, configs=configs, expected=expected
        )
        return None, (yield from self._images.store(known, image))

    @image_operation
    def set_entity_configs(
        self,
        *,
        kind: str,
        changes: Mapping[str, Mapping[str, str]],
        expected: Mapping[str, Mapping[str, str]],
    ) -> Operation[tuple[None, StampedImage]]:
        """Replace the configs of entities of one kind, all or none.

        `changes` and `expected` are by entity name. Empty configs delete an entity.

        Raises:
            StaleConfigs: the configs of an entity differ from the `expected` ones.
            InvalidError: there would be too many entities, or an entity's name and configs are too
                long.
        """
        known = yield from self._images.locked()
        image = metadata.set_entity_configs(
            known.image, kind=kind, changes=changes, expected=expected
        )
        return None, (yield from self._images.store(known, image))

    @operation()
    def allocate_producer_ids(self, count: int) -> Operation[range]:
        """Allocate `count` producer ids. No id is ever allocated twice."""
        metadata.producer_ids(0, count)
        stop: int = yield images.allocate_producer_ids(count)
        return metadata.producer_ids(stop - count, count)

    @operation()
    def skip_producer_ids(self, count: int) -> Operation[int]:
        """Leave out `count` producer ids, which are never allocated; return the next one."""
        following: int = yield images.allocate_producer_ids(count)
        return following
