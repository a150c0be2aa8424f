"""A topic's migration at a broker that has a part in it, and does not coordinate it.

The broker goes in step with the others, see `leader.py`. Once it has stopped its producers
and stored its part, it keeps them out until the request is gone: then the topic is made, or the
migration can never take effect any more. If that takes too long, or the broker that coordinates
is away, it deletes the request itself.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.limits import SWITCH_FENCE_SECONDS, SWITCH_PASS_SECONDS, SWITCH_POLL_SECONDS
from penstock.broker.migration.participant import is_of_living
from penstock.broker.migration.retrying import retry_until_known
from penstock.control import (
    InvalidCommit,
    MigrationRefused,
    MigrationRequest,
    RunningMigration,
    StaleMigration,
)

if TYPE_CHECKING:
    from penstock.broker.migration.participant import MigrationParts, Participant
    from penstock.control.batch_index.migration_values import ParticipantState

logger = logging.getLogger(__name__)


class MigrationFollower:
    """One topic on its way."""

    def __init__(
        self, parts: MigrationParts, participant: Participant[Any], request: MigrationRequest
    ) -> None:
        self.participant = participant
        self._parts = parts
        self._request = request
        self._name = participant.topic.name
        self._plane = participant.part.plane

    async def run(self) -> None:
        """Bring this broker's part, and keep producers out until it is known what came of it.

        Raises:
            PenstockError: this broker cannot; the others were told, and the topic is as it was.
        """
        try:
            await self._bring()
            await self._over()
        except StaleMigration:
            await self._settle()
        except Exception as error:
            reason = str(error) if isinstance(error, PenstockError) else "an internal error"
            await self._give_up(reason)
            await self._settle()
            raise
        else:
            await self._settle()

    async def _bring(self) -> None:
        await self._tell("copying")
        await self.participant.catch_up()
        await self._tell("ready")
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
            partial(self._tell, "fenced"),
            refusals=(StaleMigration, MigrationRefused, InvalidCommit),
        )

    async def _tell(self, state: ParticipantState, reason: str = "") -> None:
        await self._plane.join_migration(self._request, self.participant.share(state, reason))

    async def _running(self) -> RunningMigration:
        """The migration as it stands; raises StaleMigration where it is over."""
        for running in await self._plane.running_migrations():
            if running.request == self._request:
                owner = self._parts.cluster.image.broker(self._request.broker_id)
                if owner is None or owner.incarnation != self._request.incarnation:
                    await self._plane.close_migration(self._request)
                    break
                return running
        raise StaleMigration(self._request.topic_id)

    def _all_ready(self, running: RunningMigration) -> bool:
        ready = {
            one.broker_id
            for one in running.participants
            if one.state in ("ready", "fenced") and is_of_living(self._parts, one)
        }
        return ready >= self.participant.brokers() | {self._request.broker_id}

    async def _over(self) -> None:
        """Wait until the request is gone; its end is this broker's to make if it does not come."""
        waited = 0.0
        while waited < SWITCH_FENCE_SECONDS:
            try:
                await self._running()
            except StaleMigration:
                raise
            except PenstockError as error:
                logger.warning("topic %s is fenced: %s; looking on", self._name, error)
            await pause(SWITCH_POLL_SECONDS)
            waited += SWITCH_POLL_SECONDS
        await retry_until_known(self._name, partial(self._plane.close_migration, self._request))

    async def _give_up(self, reason: str) -> None:
        """Tell the others that this broker cannot; on return its part counts for nothing."""
        tell = partial(self._tell, "failed", reason)
        try:
            await retry_until_known(self._name, tell, refusals=(StaleMigration,))
        except StaleMigration:
            logger.info("topic %s: its switch was over before this broker gave up", self._name)

    async def _settle(self) -> None:
        """See what the topic is now that nothing more can become of the migration."""
        await retry_until_known(self._name, self._parts.cluster.refresh)
        found = self._parts.partitions.topics_by_id.get(self._request.topic_id.bytes)
        made = found is not None and self.participant.is_made(found.topic)
        await self.participant.ended(made=made)
