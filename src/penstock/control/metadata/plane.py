"""The part of the control plane that keeps topics, brokers, their configs and producer ids."""

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
    """Methods of `ControlPlane`, over either database."""

    _images: Images

    @abstractmethod
    async def image(self) -> MetadataImage:
        """The newest committed image; the same object as long as nothing changed."""

    @abstractmethod
    def _publish(self, image: StampedImage) -> None:
        """Show an image whose commit is durable."""

    async def _apply(self, make: Callable[[], Operation[tuple[T, StampedImage]]]) -> T:
        """Run an operation that changes metadata; what it answers."""
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
        """Register one incarnation of a broker and give it a new, higher epoch.

        Idempotent for the same incarnation, addresses and roles, which are as in `Broker`.
        """
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
        """Forget what is set for a broker that is gone for good; its id may register again.

        Raises:
            BrokerInUse: it is registered, or holds replicas, or is to.
            UnknownBroker: it never was registered.
        """
        await self._apply(partial(operations.remove_broker, self._images, broker_id))

    async def renew_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        """Say that a broker lives, by the clock of the plane itself.

        Raises:
            StaleBroker: another incarnation owns the id, or it is not registered (any more).
        """
        renew = partial(operations.renew_broker, broker_id, incarnation)
        if not await self._database.read(renew):
            rules.check_incarnation(
                await self.image(), broker_id=broker_id, incarnation=incarnation
            )
            raise StaleBroker(broker_id, registered=False)

    async def expire_brokers(self, timeout_ms: int, *, by: int) -> list[int]:
        """Remove brokers whose last renewal is so much older than that of one; which ones.

        Any registered broker may do it, `by` its own renewal: however long this call waits, it
        removes nobody who could renew itself as well as the caller. Callers give others time to
        renew after the plane itself was away.
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

        Partitions with several replicas, unless the topic is diskless, are in their first epoch
        then; `min_insync_replicas` is the topic's setting, which their ack quorums come from.

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
        """Delete a topic and every group's offsets in it; returns what it was.

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
        """Add partitions to a topic that has `expected_count` of them; the rest as `create_topic`.

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
        """Replace a topic's own configs, if they still are `expected` (None: whatever they are).

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
            StaleConfigs: they are not `expected` any more.
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
        """Replace the configs of some entities of a kind, all or none; empty ones end them.

        Raises:
            StaleConfigs: those of one are not what is `expected` of it, or nothing.
            InvalidError: there would be too many, or too long ones.
        """

        def rule(image: MetadataImage) -> tuple[MetadataImage, None]:
            changed = rules.set_entity_configs(image, kind=kind, changes=changes, expected=expected)
            return changed, None

        await self._rule(rule)

    async def allocate_producer_ids(self, count: int) -> range:
        """Hand out `count` producer ids that were never handed out and never will be again."""
        rules.producer_ids(0, count)
        return await self._database.change(partial(operations.allocate_producer_ids, count))
