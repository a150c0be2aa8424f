"""One broker's part in topics that become diskless, or local: who it is, and what it brings."""

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
    from penstock.control.batch_index.plane import DisklessPlane
    from penstock.diskless.settings import DisklessSettings
    from penstock.objects import ObjectStore


class MigrationPart:
    """Makes copies, requests, participants and commits in the name of this process.

    `ready_store` readies the object store, and raises NotServing where it cannot.
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
        """What copies partitions with logs, which this broker leads, into the store.

        Raises:
            NotServing: store or control plane cannot be used.
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
        """What fills logs of this broker from the store; raises as `copy_of`."""
        return TopicFilling(
            logs,
            self._settings,
            plane=self.plane,
            store=await self._ready_store(),
            clock=self._clock,
            flush=flush,
        )

    def request(self, topic: Topic) -> MigrationRequest:
        """A new request to make a topic diskless, or local again, which others have a part in."""
        return MigrationRequest(
            topic.topic_id, self._randomness.uuid(), self._broker_id, self._incarnation
        )

    def participant(
        self, state: ParticipantState, reason: str = "", copy: TopicCopy | None = None
    ) -> MigrationParticipant:
        """How far this broker is in the migration of a topic, with the copy once it is fenced."""
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
        """Commit a copy, and the participants under a request: the topic is diskless from then on.

        Raises as `DisklessPlane.migrate_topic`.
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
        """Commit the logs of all participants: the topic has replicas from then on.

        Raises as `DisklessPlane.replicate_topic`.
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
