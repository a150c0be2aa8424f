"""Access of the Spark driver to a log: topics, offsets, and offsets for the source's options.

`Log` is the port; `BrokerLog` implements it with Penstock's client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.records.extents import EARLIEST, LATEST
from penstock.spark.errors import (
    InvalidOption,
    OffsetBeyondEnd,
    OffsetWentBack,
    TopicRecreated,
    UnknownTopics,
)
from penstock.spark.options import Bound, SourceOptions
from penstock.spark.reads.positions import Position, Positions

NOT_FOUND = -1
BEHIND_SECONDS_MAX: Final = 30.0
"""Longest time for which a partition with replicas may report an end below a known offset."""
BEHIND_PAUSE_SECONDS: Final = 0.2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """Topic id, leader epoch of each partition, and replication factor of a topic."""

    topic_id: str
    leader_epochs: Mapping[int, int]
    replicas: int = 1


class Log(Protocol):
    """Port through which the driver requests topics and offsets."""

    def topics(self, names: tuple[str, ...] | None) -> Mapping[str, TopicState]:
        """Return those of the topics that exist; for None, all topics that are not internal."""
        ...

    def offsets(self, topic: str, at: int) -> Mapping[int, int]:
        """Return the offset of each partition at `EARLIEST`, `LATEST` or a timestamp in
        milliseconds.

        For a timestamp after the last record the offset is -1. With read_committed, `LATEST` is the
        last stable offset.
        """
        ...

    def written(self, topic: str) -> Mapping[int, int]:
        """Return the end offset of each partition, including records of open transactions."""
        ...

    def pause(self, seconds: float) -> None: ...


def selected(log: Log, options: SourceOptions) -> Mapping[str, TopicState]:
    """Return the topics and partitions that the options select now.

    Raises:
        UnknownTopics: a topic or partition that the options name does not exist.
    """
    if options.pattern is not None:
        matches = re.compile(options.pattern).fullmatch
        found = log.topics(None)
        return {name: found[name] for name in sorted(found) if matches(name)}
    names = options.topics if options.assign is None else tuple(options.assign)
    found = log.topics(names)
    if missing := sorted(set(names) - set(found)):
        raise UnknownTopics(f"{options.bootstrap} has no topic {', '.join(missing)}")
    if options.assign is None:
        return {name: found[name] for name in names}
    return {name: _assigned(name, found[name], numbers) for name, numbers in options.assign.items()}


def latest(log: Log, options: SourceOptions) -> Positions:
    return resolve(log, options, Bound(option="endingOffsets", kind="offset", everywhere=LATEST))


def resolve(log: Log, options: SourceOptions, bound: Bound) -> Positions:
    """Convert a start or end option to a position in every selected partition.

    Raises:
        InvalidOption: the option omits a selected partition or names another one, an offset is
            beyond the log's end, or no record is as recent as its timestamp.
        UnknownTopics: a topic or partition that the options name does not exist.
    """
    topics = selected(log, options)
    if bound.each is not None:
        _check_complete(bound, topics)
    partitions: dict[TopicPartition, Position] = {}
    for name, state in topics.items():
        resolver = _Resolver(log, name, bound, options.missing_timestamp_is_latest)
        for index, epoch in state.leader_epochs.items():
            offset = resolver.offset(index)
            partitions[TopicPartition(name, index)] = Position(offset=offset, leader_epoch=epoch)
    return Positions(
        topic_ids={name: state.topic_id for name, state in topics.items()},
        partitions=partitions,
        bootstrap=options.bootstrap,
        group_id=options.group_id,
    )


def written(log: Log, start: Positions, now: Positions) -> Positions:
    """Return end positions against which `check_lineage` can compare a query's start.

    These are the positions `now`. In a topic where `start` is beyond them, the log's real ends are
    returned, which include open transactions. Such a start is valid: the query may have read
    uncommitted records before its option changed to read_committed.
    """
    partitions = dict(now.partitions)
    for topic in {at.topic for at in partitions if _ahead(start, now, at)}:
        ends = log.written(topic)
        for at, position in now.partitions.items():
            if at.topic == topic:
                partitions[at] = replace(position, offset=ends[at.partition])
    return replace(now, partitions=partitions)


def _ahead(start: Positions, now: Positions, at: TopicPartition) -> bool:
    before = start.offset(at)
    return before is not None and before > now.partitions[at].offset


def check_lineage(start: Positions, now: Positions, *, require_progress: bool = True) -> None:
    """Check that the log is still the one that `start` was taken from.

    Raises:
        TopicRecreated: a topic's id has changed.
        OffsetWentBack: a partition ends before its position in `start`; not checked without
            `require_progress`.
    """
    for topic, topic_id in start.topic_ids.items():
        actual = now.topic_ids.get(topic)
        if actual is not None and actual != topic_id:
            raise TopicRecreated(topic, topic_id, actual)
    if not require_progress:
        return
    for at, position in start.partitions.items():
        end = now.offset(at)
        if end is not None and end < position.offset:
            raise OffsetWentBack(at.topic, at.partition, position.offset, end)


def caught_up(log: Log, attempt: Callable[[], T], clock: Clock = SYSTEM_CLOCK) -> T:
    """Return the result of `attempt`, retried while a new leader reports an end that is too low.

    After a change of leadership a broker may report an older end offset for a moment. The attempt
    is repeated for topics with replicas; otherwise its error is raised at once.

    Raises:
        OffsetWentBack, OffsetBeyondEnd: the last error, after `BEHIND_SECONDS_MAX`.
    """
    deadline = clock.monotonic() + BEHIND_SECONDS_MAX
    while True:
        try:
            return attempt()
        except (OffsetWentBack, OffsetBeyondEnd) as error:
            state = log.topics((error.topic,)).get(error.topic)
            if state is None or state.replicas <= 1 or clock.monotonic() >= deadline:
                raise
        log.pause(BEHIND_PAUSE_SECONDS)


class _Resolver:
    """Conversion of one start or end option to the offsets of one topic.

    Each distinct timestamp (or `EARLIEST` or `LATEST`) costs one request for all partitions.
    """

    def __init__(self, log: Log, topic: str, bound: Bound, missing_is_latest: bool) -> None:
        self._log = log
        self._topic = topic
        self._bound = bound
        self._missing_is_latest = missing_is_latest or bound.option.startswith("ending")
        self._known: dict[int, Mapping[int, int]] = {}

    def offset(self, partition: int) -> int:
        """Return the offset that the option means in one partition."""
        bound = self._bound
        wanted = bound.everywhere if bound.each is None else bound.each[self._topic][partition]
        if bound.kind == "offset":
            return self._at(wanted)[partition] if wanted < 0 else self._within(partition, wanted)
        found = self._at(wanted).get(partition, NOT_FOUND)
        if found != NOT_FOUND:
            return found
        if not self._missing_is_latest:
            raise InvalidOption(
                bound.option, wanted,
                f"{self._topic}-{partition} has no record with that timestamp or a later one. Set "
                "startingOffsetsByTimestampStrategy=latest to start at its end",
            )  # fmt: skip
        return self._at(LATEST)[partition]

    def _within(self, partition: int, offset: int) -> int:
        low, high = self._at(EARLIEST)[partition], self._at(LATEST)[partition]
        if offset > high and not self._bound.option.startswith("ending"):
            high = self._log.written(self._topic)[partition]
        if offset > high:
            reason = f"{self._topic}-{partition} has offsets {low} to {high}"
            raise OffsetBeyondEnd(self._bound.option, offset, self._topic, reason)
        return offset

    def _at(self, point: int) -> Mapping[int, int]:
        if point not in self._known:
            self._known[point] = self._log.offsets(self._topic, point)
        return self._known[point]


def _assigned(name: str, state: TopicState, numbers: tuple[int, ...]) -> TopicState:
    if missing := [number for number in numbers if number not in state.leader_epochs]:
        count = len(state.leader_epochs)
        raise UnknownTopics(f"topic {name} has partitions 0 to {count - 1}, but not {missing}")
    epochs = {number: state.leader_epochs[number] for number in numbers}
    return replace(state, leader_epochs=epochs)


def _check_complete(bound: Bound, topics: Mapping[str, TopicState]) -> None:
    each = bound.each or {}
    asked = {TopicPartition(topic, index) for topic, map_ in each.items() for index in map_}
    there = {
        TopicPartition(topic, index)
        for topic, state in topics.items()
        for index in state.leader_epochs
    }
    if lacking := sorted(there - asked):
        raise InvalidOption(bound.option, each, f"lacks {', '.join(map(str, lacking))}")
    if extra := sorted(asked - there):
        raise InvalidOption(
            bound.option, each, f"names {', '.join(map(str, extra))}, which is not selected"
        )
