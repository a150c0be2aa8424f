"""Migration of a topic at its coordinator: the broker that received the request.

If this broker leads all partitions of a local topic, it copies, fences and commits alone. Otherwise
other brokers participate. They exchange their progress through the control plane, and advance in
step:

    this broker   open ── copying ── ready ──┬── fenced ──────────┬── commit
    the others           copying ── ready ──┘ └── fenced, stored ──┘  └── observe the end

Brokers fence their producers only after all brokers are ready. Producers thus wait no longer than
the slowest broker needs to copy its last records. A broker that fails deletes the request;
`control/batch_index/migration_rules.py` explains why that is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.broker.admin_errors import InvalidConfig
from penstock.broker.errors import UnknownTopicId
from penstock.broker.migration.follower import (
    SWITCH_PASS_SECONDS,
    SWITCH_POLL_SECONDS,
    MigrationFollower,
)
from penstock.broker.migration.participant import (
    SWITCH_FENCE_SECONDS,
    MigrationFailed,
    is_of_living,
)
from penstock.broker.migration.retrying import retry_until_known
from penstock.control import (
    InvalidCommit,
    InvalidQuorum,
    MigrationParticipant,
    MigrationRefused,
    MigrationRequest,
    ObjectLeaseLost,
    StaleMigration,
    StaleTopic,
    Topic,
    UnknownTopic,
)

if TYPE_CHECKING:
    from penstock.broker.migration.participant import MigrationContext, Participant

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
        """Migrate the topic, or participate if another broker's request is open.

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
        """Store a request; return the open one, which may be another broker's."""
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
