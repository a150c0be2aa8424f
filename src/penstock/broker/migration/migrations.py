"""Migrations that this broker coordinates, or in which it participates.

A request waits for its migration for at most `SWITCH_WAIT_SECONDS`; the migration then continues
without it. A repeated request waits for the same migration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.metrics import Metrics, Sample, counter, counters, gauge
from penstock.broker.metadata.leaders import check_local, is_diskless
from penstock.broker.migration.leader import Changed, MigrationFollower, MigrationLeader
from penstock.broker.migration.participant import (
    FillingParticipant,
    LocalParticipant,
    MigrationContext,
    MigrationFailed,
    Participant,
)
from penstock.broker.net.errors import InvalidConfig
from penstock.broker.topics.plan import plan_replicas
from penstock.control import MigrationParticipant, MigrationRequest, Topic
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.control.rules.epochs import ack_quorum

if TYPE_CHECKING:
    from penstock.diskless.topics.migration import MigrationPart


class MigrationRunning(RetriableError):
    """The migration is still running; a repeated request waits for it."""

    code: ClassVar[str] = "request_timed_out"


SWITCH_WAIT_SECONDS: Final = 20.0
"""Maximum time that a request waits for a migration, which continues afterwards."""

logger = logging.getLogger(__name__)

_Running = MigrationLeader | MigrationFollower


class SwitchMetrics(Metrics, prefix="penstock_topic_"):
    running = gauge("switches_running", "Topics that this broker makes diskless or replicated.")
    copied_bytes = counter(
        "switch_copied_bytes_total",
        "Bytes copied by this broker to make topics diskless or replicated.",
    )
    outcomes: dict[str, int] = counters(
        "switches_total", "Ended switches to diskless or replicated topics, by outcome.", "outcome"
    )


class TopicMigrations:
    """Running migrations of this broker, by topic id; belongs to the event loop."""

    def __init__(self, context: MigrationContext) -> None:
        self._context = context
        self._running: dict[UUID, tuple[_Running, asyncio.Task[None]]] = {}
        self._looked = False
        """Whether the stored migrations, also of this broker's earlier process, were read."""
        self._copied_bytes = 0
        self._metrics = SwitchMetrics()
        self._metrics.outcomes.update(done=0, failed=0)

    def check(self, topic: Topic) -> None:
        """Check that a topic can become diskless, or replicated if it is diskless.

        Raises:
            InvalidConfig: this broker has no object store, or the topic is internal.
            InvalidReplicationFactor: too few brokers can hold a replica.
            InvalidQuorum: `min.insync.replicas` is above the number of replicas.
        """
        if self._context.diskless is None:
            check_local(topic.name, {DISKLESS_CONFIG: "true"})
        if is_diskless(topic):
            self._targets(topic)
            return
        if topic.internal:
            raise InvalidConfig(f"topic {topic.name!r} is internal and cannot become diskless")

    def _targets(self, topic: Topic) -> list[tuple[int, ...]]:
        levels = self._context.topic_admin.levels()
        targets = plan_replicas(topic, image=self._context.cluster.image, levels=levels)
        minimum = self._context.store.config_of(topic.name).min_insync_replicas
        ack_quorum(min(map(len, targets)), minimum)
        return targets

    async def migrate(self, topic: Topic, changed: Changed) -> None:
        """Make a local topic diskless, or a diskless topic replicated, and wait for the end.

        If a migration of the topic is running, wait for that migration.

        Raises:
            MigrationRunning: the time limit passed; the migration continues.
            MigrationFailed, MigrationRefused, ObjectLeaseLost: the topic is unchanged.
            PenstockError: the object store, a log or the control plane failed; the topic is
                unchanged.
        """
        service = self._context.diskless
        if service is None:
            check_local(topic.name, {DISKLESS_CONFIG: "true"})
            return
        if topic.topic_id not in self._running:
            participant: Participant[Any] = (
                FillingParticipant(self._context, service.migration, topic, self._targets(topic))
                if is_diskless(topic)
                else LocalParticipant(self._context, service.migration, topic)
            )
            self._begin(MigrationLeader(self._context, participant, changed))
        running, task = self._running[topic.topic_id]
        done, _ = await asyncio.wait([task], timeout=SWITCH_WAIT_SECONDS)
        if not done:
            raise MigrationRunning(
                f"topic {topic.name!r} is becoming {running.participant.goal}:"
                f" {running.participant.state},"
                f" {running.participant.copied_bytes} bytes copied here; repeat the request to wait"
            )
        task.result()
        goal = running.participant.goal
        if running.participant.state != goal:
            raise MigrationFailed(f"topic {topic.name!r} did not become {goal}; repeat the request")

    async def look(self) -> None:
        """Join migrations that other brokers coordinate; cancel those whose coordinator failed."""
        service = self._context.diskless
        alone = self._looked and len(self._context.cluster.image.brokers) < 2
        if service is None or alone:
            return
        part = service.migration
        running = await part.plane.running_migrations()
        self._looked = True
        if running:
            await self._context.cluster.refresh()
        for request, participants in running:
            owner = self._context.cluster.image.broker(request.broker_id)
            is_own = self._is_own(request)
            if is_own and request.topic_id in self._running:
                continue
            # A request of this broker without a migration was stored after it had failed here.
            if is_own or owner is None or owner.incarnation != request.incarnation:
                await part.plane.close_migration(request)
            elif not any([self._is_own(p) and p.state == "failed" for p in participants]):
                self._join(part, request)

    def _is_own(self, row: MigrationRequest | MigrationParticipant) -> bool:
        me = self._context.cluster.image.broker(self._context.node_id)
        return me is not None and (row.broker_id, row.incarnation) == (
            me.broker_id,
            me.incarnation,
        )

    def _join(self, part: MigrationPart, request: MigrationRequest) -> None:
        found = self._context.partitions.topics_by_id.get(request.topic_id.bytes)
        if found is None or request.topic_id in self._running:
            return
        kind = FillingParticipant if is_diskless(found.topic) else LocalParticipant
        participant: Participant[Any] = kind(self._context, part, found.topic)
        if self._context.node_id in participant.brokers():
            self._begin(MigrationFollower(self._context, participant, request))

    def _begin(self, running: _Running) -> None:
        task = asyncio.ensure_future(running.run())
        self._running[running.participant.topic.topic_id] = (running, task)
        task.add_done_callback(lambda _: self._ended(running, task))

    def _ended(self, running: _Running, task: asyncio.Task[None]) -> None:
        participant = running.participant
        name = participant.topic.name
        del self._running[participant.topic.topic_id]
        self._copied_bytes += participant.copied_bytes
        if task.cancelled():
            return
        error = task.exception()
        goal = participant.goal
        if error is None and participant.state == goal:
            self._metrics.outcomes["done"] += 1
            logger.info("topic %s is %s: %d bytes", name, goal, participant.copied_bytes)
            return
        self._metrics.outcomes["failed"] += 1
        if error is None or isinstance(error, PenstockError):
            logger.warning(
                "migration of topic %s to %s failed: %s", name, goal, error or "cancelled"
            )
        else:
            logger.error("migration of topic %s to %s failed", name, goal, exc_info=error)

    async def stop(self) -> None:
        """Cancel all migrations. A commit that was sent already may still take effect."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def view(self, topic_id: UUID) -> dict[str, Any] | None:
        found = self._running.get(topic_id)
        if found is None:
            return None
        participant = found[0].participant
        return {
            "state": participant.state,
            "passes": participant.passes,
            "copied_bytes": participant.copied_bytes,
            "started_ms": participant.started_ms,
        }

    def samples(self) -> Iterator[Sample]:
        running = sum([found.participant.copied_bytes for found, _ in self._running.values()])
        self._metrics.running = len(self._running)
        self._metrics.copied_bytes = self._copied_bytes + running
        return self._metrics.samples()
