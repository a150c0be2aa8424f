"""Migration of a topic at a broker that participates in it, but does not coordinate it.

The broker advances in step with the others (`leader.py`). After it has fenced its producers and
stored its result, it keeps the fence until the request is deleted. Then the topic has migrated, or
the migration can never take effect. If that takes too long, or the coordinating broker has failed,
this broker deletes the request itself.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.migration.participant import SWITCH_FENCE_SECONDS, is_of_living
from penstock.broker.migration.retrying import retry_until_known
from penstock.control import (
    InvalidCommit,
    MigrationRefused,
    MigrationRequest,
    RunningMigration,
    StaleMigration,
)

if TYPE_CHECKING:
    from penstock.broker.migration.participant import MigrationContext, Participant
    from penstock.control.batch_index.migration_values import ParticipantState

SWITCH_POLL_SECONDS: Final = 0.1
"""Interval at which a broker checks the progress of the other brokers in a migration."""
SWITCH_PASS_SECONDS: Final = 1.0
"""Interval at which a broker copies new records while it waits for other brokers."""

logger = logging.getLogger(__name__)


class MigrationFollower:
    def __init__(
        self, context: MigrationContext, participant: Participant[Any], request: MigrationRequest
    ) -> None:
        self.participant = participant
        self._context = context
        self._request = request
        self._name = participant.topic.name
        self._plane = participant.part.plane

    async def run(self) -> None:
        """Copy the partitions of this broker, and fence producers until the outcome is known.

        Raises:
            PenstockError: this broker failed, and has reported that; the topic is unchanged.
        """
        try:
            await self._take_part()
            await self._wait_for_end()
        except StaleMigration:
            await self._finish()
        except Exception as error:
            reason = str(error) if isinstance(error, PenstockError) else "an internal error"
            await self._report_failure(reason)
            await self._finish()
            raise
        else:
            await self._finish()

    async def _take_part(self) -> None:
        await self._report("copying")
        await self.participant.catch_up()
        await self._report("ready")
        waited = 0.0
        while not self._all_ready(await self._running()):
            await pause(SWITCH_POLL_SECONDS)
            waited += SWITCH_POLL_SECONDS
            if waited >= SWITCH_PASS_SECONDS:
                waited = 0.0
                await self.participant.keep_up()
        await self.participant.stop_producers(self._request)
        await retry_until_known(
            self._name,
            partial(self._report, "fenced"),
            refusals=(StaleMigration, MigrationRefused, InvalidCommit),
        )

    async def _report(self, state: ParticipantState, reason: str = "") -> None:
        await self._plane.join_migration(self._request, self.participant.share(state, reason))

    async def _running(self) -> RunningMigration:
        """Return the running migration; delete its request if the coordinating broker has failed.

        Raises:
            StaleMigration: the migration has ended.
        """
        for running in await self._plane.running_migrations():
            if running.request == self._request:
                owner = self._context.cluster.image.broker(self._request.broker_id)
                if owner is None or owner.incarnation != self._request.incarnation:
                    await self._plane.close_migration(self._request)
                    break
                return running
        raise StaleMigration(self._request.topic_id)

    def _all_ready(self, running: RunningMigration) -> bool:
        ready = {
            member.broker_id
            for member in running.participants
            if member.state in ("ready", "fenced") and is_of_living(self._context, member)
        }
        return ready >= self.participant.brokers() | {self._request.broker_id}

    async def _wait_for_end(self) -> None:
        """Wait until the request is deleted; delete it after `SWITCH_FENCE_SECONDS`."""
        waited = 0.0
        while waited < SWITCH_FENCE_SECONDS:
            try:
                await self._running()
            except StaleMigration:
                raise
            except PenstockError as error:
                logger.warning("topic %s is fenced: %s; retrying", self._name, error)
            await pause(SWITCH_POLL_SECONDS)
            waited += SWITCH_POLL_SECONDS
        await retry_until_known(self._name, partial(self._plane.close_migration, self._request))

    async def _report_failure(self, reason: str) -> None:
        report = partial(self._report, "failed", reason)
        try:
            await retry_until_known(self._name, report, refusals=(StaleMigration,))
        except StaleMigration:
            logger.info("topic %s: its migration had ended before this broker failed", self._name)

    async def _finish(self) -> None:
        await retry_until_known(self._name, self._context.cluster.refresh)
        found = self._context.partitions.topics_by_id.get(self._request.topic_id.bytes)
        made = found is not None and self.participant.is_made(found.topic)
        await self.participant.ended(made=made)
