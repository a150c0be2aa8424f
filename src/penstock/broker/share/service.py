"""Share groups of one broker: sessions, share partitions, dead letters, and group settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.base.metrics import Metrics, Sample, counter, counters, gauge
from penstock.base.pause import pause
from penstock.broker.group_configs import GROUP_KIND, ConfigsOfGroups
from penstock.broker.metadata.delta import delta_of
from penstock.broker.share.dead_letters.writer import DeadLetterWriter
from penstock.broker.share.offsets import ShareOffsets
from penstock.broker.share.sessions import ShareSession, ShareSessions
from penstock.broker.share.settings import ShareSettings, share_settings
from penstock.broker.share.shares import Shares, place_of

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.base.system import Clock
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.fetch.operation import FetchHub
    from penstock.broker.identity import Identity
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.settings import BrokerSettings
    from penstock.broker.share.stored import StoredShare
    from penstock.broker.share.values import Cause
    from penstock.broker.topic_admin import TopicAdmin
    from penstock.control import ControlPlane, MetadataImage
    from penstock.partitions import Partition

DEAD_LETTER_LOOK_SECONDS: Final = 60.0
"""Interval of the search for share partitions with records that wait for dead letters."""

logger = logging.getLogger(__name__)


class ShareMetrics(Metrics, prefix="penstock_share_"):
    sessions = gauge("sessions", "Share sessions held by this broker.")
    partitions = gauge(
        "partitions",
        "Share partitions in this broker's memory; a partition counts once for each group.",
    )
    acquired = counter(
        "acquired_records_total",
        "Records acquired by members of share groups, redeliveries included.",
    )
    undeliverable: dict[str, int] = counters(
        "given_up_records_total",
        "Records that share groups archived: rejected, or delivered too often.",
        "cause",
    )
    dead_letters: dict[str, int] = counters(
        "dead_letters_total",
        "Dead letters written for records of share groups, by cause.",
        "cause",
    )
    missing: dict[str, int] = counters(
        "dead_letters_missing_total",
        "Archived records without a dead letter, by reason: deleted, aborted (in an aborted"
        " transaction), or unwanted (their group has no dead letter topic, or reads from it).",
        "reason",
    )
    waiting = gauge(
        "dead_letters_waiting_partitions",
        "Share partitions with records whose dead letters are not written yet.",
    )
    failures = counter(
        "dead_letter_failures_total",
        "Failed attempts to write dead letters of a share partition.",
    )


class ShareService:
    """Service for share groups that read from this broker. Belongs to the event-loop thread."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        clock: Clock,
        cluster: ClusterMetadata,
        fetch_hub: FetchHub,
        coordinator: GroupCoordinator,
        partitions: PartitionRegistry,
        topic_admin: TopicAdmin,
        identity: Identity,
    ) -> None:
        self._stopped = False
        self._configs = ConfigsOfGroups(settings)
        self._cluster = cluster
        self.shares = Shares(
            control=control,
            clock=clock,
            settings_of=self.settings_of,
            changed=fetch_hub.advanced,
            archiving=self._archiving,
        )
        self.dead_letters = DeadLetterWriter(
            settings=settings,
            clock=clock,
            cluster=cluster,
            partitions=partitions,
            topic_admin=topic_admin,
            fetch_hub=fetch_hub,
            identity=identity,
            shares=self.shares,
            settings_of=self.settings_of,
            changed=fetch_hub.advanced,
        )
        self._partitions = partitions
        self._looking: asyncio.Task[None] | None = None
        self.sessions = ShareSessions(settings.group_share_max_share_sessions, self._ended)
        self.disconnected = self.sessions.disconnected
        self.offsets = ShareOffsets(control, self.shares.forget)
        self._ownership = coordinator.ownership
        self._seen: MetadataImage | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._stale = True

    def image_changed(self) -> None:
        """Retry dead letters, and delete the rows of deleted topics.

        The first call also deletes rows of topics that were deleted before the start.
        """
        seen, image = self._seen, self._cluster.image
        self._seen = image
        self._stale = self._stale or bool(delta_of(seen, image).gone)
        self.dead_letters.image_changed()
        if self._looking is None and not self._stopped:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        if self._stale and self._sweeping is None and not self._stopped:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        try:
            while self._stale:
                self._stale = False
                try:
                    await self.offsets.sweep(self._newest, self._ownership.owns)
                except PenstockError as error:
                    logger.warning("cannot delete share partitions of deleted topics: %s", error)
        finally:
            self._sweeping = None

    def _archiving(self, stored: StoredShare) -> None:
        self.dead_letters.look(stored)

    async def _look(self) -> None:
        while not self._stopped:
            try:
                await self.resume()
            except PenstockError as error:
                logger.warning("cannot find records that wait for dead letters: %s", error)
            await pause(DEAD_LETTER_LOOK_SECONDS)

    async def resume(self) -> None:
        if not any(kind == GROUP_KIND for kind, _ in self._cluster.image.entity_configs):
            return
        parsed = {key: place_of(key) for key in await self.offsets.keys()}
        mine = [
            key
            for key, (group, topic_id, index) in parsed.items()
            if self.settings_of(group).dead_letter_topic and self._source(group, topic_id, index)
        ]
        for key in await self.offsets.archiving(mine):
            group, topic_id, index = parsed[key]
            source = self._source(group, topic_id, index)
            if source is not None:
                await self.shares.open(group, source)

    def _source(self, group: str, topic_id: UUID, index: int) -> Partition | None:
        served = self._partitions.topics_by_id.get(topic_id.bytes)
        if served is None or index >= len(served.partitions):
            return None
        if served.diskless and not self._ownership.owns(group):
            return None
        return served.partitions[index]

    async def _newest(self) -> MetadataImage:
        await self._ownership.look_again()
        return self._cluster.image

    async def stop(self) -> None:
        """Finish saves under way and stop timers. Idempotent."""
        self._stopped = True
        for task in (self._sweeping, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await self.dead_letters.stop()
        await self.shares.stop()

    def settings_of(self, group_id: str) -> ShareSettings:
        return share_settings(self._configs.of(self._cluster.image.entity_configs, group_id))

    def _ended(self, session: ShareSession, said: bool) -> None:
        """Release a session's records; if its member ended it, the delivery does not count."""
        group_id, member = session.key
        self.shares.release(group_id, member, session.partitions, delivered=not said)

    def samples(self) -> Iterator[Sample]:
        metrics, writer = ShareMetrics(), self.dead_letters
        metrics.sessions, metrics.partitions = len(self.sessions), len(self.shares)
        metrics.acquired = self.shares.acquired
        metrics.undeliverable = _by_cause(self.shares.undeliverable)
        metrics.dead_letters = _by_cause(writer.written)
        metrics.missing = {
            "deleted": writer.deleted + self.shares.deleted,
            "aborted": writer.aborted,
            "unwanted": writer.unwanted,
        }
        metrics.waiting, metrics.failures = writer.waiting, writer.failures
        return metrics.samples()


def _by_cause(counts: Mapping[Cause, int]) -> dict[str, int]:
    return {cause.name.lower(): count for cause, count in counts.items()}
