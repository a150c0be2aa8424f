"""Core of consumer groups: passes each event to its handler.

Source: Kafka's `GroupCoordinatorService` and `GroupMetadataManager`, consumer protocol; KIP-848.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from penstock.broker.coordination.classic import Heartbeat, LeaveGroup, SyncGroup
from penstock.broker.coordination.consumer import classic_requests, heartbeat, queries
from penstock.broker.coordination.consumer.events import ConsumerHeartbeat
from penstock.broker.coordination.consumer.group import ConsumerGroup
from penstock.broker.coordination.consumer.state import ConsumerLimits, ConsumerState
from penstock.broker.coordination.core import Computed, Saved, SaveFailed
from penstock.broker.coordination.group_events import (
    CommitCheck,
    DeleteGroup,
    DescribeGroup,
    FetchCheck,
    OffsetDeleteCheck,
)
from penstock.broker.coordination.kinds import Handler
from penstock.broker.coordination.modern.group import Parked
from penstock.broker.coordination.turn import Turn


class ConsumerGroups(ConsumerState):
    def __init__(self, turn: Turn, limits: ConsumerLimits | None = None) -> None:
        super().__init__(turn, limits)
        self.handlers: Mapping[type, Handler] = {
            ConsumerHeartbeat: partial(heartbeat.heartbeat, self),
            SyncGroup: partial(classic_requests.sync, self),
            Heartbeat: partial(classic_requests.heartbeat, self),
            LeaveGroup: partial(classic_requests.leave, self),
            DescribeGroup: partial(queries.describe, self),
            CommitCheck: partial(queries.check_commit, self),
            FetchCheck: partial(queries.check_fetch, self),
            DeleteGroup: self.delete,
            OffsetDeleteCheck: self.check_offset_delete,
            Computed: self.computed,
            Saved: self.saved,
            SaveFailed: self.save_failed,
        }

    def resume(self, group: ConsumerGroup, parked: Parked) -> None:
        if isinstance(parked.event, classic_requests.Rejoin):
            classic_requests.resume(self, group, parked)
        else:
            heartbeat.resume(self, group, parked)
