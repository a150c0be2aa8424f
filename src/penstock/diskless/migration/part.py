"""A broker's part in migrations of topics: its copies, requests, participants and commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.control.batch_index.migration_values import (
    MigrationParticipant,
    MigrationRequest,
    TopicMigration,
    TopicReplication,
)
from penstock.diskless.migration.copying import CopiedPartition, TopicCopy
from penstock.diskless.migration.filling import FilledLog, Flush, TopicFilling

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.control import Topic
    from penstock.control.batch_index.migration_values import ParticipantState
    from penstock.control.batch_index.operations import DisklessPlane
    from penstock.diskless.settings import DisklessSettings
    from penstock.objects import ObjectStore


class MigrationPart:
    """Creates the copies, requests and commits of this broker process.

    `ready_store` returns the object store. It raises NotServing if that cannot be used.
    """

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        ready_store: Callable[[], Awaitable[ObjectStore]],
        clock: Clock,
        randomness: Randomness,
        broker_id: int,
        incarnation: UUID,
    ) -> None:
        self.plane = plane
        self._settings = settings
        self._ready_store = ready_store
        self._clock = clock
        self._randomness = randomness
        self._broker_id = broker_id
        self._incarnation = incarnation

    async def copy_of(self, topic: Topic, partitions: Sequence[CopiedPartition]) -> TopicCopy:
        """Return a new copy of partitions whose logs this broker leads.

        Raises:
            NotServing: the store or the control plane cannot be used.
        """
        return TopicCopy(
            topic.topic_id,
            partitions,
            self._settings,
            plane=self.plane,
            store=await self._ready_store(),
            clock=self._clock,
        )

    async def filling_of(self, logs: Sequence[FilledLog], flush: Flush) -> TopicFilling:
        """Return a new filling of this broker's logs. Raises NotServing, as `copy_of` does."""
        return TopicFilling(
            logs,
            self._settings,
            plane=self.plane,
            store=await self._ready_store(),
            clock=self._clock,
            flush=flush,
        )

    def request(self, topic: Topic) -> MigrationRequest:
        return MigrationRequest(
            topic.topic_id, self._randomness.uuid(), self._broker_id, self._incarnation
        )

    def participant(
        self, state: ParticipantState, reason: str = "", copy: TopicCopy | None = None
    ) -> MigrationParticipant:
        return MigrationParticipant(
            broker_id=self._broker_id,
            incarnation=self._incarnation,
            state=state,
            reason=reason,
            partitions=() if copy is None else copy.partitions(),
        )

    async def commit(
        self,
        topic: Topic,
        configs: Mapping[str, str],
        copy: TopicCopy,
        request: MigrationRequest | None = None,
    ) -> None:
        """Commit this broker's copy, and those of the participants of a request.

        Raises the errors of `DisklessPlane.migrate_topic`.
        """
        await self.plane.migrate_topic(
            TopicMigration(
                topic_id=topic.topic_id,
                broker_id=self._broker_id,
                incarnation=self._incarnation,
                expected=topic.configs,
                configs=configs,
                partitions=copy.partitions(),
                migration_id=None if request is None else request.migration_id,
            )
        )

    async def replicate(
        self,
        topic: Topic,
        configs: Mapping[str, str],
        request: MigrationRequest,
        *,
        min_insync_replicas: int,
    ) -> None:
        """Commit the filled logs of all participants.

        Raises the errors of `DisklessPlane.replicate_topic`.
        """
        await self.plane.replicate_topic(
            TopicReplication(
                topic_id=topic.topic_id,
                broker_id=self._broker_id,
                incarnation=self._incarnation,
                expected=topic.configs,
                configs=configs,
                min_insync_replicas=min_insync_replicas,
                migration_id=request.migration_id,
            )
        )
