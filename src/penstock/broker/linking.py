"""Construction of a broker's link service from its other services."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import RetriableError
from penstock.control import StaleTopic
from penstock.control.rules.metadata import LINK_EPOCH, is_linked, link_epoch
from penstock.link.service import LinkParts, LinkService

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.listeners import Identity
    from penstock.broker.partitions.registry import PartitionRegistry
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
) -> LinkService:
    """Return the service of the links to the sources of this broker's linked topics."""

    async def raise_epoch(topic: Topic, epoch: int) -> None:
        """Store a higher link epoch, unless the topic has one or its link has ended."""
        for _ in range(ATTEMPTS_MAX):
            with suppress(StaleTopic):  # another change of the topic came first
                await cluster.control.set_topic_configs(
                    topic_id=topic.topic_id,
                    configs={**topic.configs, LINK_EPOCH: str(epoch)},
                    expected=topic.configs,
                )
            await cluster.refresh()
            newest = cluster.image.topics.get(topic.name)
            if newest is None or not is_linked(newest) or link_epoch(newest) >= epoch:
                return
            topic = newest
        raise EpochNotStored(f"topic {topic.name!r}: {LINK_EPOCH} = {epoch} could not be stored")

    def address() -> str:
        host, port = identity.endpoints[identity.listener]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    return LinkService(
        LinkParts(
            clock=clock,
            randomness=randomness,
            linked=partitions.linked,
            raise_epoch=raise_epoch,
            prepare=lambda: producer_ids.leave_low(randomness),
            address=address,
            as_client=identity.as_client,
        )
    )
