"""Migration of a topic at its coordinator: the broker that received the request.

If this broker leads all partitions of a local topic, it copies, fences and commits alone. Otherwise
other brokers participate. They exchange their progress through the control plane, and advance in
step:

    this broker   open ── copying ── ready ──┬── fenced ──────────┬── commit
    the others           copying ── ready ──┘ └── fenced, stored ──┘  └── observe the end

Brokers fence their producers only after all brokers are ready. Producers thus wait no longer than
the slowest broker needs to copy its last records. A broker that fails deletes the request;
`control/rules/migrations.py` explains why that is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.migration.participant import (
    SWITCH_FENCE_SECONDS,
    MigrationContext,
    MigrationFailed,
    Participant,
    is_of_living,
)
from penstock.broker.net.errors import InvalidConfig, UnknownTopicId
from penstock.control import (
    InvalidCommit,
    InvalidQuorum,
    MigrationParticipant,
    MigrationRefused,
    MigrationRequest,
    ObjectLeaseLost,
    RunningMigration,
    StaleMigration,
    StaleTopic,
    Topic,
    UnknownTopic,
)

if TYPE_CHECKING:
    from penstock.control.values.diskless import ParticipantState


SWITCH_PAUSE_SECONDS: Final = 0.5
"""Pause before a commit of unknown outcome is retried."""

logger = logging.getLogger(__name__)


async def retry_until_known(
    topic: str,
    attempt: Callable[[], Awaitable[object]],
    *,
    refusals: tuple[type[PenstockError], ...] = (),
) -> None:
    """Repeat an attempt until it succeeds or raises one of `refusals`, which are final.

    Giving up would leave producers fenced, or could lose records after an unknown outcome.
    """
    while True:
        try:
            await attempt()
        except refusals:
            raise
        except PenstockError as error:
            logger.warning("topic %s is fenced: %s; retrying", topic, error)
        except Exception:
            logger.exception("topic %s is fenced; retrying", topic)
        else:
            return
        await pause(SWITCH_PAUSE_SECONDS)


# Migration of a topic at a broker that participates in it, but does not coordinate it.
#
# The broker advances in step with the others. After it has fenced its producers and
# stored its result, it keeps the fence until the request is deleted. Then the topic has migrated,
# or the migration can never take effect. If that takes too long, or the coordinating broker has
# failed, this broker deletes the request itself.


SWITCH_POLL_SECONDS: Final = 0.1
"""Interval at which a broker checks the progress of the other brokers in a migration."""
SWITCH_PASS_SECONDS: Final = 1.0
"""Interval at which a broker copies new records while it waits for other brokers."""


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
        """Do the work of this broker, and fence its producers until the outcome is known.

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


SWITCH_COMMITS_MAX: Final = 5
"""Maximum number of attempts to commit a migration while other requests change the topic."""
SWITCH_JOIN_SECONDS: Final = 30.0
"""Time limit for the participating brokers to join a migration."""

Changed = Callable[[Topic], Mapping[str, str]]
"""Function that returns the configs of a topic after the migration."""

REFUSALS: Final = (
    InvalidCommit,
    InvalidQuorum,
    ObjectLeaseLost,
    StaleMigration,
    StaleTopic,
    MigrationRefused,
    UnknownTopic,
    InvalidConfig,
)
"""Errors after which a commit can never take effect."""


class MigrationLeader:
    def __init__(
        self, context: MigrationContext, participant: Participant[Any], changed: Changed
    ) -> None:
        self.participant = participant
        self._context = context
        self._changed = changed
        self._name = participant.topic.name
        self._plane = participant.part.plane
        self._request: MigrationRequest | None = None

    async def run(self) -> None:
        """Coordinate the migration, or participate if another broker coordinates it already.

        The participant's state is the outcome; raises as `TopicMigrations.migrate`.
        """
        if self.participant.needs_request:
            request = self.participant.part.request(self.participant.topic)
            opened = await self._open(request)
            if opened != request:
                await MigrationFollower(self._context, self.participant, opened).run()
                return
            self._request = request
        try:
            await self._copy()
        except Exception:
            if self._request is not None:
                await retry_until_known(
                    self._name, partial(self._plane.close_migration, self._request)
                )
            await self.participant.ended(made=False)
            raise
        await retry_until_known(self._name, self._context.cluster.refresh)
        await self.participant.ended(made=True)

    async def _open(self, request: MigrationRequest) -> MigrationRequest:
        """Store a migration request; return the open one, which another broker may have stored."""
        try:
            return await self.participant.open(request)
        except PenstockError:
            # The request may be stored, and other brokers would wait for this one.
            await retry_until_known(self._name, partial(self._plane.close_migration, request))
            raise

    async def _copy(self) -> None:
        others = self.participant.brokers() - {self._context.node_id}
        await self.participant.catch_up()
        await self._ready(others)
        await self.participant.stop_producers(self._request)
        await self._fenced(others)
        await self._commit()

    async def _ready(self, others: set[int]) -> None:
        if self._request is None:
            return
        await self._plane.join_migration(self._request, self.participant.share("ready"))
        waited = passed = 0.0
        while not _all_are(await self._participants(others), "ready", "fenced"):
            await pause(SWITCH_POLL_SECONDS)
            waited += SWITCH_POLL_SECONDS
            participants = await self._participants(others)
            silent = [broker_id for broker_id, found in participants.items() if found is None]
            if silent and waited >= SWITCH_JOIN_SECONDS:
                raise MigrationFailed(
                    f"topic {self._name!r}: participating brokers {silent}"
                    f" did not join its migration within {SWITCH_JOIN_SECONDS:g} s"
                )
            if waited - passed >= SWITCH_PASS_SECONDS:
                passed = waited
                await self.participant.keep_up()

    async def _fenced(self, others: set[int]) -> None:
        waited = 0.0
        while not _all_are(await self._participants(others), "fenced"):
            if waited >= SWITCH_FENCE_SECONDS:
                raise MigrationFailed(
                    f"topic {self._name!r}: brokers {sorted(others)} did not stop their producers"
                    f" and copy the last records within {SWITCH_FENCE_SECONDS:g} s"
                )
            await pause(SWITCH_POLL_SECONDS)
            waited += SWITCH_POLL_SECONDS

    async def _participants(self, others: set[int]) -> dict[int, MigrationParticipant | None]:
        """Return the stored progress of the other brokers; None for brokers that have not joined.

        The progress of earlier incarnations is ignored.

        Raises:
            MigrationFailed: a broker failed or is not registered, or the request was deleted.
        """
        if self._request is None:
            return {}
        participants = await self._stored()
        for broker_id in sorted(others):
            if self._context.cluster.image.broker(broker_id) is None:
                raise MigrationFailed(
                    f"topic {self._name!r}: participating broker {broker_id} has failed"
                )
            participant = participants.get(broker_id)
            if participant is not None and participant.state == "failed":
                raise MigrationFailed(
                    f"topic {self._name!r}: broker {broker_id}: {participant.reason}"
                )
        return {broker_id: participants.get(broker_id) for broker_id in sorted(others)}

    async def _stored(self) -> dict[int, MigrationParticipant]:
        for running in await self._plane.running_migrations():
            if running.request == self._request:
                return {
                    participant.broker_id: participant
                    for participant in running.participants
                    if is_of_living(self._context, participant)
                }
        raise MigrationFailed(
            f"topic {self._name!r}: another broker cancelled the migration; repeat the request"
        )

    async def _commit(self) -> None:
        """Repeat the commit until its outcome is known; raise if it can never take effect."""
        self.participant.state = "committing"
        for attempt in range(1, SWITCH_COMMITS_MAX + 1):
            topic = self._now()
            if self.participant.is_made(topic):
                return
            commit = partial(self.participant.commit, topic, self._changed(topic), self._request)
            try:
                await retry_until_known(self._name, commit, refusals=REFUSALS)
            except StaleTopic:
                if attempt == SWITCH_COMMITS_MAX:
                    raise
                await retry_until_known(self._name, self._context.cluster.refresh)
            else:
                return

    def _now(self) -> Topic:
        found = self._context.partitions.topics_by_id.get(self.participant.topic.topic_id.bytes)
        if found is None:
            raise UnknownTopicId(f"topic {self._name!r} was deleted")
        return found.topic


def _all_are(participants: Mapping[int, MigrationParticipant | None], *states: str) -> bool:
    return all(
        [
            participant is not None and participant.state in states
            for participant in participants.values()
        ]
    )
