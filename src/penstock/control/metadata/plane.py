"""Control-plane interface of topics, brokers, their configs, and producer ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

from penstock.control.drivers.statements import Lock, Operation, OverDatabase
from penstock.control.errors import StaleBroker
from penstock.control.metadata import operations, rules
from penstock.control.metadata.images import Images, Rule, StampedImage
from penstock.control.values import ROLES, Broker, MetadataImage, Topic

T = TypeVar("T")


class Metadata(OverDatabase):
    """Methods of `ControlPlane` for metadata."""

    _images: Images

    @abstractmethod
    async def image(self) -> MetadataImage:
        """Return the newest committed image; the same object until something changes."""

    @abstractmethod
    def _publish(self, image: StampedImage) -> None: ...
    async def _apply(self, make: Callable[[], Operation[tuple[T, StampedImage]]]) -> T:
        """Run an operation that changes metadata, publish its image, and return its answer."""
        answer, image = await self._database.change(
            partial(self._images.change, make), lock=Lock.METADATA
        )
        self._publish(image)
        return answer

    async def _rule(self, rule: Rule[T]) -> T:
        return await self._apply(partial(self._images.apply, rule))

    async def register_broker(
        self,
        *,
        broker_id: int,
        host: str,
        port: int,
        rack: str | None,
        incarnation: UUID,
        endpoints: Sequence[tuple[str, str, int]] = (),
        roles: Sequence[str] = ROLES,
    ) -> Broker:
        """Register an incarnation in a new, higher epoch; idempotent for the same arguments."""
        return await self._apply(
            partial(
                operations.register_broker,
                self._images,
                broker_id=broker_id,
                host=host,
                port=port,
                rack=rack,
                incarnation=incarnation,
                endpoints=endpoints,
                roles=roles,
            )
        )

    async def unregister_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        """Remove a broker, if this incarnation still owns the id.

        Raises:
            StaleBroker: a newer incarnation owns it.
        """

        def rule(image: MetadataImage) -> tuple[MetadataImage, None]:
            left = rules.unregister_broker(image, broker_id=broker_id, incarnation=incarnation)
            return left, None

        await self._rule(rule)

    async def remove_broker(self, broker_id: int) -> None:
        """Delete the configs of a broker that is gone permanently; its id may register again.

        Raises:
            BrokerInUse: it is registered, or holds or will hold replicas.
            UnknownBroker: it was never registered.
        """
        await self._apply(partial(operations.remove_broker, self._images, broker_id))

    async def renew_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        """Renew a registration, by the clock of the control plane.

        Raises:
            StaleBroker: another incarnation owns the id, or it is not registered.
        """
        renew = partial(operations.renew_broker, broker_id, incarnation)
        if not await self._database.read(renew):
            rules.check_incarnation(
                await self.image(), broker_id=broker_id, incarnation=incarnation
            )
            raise StaleBroker(broker_id, registered=False)

    async def expire_brokers(self, timeout_ms: int, *, by: int) -> list[int]:
        """Remove brokers renewed `timeout_ms` before the calling broker, `by`; return them.

        After an outage of the control plane, callers first give others time to renew.
        """
        if not await self._database.read(partial(operations.overdue, timeout_ms, by)):
            return []
        expire = partial(operations.expire_brokers, self._images, timeout_ms, by)
        return await self._apply(expire)

    async def create_topic(
        self,
        *,
        name: str,
        topic_id: UUID,
        partitions: Sequence[Sequence[int]],
        configs: Mapping[str, str],
        internal: bool = False,
        min_insync_replicas: int = 1,
    ) -> Topic:
        """Create a topic; `partitions` lists each partition's replicas, the leader first.

        Opens the first epochs of replicated partitions, unless the topic is diskless; the topic's
        setting `min_insync_replicas` determines their ack quorums.

        Raises:
            TopicExists, TopicIdTaken: the name or the id is taken.
            InvalidTopicName, InvalidPartitions, InvalidReplicas: by Kafka's rules.
            InvalidQuorum: partitions have fewer replicas than `min_insync_replicas`.
        """
        return await self._apply(
            partial(
                operations.create_topic,
                self._images,
                min_insync_replicas=min_insync_replicas,
                name=name,
                topic_id=topic_id,
                partitions=partitions,
                configs=configs,
                internal=internal,
            )
        )

    async def delete_topic(self, topic_id: UUID) -> Topic:
        """Delete a topic and every group's offsets in it; return the deleted topic.

        Raises:
            UnknownTopic: no topic of this id.
        """
        return await self._rule(partial(rules.delete_topic, topic_id=topic_id))

    async def create_partitions(
        self,
        *,
        topic_id: UUID,
        expected_count: int,
        new: Sequence[Sequence[int]],
        min_insync_replicas: int = 1,
    ) -> Topic:
        """Add partitions to a topic that has `expected_count` of them, as `create_topic` does.

        Raises:
            UnknownTopic: no topic of this id.
            StaleTopic: it has another number of partitions.
            InvalidPartitions, InvalidReplicas: none are added, or one is malformed.
            InvalidQuorum: as `create_topic`.
        """
        return await self._apply(
            partial(
                operations.create_partitions,
                self._images,
                min_insync_replicas=min_insync_replicas,
                topic_id=topic_id,
                expected_count=expected_count,
                new=new,
            )
        )

    async def set_topic_configs(
        self, *, topic_id: UUID, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> Topic:
        """Replace a topic's own configs if they are `expected`; None replaces any.

        Raises:
            UnknownTopic: no topic of this id.
            StaleTopic: they have changed.
        """
        return await self._rule(
            partial(rules.set_topic_configs, topic_id=topic_id, configs=configs, expected=expected)
        )

    async def set_broker_configs(
        self, *, broker: str, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> None:
        """Replace a broker's dynamic configs; the empty name is the cluster-wide default.

        Raises:
            StaleConfigs: they are not the `expected` ones.
        """

        def rule(image: MetadataImage) -> tuple[MetadataImage, None]:
            changed = rules.set_broker_configs(
                image, broker=broker, configs=configs, expected=expected
            )
            return changed, None

        await self._rule(rule)

    async def set_entity_configs(
        self,
        *,
        kind: str,
        changes: Mapping[str, Mapping[str, str]],
        expected: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Replace the configs of some entities of a kind, all or none; empty configs delete an
        entity.

        Raises:
            StaleConfigs: the configs of an entity are not the `expected` ones.
            InvalidError: there would be too many, or too long ones.
        """

        def rule(image: MetadataImage) -> tuple[MetadataImage, None]:
            changed = rules.set_entity_configs(image, kind=kind, changes=changes, expected=expected)
            return changed, None

        await self._rule(rule)

    async def allocate_producer_ids(self, count: int) -> range:
        """Allocate `count` producer ids that are never allocated again."""
        rules.producer_ids(0, count)
        return await self._database.change(partial(operations.allocate_producer_ids, count))
