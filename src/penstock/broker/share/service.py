"""Share groups of one broker: sessions, share partitions, dead letters, and group settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.metrics import Metrics, Sample, counter, counters, gauge
from penstock.base.pause import pause
from penstock.broker.configuration.groups import GROUP_KIND, ConfigsOfGroups
from penstock.broker.groups.runtime.saving import SAVE_KEYS_MAX
from penstock.broker.metadata.cluster import delta_of
from penstock.broker.share.dead_letters import DeadLetterWriter
from penstock.broker.share.sessions import Place, ShareSession, ShareSessions
from penstock.broker.share.shares import LOAD_KEYS_MAX, Shares, place_of, share_key
from penstock.broker.share.stored import (
    KIND,
    ShareState,
    ShareStateLost,
    StoredShare,
    decode_state,
    encode_state,
)
from penstock.broker.share.values import Cause, RecordState, ShareSettings, share_settings
from penstock.control import KEY_ROW, CoordinationRecord, RecordChange

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.fetch.operation import FetchHub
    from penstock.broker.groups.coordinator import GroupCoordinator
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.listeners import Identity
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.topics.admin import TopicAdmin
    from penstock.control import ControlPlane, MetadataImage
    from penstock.partitions import Partition


# Administration of the stored states of share groups: read, reset and delete them.
#
# A change replaces a row only if its version is unchanged, like the saves of leaders. Leaders need
# not cooperate: a leader with the former state in memory cannot overwrite the change, and reads the
# row again. Group coordinators delete the rows of deleted topics, at their start and after each
# deletion.


CHANGE_ATTEMPTS_MAX: Final = 5
"""Maximum number of attempts of a change that conflicts with saves of leaders."""

logger = logging.getLogger(__name__)

Rows = Mapping[str, CoordinationRecord]
Changed = Callable[[str, CoordinationRecord | None], bytes | None]
"""Function that returns the new value of a key, from its stored row; None deletes the row."""

BEFORE_ANY: Final = -1


class ShareOffsets:
    def __init__(self, control: ControlPlane, forget: Callable[[Collection[str]], None]) -> None:
        """Create the administration of stored share partitions.

        `forget` is called with keys whose rows were changed, so that no outdated state is used.
        """
        self._control = control
        self._forget = forget

    async def keys(self) -> list[str]:
        return await self._control.record_keys(KIND)

    async def of_group(self, group_id: str) -> dict[Place, ShareState]:
        """Return the stored share partitions of a group.

        Raises:
            CorruptShareState: a row cannot be decoded.
        """
        keys = [key for key in await self.keys() if place_of(key)[0] == group_id]
        return {
            place_of(key)[1:]: decode_state(key, row.value)
            for key, row in (await self._rows(keys)).items()
        }

    async def archiving(self, keys: Sequence[str]) -> list[str]:
        """Return the given keys of share partitions with records that wait for dead letters.

        Raises:
            CorruptShareState: a row cannot be decoded.
        """
        return [
            key
            for key, row in (await self._rows(keys)).items()
            if any(run.state == RecordState.ARCHIVING for run in decode_state(key, row.value).runs)
        ]

    async def _rows(self, keys: Sequence[str]) -> Rows:
        found: dict[str, CoordinationRecord] = {}
        for some in _pieces(keys, LOAD_KEYS_MAX):
            for row in await self._control.records(KIND, some):
                if row.member == KEY_ROW:
                    found[row.key] = row
        return found

    async def set(self, group_id: str, offsets: Mapping[Place, int]) -> None:
        """Reset the share partitions of a group to these offsets; acquisitions are dropped.

        Raises:
            ShareStateLost: every attempt conflicts with saves of leaders.
        """
        starts = {share_key(group_id, *place): offset for place, offset in offsets.items()}

        def begun(key: str, row: CoordinationRecord | None) -> bytes:
            epoch = -1 if row is None else decode_state(key, row.value).state_epoch
            return encode_state(epoch + 1, BEFORE_ANY, starts[key], ())

        await self._change(list(starts), begun)

    async def delete(self, group_id: str, topics: Collection[UUID] | None = None) -> None:
        """Delete the stored state of a group, or only of the given topics; raises as `set`."""
        parsed = map(place_of, await self.keys())
        await self._change(
            [
                share_key(*place)
                for place in parsed
                if place[0] == group_id and (topics is None or place[1] in topics)
            ],
            lambda *_: None,
        )

    async def sweep(
        self, newest: Callable[[], Awaitable[MetadataImage]], owns: Callable[[str], bool]
    ) -> int:
        """Delete the rows of deleted topics, for groups of this broker; return their number.

        The image is read after the keys. If it lacks the topic of a key, the topic was deleted.
        """
        keys = await self.keys()
        known = {topic.topic_id for topic in (await newest()).topics.values()}
        left = [key for key in keys if place_of(key)[1] not in known and owns(place_of(key)[0])]
        await self._change(left, lambda *_: None)
        return len(left)

    async def _change(self, keys: Sequence[str], changed: Changed) -> None:
        for some in _pieces(keys, SAVE_KEYS_MAX):
            left: Iterable[str] = some
            for _ in range(CHANGE_ATTEMPTS_MAX):
                left = await self._try(list(left), changed)
                if not left:
                    break
            else:
                raise ShareStateLost(f"share partition {next(iter(left))} changed in each attempt")

    async def _try(self, keys: Sequence[str], changed: Changed) -> list[str]:
        rows = await self._rows(keys)
        changes = []
        for key in keys:
            row = rows.get(key)
            value = changed(key, row)
            if row is not None or value is not None:
                version = 0 if row is None else row.version
                changes.append(
                    RecordChange(
                        kind=KIND, key=key, expected_version=version, rows={KEY_ROW: value}
                    )
                )
        if not changes:
            return []
        saved = await self._control.save_records(changes)
        self._forget(keys)
        return [key for _, key in saved.refused]


def _pieces(keys: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (keys[begin : begin + size] for begin in range(0, len(keys), size))


DEAD_LETTER_LOOK_SECONDS: Final = 60.0
"""Interval of the search for share partitions with records that wait for dead letters."""


class ShareMetrics(Metrics, prefix="penstock_share_"):
    sessions = gauge("sessions", "Share sessions held by this broker.")
    partitions = gauge(
        "partitions",
        "Share partitions in this broker's memory; a partition counts once for each group.",
    )
    acquired = counter(
        "acquired_records_total",
        "Records acquired by members of share groups, redeliveries included.",
    )
    undeliverable: dict[str, int] = counters(
        "given_up_records_total",
        "Records that share groups archived: rejected, or delivered too often.",
        "cause",
    )
    dead_letters: dict[str, int] = counters(
        "dead_letters_total",
        "Dead letters written for records of share groups, by cause.",
        "cause",
    )
    missing: dict[str, int] = counters(
        "dead_letters_missing_total",
        "Archived records without a dead letter, by reason: deleted, aborted (in an aborted"
        " transaction), or unwanted (their group has no dead letter topic, or reads from it).",
        "reason",
    )
    waiting = gauge(
        "dead_letters_waiting_partitions",
        "Share partitions with records whose dead letters are not written yet.",
    )
    failures = counter(
        "dead_letter_failures_total",
        "Failed attempts to write dead letters of a share partition.",
    )


class ShareService:
    """Service for share groups that read from this broker. Belongs to the event-loop thread."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        clock: Clock,
        cluster: ClusterMetadata,
        fetch_hub: FetchHub,
        coordinator: GroupCoordinator,
        partitions: PartitionRegistry,
        topic_admin: TopicAdmin,
        identity: Identity,
    ) -> None:
        self._stopped = False
        self._configs = ConfigsOfGroups(settings)
        self._cluster = cluster
        self.shares = Shares(
            control=control,
            clock=clock,
            settings_of=self.settings_of,
            changed=fetch_hub.advanced,
            archiving=self._archiving,
        )
        self.dead_letters = DeadLetterWriter(
            settings=settings,
            clock=clock,
            cluster=cluster,
            partitions=partitions,
            topic_admin=topic_admin,
            fetch_hub=fetch_hub,
            identity=identity,
            shares=self.shares,
            settings_of=self.settings_of,
            changed=fetch_hub.advanced,
        )
        self._partitions = partitions
        self._looking: asyncio.Task[None] | None = None
        self.sessions = ShareSessions(settings.group_share_max_share_sessions, self._ended)
        self.disconnected = self.sessions.disconnected
        self.offsets = ShareOffsets(control, self.shares.forget)
        self._ownership = coordinator.ownership
        self._seen: MetadataImage | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._stale = True

    def image_changed(self) -> None:
        """Retry dead letters, and delete the rows of deleted topics.

        The first call also deletes rows of topics that were deleted before the start.
        """
        seen, image = self._seen, self._cluster.image
        self._seen = image
        self._stale = self._stale or bool(delta_of(seen, image).gone)
        self.dead_letters.image_changed()
        if self._looking is None and not self._stopped:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        if self._stale and self._sweeping is None and not self._stopped:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        try:
            while self._stale:
                self._stale = False
                try:
                    await self.offsets.sweep(self._newest, self._ownership.owns)
                except PenstockError as error:
                    logger.warning("cannot delete share partitions of deleted topics: %s", error)
        finally:
            self._sweeping = None

    def _archiving(self, stored: StoredShare) -> None:
        self.dead_letters.look(stored)

    async def _look(self) -> None:
        while not self._stopped:
            try:
                await self.resume()
            except PenstockError as error:
                logger.warning("cannot find records that wait for dead letters: %s", error)
            await pause(DEAD_LETTER_LOOK_SECONDS)

    async def resume(self) -> None:
        if not any(kind == GROUP_KIND for kind, _ in self._cluster.image.entity_configs):
            return
        parsed = {key: place_of(key) for key in await self.offsets.keys()}
        mine = [
            key
            for key, (group, topic_id, index) in parsed.items()
            if self.settings_of(group).dead_letter_topic and self._source(group, topic_id, index)
        ]
        for key in await self.offsets.archiving(mine):
            group, topic_id, index = parsed[key]
            source = self._source(group, topic_id, index)
            if source is not None:
                await self.shares.open(group, source)

    def _source(self, group: str, topic_id: UUID, index: int) -> Partition | None:
        served = self._partitions.topics_by_id.get(topic_id.bytes)
        if served is None or index >= len(served.partitions):
            return None
        if served.diskless and not self._ownership.owns(group):
            return None
        return served.partitions[index]

    async def _newest(self) -> MetadataImage:
        await self._ownership.look_again()
        return self._cluster.image

    async def stop(self) -> None:
        """Finish saves under way and stop timers. Idempotent."""
        self._stopped = True
        for task in (self._sweeping, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await self.dead_letters.stop()
        await self.shares.stop()

    def settings_of(self, group_id: str) -> ShareSettings:
        return share_settings(self._configs.of(self._cluster.image.entity_configs, group_id))

    def _ended(self, session: ShareSession, said: bool) -> None:
        """Release a session's records when it ends.

        If its member requested the end (`said`), the delivery does not count, because the member
        has not processed the records.
        """
        group_id, member = session.key
        self.shares.release(group_id, member, session.partitions, delivered=not said)

    def samples(self) -> Iterator[Sample]:
        metrics, writer = ShareMetrics(), self.dead_letters
        metrics.sessions, metrics.partitions = len(self.sessions), len(self.shares)
        metrics.acquired = self.shares.acquired
        metrics.undeliverable = _by_cause(self.shares.undeliverable)
        metrics.dead_letters = _by_cause(writer.written)
        metrics.missing = {
            "deleted": writer.deleted + self.shares.deleted,
            "aborted": writer.aborted,
            "unwanted": writer.unwanted,
        }
        metrics.waiting, metrics.failures = writer.waiting, writer.failures
        return metrics.samples()


def _by_cause(counts: Mapping[Cause, int]) -> dict[str, int]:
    return {cause.name.lower(): count for cause, count in counts.items()}
