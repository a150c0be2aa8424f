"""Participant of a migration from diskless to replicated: fills the new logs of this broker.

The logs are filled while the topic is in use. Then the control plane rejects all appends, and the
remaining records are filled (`diskless/migration/filling.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from penstock.base.errors import BugError
from penstock.base.ids import TopicPartition
from penstock.broker.diskless import is_diskless
from penstock.broker.errors import UnknownTopicId
from penstock.broker.migration.participant import MigrationFailed, Participant
from penstock.control.batch_index.replicating_rules import epoch_of_copies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.migration.participant import MigrationContext
    from penstock.control import MigrationParticipant, MigrationRequest, Topic
    from penstock.control.batch_index.migration_values import ParticipantState
    from penstock.diskless.migration import MigrationPart, TopicFilling


class FillingParticipant(Participant["TopicFilling"]):
    goal: ClassVar[str] = "replicated"
    needs_request: ClassVar[bool] = True

    def __init__(
        self,
        context: MigrationContext,
        part: MigrationPart,
        topic: Topic,
        targets: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """Create the participant; at the coordinator, `targets` are the new replicas."""
        super().__init__(context, part, topic)
        self._targets = targets
        self._logs: list[TopicPartition] = []

    def brokers(self) -> set[int]:
        return {broker_id for row in self._now().partitions for broker_id in row.target}

    def is_made(self, topic: Topic) -> bool:
        return not is_diskless(topic)

    async def open(self, request: MigrationRequest) -> MigrationRequest:
        """Store a request with the new replicas; return the open request."""
        opened = await self.part.plane.open_migration(request, self._targets)
        await self._context.cluster.refresh()
        return opened

    async def begin(self) -> TopicFilling:
        from penstock.diskless.migration import FilledLog

        topic, me, partitions = self._now(), self._context.node_id, self._context.partitions
        rows = [row for row in topic.partitions if me in row.target]
        self._logs = [TopicPartition(topic.name, row.index) for row in rows]
        made = await partitions.begin_logs(topic, [row.index for row in rows])
        logs = [FilledLog(log, epoch_of_copies(row)) for log, row in zip(made, rows, strict=True)]
        filling = await self.part.filling_of(logs, self._context.commits.flush_then)
        needed, directory = await filling.needed_bytes(), self._context.store.directory
        free = shutil.disk_usage(directory).free
        if needed > free:
            raise MigrationFailed(
                f"topic {topic.name!r}: its {len(rows)} partitions on this broker need {needed}"
                f" bytes, but {directory} has {free} bytes free"
            )
        return filling

    async def stop_producers(self, request: MigrationRequest | None) -> None:
        if request is None:
            raise BugError(f"topic {self.topic.name!r} is to get replicas without a request")
        async with self.fenced():
            await self.part.plane.fence_topic(request)
            await self.work.finish()
        for where in self._logs:
            self._context.partitions.finish_log(where)

    def share(self, state: ParticipantState, reason: str = "") -> MigrationParticipant:
        return self.part.participant(state, reason)

    async def commit(
        self, topic: Topic, configs: Mapping[str, str], request: MigrationRequest | None
    ) -> None:
        """Make the topic replicated; raises as `DisklessPlane.replicate_topic`."""
        if request is None:
            raise BugError(f"topic {topic.name!r} is to get replicas without a request")
        config = self._context.store.config_of(topic.name)
        await self.part.replicate(
            topic, configs, request, min_insync_replicas=config.min_insync_replicas
        )

    async def ended(self, *, made: bool) -> None:
        """Delete the filled logs that have not become replicas."""
        self.state = self.goal if made else "copying"
        await self._context.partitions.drop_logs(self._logs)

    def _now(self) -> Topic:
        found = self._context.partitions.topics_by_id.get(self.topic.topic_id.bytes)
        if found is None:
            raise UnknownTopicId(f"topic {self.topic.name!r} was deleted")
        return found.topic
