"""Share groups of one broker: sessions, share partitions, and what groups are set to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base.metrics import Sample
from penstock.broker.group_configs import ConfigsOfGroups
from penstock.broker.share import metrics
from penstock.broker.share.sessions import ShareSession, ShareSessions
from penstock.broker.share.settings import ShareSettings, share_settings
from penstock.broker.share.shares import Shares, SharesParts

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.fetch.operation import FetchHub
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareParts:
    """What share groups use."""

    settings: BrokerSettings
    control: ControlPlane
    clock: Clock
    cluster: ClusterMetadata
    fetch_hub: FetchHub


class ShareService:
    """See the module's text. Belongs to the event-loop thread."""

    def __init__(self, parts: ShareParts) -> None:
        self._configs = ConfigsOfGroups(parts.settings)
        self._cluster = parts.cluster
        self.shares = Shares(
            SharesParts(control=parts.control, clock=parts.clock),
            settings_of=self.settings_of,
            changed=parts.fetch_hub.advanced,
        )
        self.sessions = ShareSessions(parts.settings.group_share_max_share_sessions, self._ended)
        self.disconnected = self.sessions.disconnected
        self.stop = self.shares.stop

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
