"""Collection of the commits of this broker's groups, and the evaluation of their lag.

The group coordinator reports each stored commit, and each commit that became part of a transaction.
The offsets of an ended transaction are stored by its own coordinator, so they are read from the
control plane at the next sample. A sample also samples the end offsets of partitions, reads the
offsets of groups that this broker has begun to coordinate, and drops the windows of groups that
ended or that other brokers coordinate. All of it is bounded: `WINDOWS_MAX` windows of at most
`COMMITS_MAX` commits, and one `Ends` for each partition.

A commit does constant work for each of its offsets. Evaluations read memory only, except for the
timestamps of unread records (`logs.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.metrics import Metrics, counter, gauge
from penstock.base.pause import pause
from penstock.broker.groups.classic.states import GroupState
from penstock.broker.lag.logs import NOTHING_KNOWN, GroupLogs, Unread
from penstock.broker.lag.rules import (
    Ends,
    Evaluation,
    Position,
    State,
    Summary,
    Window,
    evaluate,
    explanation_of,
    summary_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.base.system import Clock
    from penstock.broker.groups.coordinator import GroupCoordinator
    from penstock.control import CommittedOffset, ControlPlane
    from penstock.storage import LogConfig

logger = logging.getLogger(__name__)

WINDOWS_MAX: Final = 200_000
"""Largest number of windows, one for each group and partition; further ones are not evaluated."""
SAMPLE_SECONDS: Final = 10.0
"""Time between two samples of end offsets, as in Burrow."""
GROUPS_READ_MAX: Final = 200
"""Groups whose offsets one sample reads from the control plane; the next sample reads more."""
WINDOWS_PER_TURN: Final = 500
"""Windows that are evaluated or sampled in one turn of the event loop, a few milliseconds."""
UNREAD_MAX: Final = 100
"""Partitions of a group whose first unread record is looked up, those with the most lag first."""
GROUP_TYPES: Final = ("classic", "consumer")
"""Types of groups that commit offsets."""
CONTROL_LAG_MAX: Final = 16
"""Largest lag that may consist of transaction markers alone, which no consumer reads."""


class LagMetrics(Metrics, prefix="penstock_group_"):
    windows = gauge("windows", "Partitions of groups whose commits are kept to evaluate the lag.")
    windows_refused = counter(
        "windows_refused_total",
        "Partitions of groups that are not evaluated, because too many groups and partitions are.",
    )


class Turns:
    """Counter of the windows that a loop has handled; it lets other work of the event loop run."""

    def __init__(self) -> None:
        self._windows = 0

    async def spent(self, windows: int) -> None:
        self._windows += windows
        if self._windows >= WINDOWS_PER_TURN:
            self._windows = 0
            await pause(0)


class LogFacts(Struct, frozen=True, kw_only=True):
    """Facts about a partition that are the same for all groups, as in `Position`."""

    end: int | None
    start: int | None
    produced_per_second: float | None
    retention_ms: int | None
    retention_records: float | None


class EvaluatedPartition(NamedTuple):
    """Evaluation of a group in a partition, with the window and the position it is based on."""

    where: TopicPartition
    window: Window
    position: Position
    evaluation: Evaluation

    @property
    def explanation(self) -> str:
        """Reasons of the state in one sentence."""
        return explanation_of(self.evaluation, self.window, self.position)


class EvaluatedGroup(Struct, frozen=True, kw_only=True):
    """Evaluation of a group, and of its partitions.

    `abandoned` is true if the group had members and all of them have left.
    """

    group_id: str
    summary: Summary
    partitions: Sequence[EvaluatedPartition]
    abandoned: bool

    @property
    def explanation(self) -> str:
        """Reasons of the state of the worst partition."""
        if self.summary.worst is None:
            return "The group has no committed offsets."
        worst = self.partitions[self.summary.worst]
        if not worst.evaluation.lag:
            return worst.explanation
        ending = " All members have left the group." if self.abandoned else ""
        return f"{worst.where}: {worst.explanation}{ending}"

    def with_partitions(self, partitions: Sequence[EvaluatedPartition]) -> EvaluatedGroup:
        return group_of(self.group_id, partitions, abandoned=self.abandoned)


def group_of(
    group_id: str, partitions: Sequence[EvaluatedPartition], *, abandoned: bool
) -> EvaluatedGroup:
    return EvaluatedGroup(
        group_id=group_id,
        summary=summary_of([found.evaluation for found in partitions]),
        partitions=partitions,
        abandoned=abandoned,
    )


def is_abandoned(state: str, protocol_type: str) -> bool:
    """Return whether a group had members and all have left. Before the first, it has no type."""
    return state == GroupState.EMPTY.value and bool(protocol_type)


class LagService:
    """Windows of the groups that this broker coordinates; belongs to the event loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        control: ControlPlane,
        coordinator: GroupCoordinator,
        logs: GroupLogs,
        config_of: Callable[[str], LogConfig],
    ) -> None:
        self._clock = clock
        self._control = control
        self._coordinator = coordinator
        self.logs = logs
        self._config_of = config_of
        self.metrics = LagMetrics()
        self._groups: dict[str, dict[TopicPartition, Window]] = {}
        self._ends: dict[TopicPartition, Ends] = {}
        self._read: set[str] = set()
        """Groups whose stored offsets have been read since this broker coordinates them."""
        self._changed: set[str] = set()
        """Groups whose stored offsets may have changed, or change at the end of a transaction."""
        self._abandoned: set[str] = set()
        """Groups whose members had all left when groups were last listed."""
        self._task: asyncio.Task[None] | None = None

    # -- commits

    def committed(self, group_id: str, offsets: Iterable[CommittedOffset]) -> None:
        """Add stored offsets to the windows of a group."""
        self.start()
        windows = self._groups.setdefault(group_id, {})
        for offset in offsets:
            self._add(windows, offset)

    def changed(self, group_id: str) -> None:
        """Record that the group's offsets were deleted, or change at the end of a transaction."""
        self.start()
        self._changed.add(group_id)

    def _add(self, windows: dict[TopicPartition, Window], offset: CommittedOffset) -> None:
        where = TopicPartition(offset.topic, offset.partition)
        window = windows.get(where)
        if window is None:
            if self.metrics.windows >= WINDOWS_MAX:
                self.metrics.windows_refused += 1
                return
            self.metrics.windows += 1
            ends = self._ends.setdefault(where, Ends())
            ends.windows += 1
        if window is None or window.topic_id != offset.topic_id:
            window = windows[where] = Window(offset.topic_id, self._clock.now_ms())
        if offset.offset >= 0:
            window.add(offset.offset, offset.commit_timestamp_ms, self._end(where))

    def _end(self, where: TopicPartition) -> int | None:
        end = self.logs.end_here(where)
        if end is None:
            ends = self._ends.get(where)
            end = None if ends is None else ends.end
        return end

    def _drop(self, windows: dict[TopicPartition, Window], where: TopicPartition) -> None:
        del windows[where]
        self.metrics.windows -= 1
        ends = self._ends[where]
        ends.windows -= 1
        if not ends.windows:
            del self._ends[where]

    def forget(self, group_id: str) -> None:
        """Drop the windows of a group."""
        windows = self._groups.pop(group_id, {})
        for where in list(windows):
            self._drop(windows, where)
        self._read.discard(group_id)
        self._changed.discard(group_id)

    def stored(self, group_id: str, committed: Sequence[CommittedOffset]) -> None:
        """Compare the windows of a group with its stored offsets, and correct them.

        Offsets that were stored without this broker, such as those of transactions, are added.
        Windows of deleted offsets are dropped.
        """
        windows = self._groups.setdefault(group_id, {})
        for where in windows.keys() - {TopicPartition(o.topic, o.partition) for o in committed}:
            self._drop(windows, where)
        for offset in committed:
            window = windows.get(TopicPartition(offset.topic, offset.partition))
            if (
                window is None
                or window.topic_id != offset.topic_id
                or window.last_ms < offset.commit_timestamp_ms
                or window.offset != offset.offset
            ):
                self._add(windows, offset)
        self._read.add(group_id)

    # -- samples

    def start(self) -> None:
        """Begin to sample. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await pause(SAMPLE_SECONDS)
            try:
                await self.sample()
            except PenstockError as error:
                logger.warning("the lag of groups could not be sampled: %s", error)

    async def sample(self) -> None:
        """Drop ended groups, read changed offsets again, and sample end offsets.

        Raises:
            PenstockError: the groups or their offsets cannot be read now.
        """
        ids = set(await self.ids())
        for group_id in self._groups.keys() - ids:
            self.forget(group_id)
        self._changed &= ids
        unread = [*self._changed, *sorted(ids - self._read - self._changed)]
        await self._read_offsets(unread[:GROUPS_READ_MAX])
        await self._sample_ends()

    async def _read_offsets(self, ids: Iterable[str]) -> None:
        for group_id in ids:
            found = await self._control.stable_offsets(group_id, None)
            self.stored(group_id, found.committed)
            if not found.unstable:
                self._changed.discard(group_id)

    async def _sample_ends(self) -> None:
        now_ms = self._clock.now_ms()
        elsewhere = []
        for where, ends in list(self._ends.items()):
            end = self.logs.end_here(where)
            if end is None:
                elsewhere.append(where)
            else:
                ends.add(end, now_ms)
        for where, end in (await self.logs.ends_elsewhere(elsewhere)).items():
            found = self._ends.get(where)
            if found is not None:
                found.add(end, now_ms)
        turn = Turns()
        topics = self.logs.cluster.image.topics
        for group_id, windows in list(self._groups.items()):
            for where, window in windows.items():
                last = self._ends[where].end
                if last is not None and window.offset >= last:
                    window.caught_up_ms = now_ms
                if where.topic not in topics:  # offsets are deleted with their topic
                    self._changed.add(group_id)
            await turn.spent(len(windows))

    # -- evaluation

    async def group(
        self, group_id: str, committed: Sequence[CommittedOffset], unread_max: int = UNREAD_MAX
    ) -> EvaluatedGroup:
        """Return the evaluation of a group of this broker, with the ages of its unread records.

        `committed` are all of its stored offsets. The age is looked up in at most `unread_max`
        partitions, those with the most lag.
        """
        self.start()
        self.stored(group_id, committed)
        elsewhere = [w for w in self._groups.get(group_id, {}) if self.logs.here(w) is None]
        now_ms = self._clock.now_ms()
        for where, end in (await self.logs.ends_elsewhere(elsewhere)).items():
            if where in self._ends:
                self._ends[where].add(end, now_ms)
        group = await self._evaluated(group_id, unread_max, {})
        return group.with_partitions(sorted(group.partitions, key=lambda found: found.where))

    async def groups(self) -> list[EvaluatedGroup]:
        """Return the evaluations of this broker's groups, by id.

        The age of unread records is looked up only in the partition with the most lag of each
        group, and in partitions whose lag may consist of transaction markers alone.

        Raises:
            PenstockError: the groups cannot be read now.
        """
        self.start()
        ids = await self._known_ids()
        found = []
        logs: dict[TopicPartition, LogFacts] = {}
        turn = Turns()
        for group_id in ids:
            found.append(await self._evaluated(group_id, 1, logs))
            await turn.spent(len(found[-1].partitions))
        return found

    async def ids(self) -> list[str]:
        """Return the ids of this broker's groups that commit offsets, sorted."""
        listed = await self._coordinator.list_groups(types=GROUP_TYPES)
        self._abandoned = {
            group.group_id for group in listed if is_abandoned(group.state, group.protocol_type)
        }
        return [group.group_id for group in listed]

    async def _known_ids(self) -> list[str]:
        """Return the ids, after the offsets of all of these groups have been read."""
        ids = await self.ids()
        missing = [group_id for group_id in ids if group_id not in self._read]
        if missing:
            await self._read_offsets(missing)
            await self._sample_ends()
        return ids

    async def offsets(self) -> dict[str, dict[TopicPartition, int]]:
        """Return the committed offsets of this broker's groups; raises as `groups`.

        Offsets that were stored without this broker are those of the last sample.
        """
        self.start()
        found = {}
        turn = Turns()
        for group_id in await self._known_ids():
            windows = self._groups.get(group_id, {})
            found[group_id] = {
                where: window.offset for where, window in windows.items() if window.offset >= 0
            }
            await turn.spent(len(windows))
        return found

    async def groups_of(self, topic: str) -> list[str]:
        """Return the ids of groups with offsets in a topic, sorted; raises as `groups`."""
        await self._known_ids()
        return sorted(
            group_id
            for group_id, windows in self._groups.items()
            if any(where.topic == topic for where in windows)
        )

    def _log_facts(self, where: TopicPartition) -> LogFacts:
        log, ends = self.logs.here(where), self._ends[where]
        config = self._config_of(where.topic)
        deletes = "delete" in config.cleanup_policy
        records = None
        if deletes and config.retention_bytes >= 0 and log is not None and log.size_bytes:
            span = max(0, log.high_watermark - log.log_start_offset)
            records = config.retention_bytes * span / log.size_bytes
        return LogFacts(
            end=ends.end if log is None else log.last_stable_offset,
            start=None if log is None else log.log_start_offset,
            produced_per_second=ends.per_second(),
            retention_ms=config.retention_ms if deletes and config.retention_ms >= 0 else None,
            retention_records=records,
        )

    def _partition(
        self,
        where: TopicPartition,
        window: Window,
        log: LogFacts,
        unread: Unread = NOTHING_KNOWN,
        *,
        abandoned: bool,
    ) -> EvaluatedPartition:
        now_ms, end = self._clock.now_ms(), log.end
        if end is not None and unread.empty:
            end = min(end, window.offset)
        if end is not None and window.offset >= end:
            window.caught_up_ms = now_ms
        position = Position(
            now_ms=now_ms,
            offset=window.offset,
            end=end,
            start=unread.start if log.start is None else log.start,
            unread_ms=unread.timestamp_ms,
            produced_per_second=log.produced_per_second,
            retention_ms=log.retention_ms,
            retention_records=log.retention_records,
            abandoned=abandoned,
        )
        return EvaluatedPartition(where, window, position, evaluate(window, position))

    async def _evaluated(
        self, group_id: str, count: int, logs: dict[TopicPartition, LogFacts]
    ) -> EvaluatedGroup:
        """Return the evaluation of a group.

        First unread records are looked up in the `count` partitions with the most lag. `logs` keeps
        the facts of partitions for further groups.
        """
        abandoned = group_id in self._abandoned
        partitions = []
        for where, window in self._groups.get(group_id, {}).items():
            log = logs.get(where)
            if log is None:
                log = logs[where] = self._log_facts(where)
            partitions.append(self._partition(where, window, log, abandoned=abandoned))
        lagging = sorted(
            (index for index, found in enumerate(partitions) if found.evaluation.lag),
            key=lambda index: -(partitions[index].evaluation.lag or 0),
        )
        chosen = [
            index
            for rank, index in enumerate(lagging)
            if rank < count or _may_be_empty(partitions[index].evaluation)
        ]
        unread = await asyncio.gather(
            *[
                self.logs.unread(partitions[index].where, partitions[index].window.offset)
                for index in chosen
            ]
        )
        for index, first in zip(chosen, unread, strict=True):
            where = partitions[index].where
            window = partitions[index].window
            partitions[index] = self._partition(
                where, window, logs[where], first, abandoned=abandoned
            )
        return group_of(group_id, partitions, abandoned=abandoned)


def _may_be_empty(evaluation: Evaluation) -> bool:
    return evaluation.state is not State.OK and 0 < (evaluation.lag or 0) <= CONTROL_LAG_MAX
