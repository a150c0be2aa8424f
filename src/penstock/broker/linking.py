"""Construction of a broker's link service from its other services."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import RetriableError
from penstock.broker.net.listeners import own_address
from penstock.control import StaleTopic
from penstock.control.rules.metadata import LINK_EPOCH, LINK_TOPIC_ID, is_linked, link_epoch
from penstock.link.service import LinkParts, LinkService, is_kept

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.listeners import Identity
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.topics.admin import TopicAdmin
    from penstock.broker.transactions.coordinator import ProducerIds
    from penstock.control import Topic


ATTEMPTS_MAX: Final = 5
"""Number of attempts to store a link epoch while other changes of the topic come first."""


class EpochNotStored(RetriableError):
    """Link epoch that could not be stored because the topic's configuration kept changing."""

    code: ClassVar[str] = "unknown_server_error"


def link_service(
    *,
    clock: Clock,
    randomness: Randomness,
    cluster: ClusterMetadata,
    partitions: PartitionRegistry,
    producer_ids: ProducerIds,
    identity: Identity,
    topic_admin: TopicAdmin,
) -> LinkService:
    """Return the service of the links to the sources of this broker's linked topics."""

    async def keep(topic: Topic, epoch: int, source_id: str) -> None:
        """Store a higher link epoch and the id of the source's topic, unless the link has ended."""
        for _ in range(ATTEMPTS_MAX):
            known = {LINK_EPOCH: str(max(epoch, link_epoch(topic)))}
            known |= {LINK_TOPIC_ID: source_id} if source_id else {}
            with suppress(StaleTopic):  # another change of the topic came first
                await cluster.control.set_topic_configs(
                    topic_id=topic.topic_id,
                    configs={**topic.configs, **known},
                    expected=topic.configs,
                )
            await cluster.refresh()
            newest = cluster.image.topics.get(topic.name)
            if newest is None or not is_linked(newest) or is_kept(newest, epoch, source_id):
                return
            topic = newest
        raise EpochNotStored(f"topic {topic.name!r}: {LINK_EPOCH} = {epoch} could not be stored")

    async def add_partitions(topic: Topic, total: int) -> None:
        """Add partitions up to a total, unless another broker has done so."""
        new = topic_admin.plan_added(topic, total)
        with suppress(StaleTopic):
            await cluster.control.create_partitions(
                topic_id=topic.topic_id, expected_count=len(topic.partitions), new=new
            )
        await cluster.refresh()

    return LinkService(
        LinkParts(
            clock=clock,
            randomness=randomness,
            linked=partitions.linked,
            keep=keep,
            add_partitions=add_partitions,
            prepare=lambda: producer_ids.leave_low(randomness),
            address=lambda: own_address(identity),
            as_client=identity.as_client,
        )
    )
