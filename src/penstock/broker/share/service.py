"""Share groups of one broker: sessions, share partitions, and what groups are set to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError
from penstock.base.metrics import Sample
from penstock.broker.group_configs import ConfigsOfGroups
from penstock.broker.metadata.delta import delta_of
from penstock.broker.share import metrics
from penstock.broker.share.offsets import ShareOffsets
from penstock.broker.share.sessions import ShareSession, ShareSessions
from penstock.broker.share.settings import ShareSettings, share_settings
from penstock.broker.share.shares import Shares, SharesParts

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.fetch.operation import FetchHub
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane, MetadataImage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareParts:
    """What share groups use."""

    settings: BrokerSettings
    control: ControlPlane
    clock: Clock
    cluster: ClusterMetadata
    fetch_hub: FetchHub
    coordinator: GroupCoordinator


class ShareService:
    """See the module's text. Belongs to the event-loop thread."""

    def __init__(self, parts: ShareParts) -> None:
        self._stopped = False
        self._configs = ConfigsOfGroups(parts.settings)
        self._cluster = parts.cluster
        self.shares = Shares(
            SharesParts(control=parts.control, clock=parts.clock),
            settings_of=self.settings_of,
            changed=parts.fetch_hub.advanced,
        )
        self.sessions = ShareSessions(parts.settings.group_share_max_share_sessions, self._ended)
        self.disconnected = self.sessions.disconnected
        self.offsets = ShareOffsets(parts.control, self.shares.forget)
        self._ownership = parts.coordinator.ownership
        self._seen: MetadataImage | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._stale = True

    def image_changed(self) -> None:
        """Topics may be gone: what is stored of them goes too, once at the start in any case."""
        seen, image = self._seen, self._cluster.image
        self._seen = image
        self._stale = self._stale or bool(delta_of(seen, image).gone)
        if self._stale and self._sweeping is None and not self._stopped:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        try:
            while self._stale:
                self._stale = False
                try:
                    await self.offsets.sweep(self._newest, self._ownership.owns)
                except PenstockError as error:
                    logger.warning("share partitions of deleted topics are left: %s", error)
        finally:
            self._sweeping = None

    async def _newest(self) -> MetadataImage:
        await self._ownership.look_again()
        return self._cluster.image

    async def stop(self) -> None:
        """Finish what is being saved, keep no timer. Idempotent."""
        self._stopped = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self.shares.stop()

    def settings_of(self, group_id: str) -> ShareSettings:
        """What a group is set to."""
        return share_settings(self._configs.of(self._cluster.image.entity_configs, group_id))

    def _ended(self, session: ShareSession, said: bool) -> None:
        """Who says that it goes has acknowledged what it looked at; of others nobody knows."""
        group_id, member = session.key
        self.shares.release(group_id, member, session.partitions, delivered=not said)

    def samples(self) -> Iterator[Sample]:
        yield Sample(metrics.SESSIONS, len(self.sessions))
        yield Sample(metrics.PARTITIONS, len(self.shares))
        yield Sample(metrics.ACQUIRED, self.shares.acquired)
        for cause, count in self.shares.given_up.items():
            yield Sample(metrics.GIVEN_UP, count, (cause.name.lower(),))
