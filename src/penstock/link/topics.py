"""Operations on links: create, compare with the source, promote, reverse. All calls block.

The target is a Penstock cluster. The source may be Apache Kafka, except for `reverse`: a former
source that becomes the linked side must be Penstock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from msgspec import Struct

from penstock.base.crc import crc32c
from penstock.base.errors import InvalidError, RetriableError
from penstock.base.settings import by_name
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.client import Client, Node, TopicMetadata
from penstock.client.fetch import Asked
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.control.rules.metadata import LINK_CLIENT, LINK_EPOCH, LINK_SOURCE
from penstock.link.groups import copy_groups
from penstock.link.source import PARTITION_BYTES, Origin, Source
from penstock.records import decode_header, split_batches
from penstock.storage.files.settings import LogConfig

_NOT_COPIED: Final = frozenset({
    "min.insync.replicas", "remote.storage.enable", DISKLESS_CONFIG, LINK_SOURCE, LINK_CLIENT,
    LINK_EPOCH,
})  # fmt: skip
"""Settings of a source topic that would not hold for a linked topic, which has one replica."""
_OWN: Final = "dynamic topic"
_CRC: Final = 17
"""Position of the CRC in a batch header; it has 4 bytes."""
LOOK_SECONDS: Final = 0.05
NOTICED_SECONDS: Final = 10.0
"""Time in which all brokers notice that links have ended."""


class LinkImpossible(InvalidError):
    """Topics that cannot be linked or promoted; the message has the reason for each of them."""

    code: ClassVar[str] = "invalid_request"


class LinkBehind(RetriableError):
    """Link that did not reach the end of its source within the given time."""

    code: ClassVar[str] = "request_timed_out"


class PartitionLag(Struct, frozen=True, kw_only=True):
    """Distance of a linked partition from its source.

    `lag_ms` is the age in milliseconds of the oldest record that is not copied; 0 without any.
    """

    topic: str
    partition: int
    source_start: int
    source_end: int
    target_end: int
    lag_ms: int

    @property
    def records(self) -> int:
        return max(0, self.source_end - self.target_end)


class Checksums(Struct, frozen=True, kw_only=True):
    """CRC-32C over the batches' CRC fields of the same offsets on both sides."""

    topic: str
    partition: int
    start: int
    end: int
    source: int
    target: int

    @property
    def equal(self) -> bool:
        return self.source == self.target


# -- creation -------------------------------------------------------------------------------


def copied_configs(source: Client, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return a source topic's own settings to copy, and the reason for each other one."""
    known = by_name(LogConfig)
    copied: dict[str, str] = {}
    left: dict[str, str] = {}
    for entry in source.describe_configs("topic", name):
        if entry.source != _OWN or entry.value is None:
            continue
        info = known.get(entry.name)
        if entry.name in _NOT_COPIED:
            left[entry.name] = "a linked topic has one replica on the brokers' disks"
        elif info is None:
            left[entry.name] = "Penstock has no such setting"
        else:
            copied[entry.name] = entry.value
            if info.no_effect is not None:
                left[entry.name] = f"copied, but without effect: {info.no_effect.why}"
    return copied, left


def selected(source: Client, names: Sequence[str]) -> dict[str, TopicMetadata]:
    """Return topics of the source by name; all topics except internal ones if `names` is empty.

    Raises:
        LinkImpossible: the source has no topic of one of the names.
    """
    found = {topic.name: topic for topic in source.list_topics()}
    missing = sorted(set(names) - found.keys())
    if missing:
        raise LinkImpossible(f"the source has no topics {', '.join(missing)}: check their names")
    return {name: found[name] for name in names or sorted(found)}


def create(
    source: Client, target: Client, names: Sequence[str], origin: Origin
) -> dict[str, dict[str, str]]:
    """Create linked topics with the partitions and settings of the source.

    Returns, by topic, the settings that are not copied or have no effect, with reasons.

    Raises:
        LinkImpossible: a topic does not exist in the source, or exists in the target; nothing is
            created.
    """
    topics = selected(source, names)
    if source.metadata(()).cluster_id == target.metadata(()).cluster_id:
        raise LinkImpossible("source and target are the same cluster")
    there = {topic.name for topic in target.list_topics(internal=True)}
    taken = sorted(there & topics.keys())
    if taken:
        raise LinkImpossible(
            f"the target already has topics {', '.join(taken)}: delete them, or link others"
        )
    notes = {}
    link = {
        LINK_SOURCE: origin.bootstrap,
        LINK_CLIENT: origin.client_config,
        DISKLESS_CONFIG: "false",
    }
    for name, topic in topics.items():
        configs, notes[name] = copied_configs(source, name)
        target.create_topic(
            name,
            len(topic.partitions),
            {**configs, **{key: value for key, value in link.items() if value}},
            replication_factor=1,
        )
    return notes


def linked_topics(target: Client, names: Iterable[str] = ()) -> dict[str, Origin]:
    """Return linked topics of a cluster with their sources; all of them without `names`.

    Raises:
        LinkImpossible: a named topic is not linked.
    """
    wanted = list(names)
    found = {}
    for name in wanted or [topic.name for topic in target.list_topics()]:
        values = {entry.name: entry.value or "" for entry in target.describe_configs("topic", name)}
        if values.get(LINK_SOURCE):
            found[name] = Origin(values[LINK_SOURCE], values.get(LINK_CLIENT, ""))
    others = sorted(set(wanted) - found.keys())
    if others:
        raise LinkImpossible(f"topics {', '.join(others)} are not linked")
    return found


# -- comparison -----------------------------------------------------------------------------


def lag_of(
    source: Client, target: Client, topics: Iterable[str], *, now_ms: int | None = None
) -> list[PartitionLag]:
    """Return the lag of each partition of linked topics; with its age if `now_ms` is given."""
    found = []
    for topic in topics:
        ends, starts = source.list_offsets(topic), source.list_offsets(topic, "earliest")
        copied = target.list_offsets(topic)
        for partition, end in ends.items():
            own_end = copied.get(partition, 0)
            age = 0
            if now_ms is not None and own_end < end:
                first = max(own_end, starts[partition])
                age = max(0, now_ms - _time_at(source, topic, partition, first, now_ms))
            found.append(
                PartitionLag(
                    topic=topic, partition=partition, source_start=starts[partition],
                    source_end=end, target_end=own_end, lag_ms=age,
                )
            )  # fmt: skip
    return found


def _time_at(client: Client, topic: str, partition: int, offset: int, now_ms: int) -> int:
    data = client.fetch_raw(topic, partition, offset).data
    return decode_header(data).base_timestamp if data else now_ms


def compare(source: Client, target: Client, topic: str) -> list[Checksums]:
    """Read the offsets that both sides have, and return their checksums by partition."""
    starts, own_starts = (
        source.list_offsets(topic, "earliest"),
        target.list_offsets(topic, "earliest"),
    )
    ends, own_ends = source.list_offsets(topic), target.list_offsets(topic)
    found = []
    for partition in sorted(ends.keys() & own_ends.keys()):
        start = max(starts[partition], own_starts[partition])
        end = min(ends[partition], own_ends[partition])
        found.append(
            Checksums(
                topic=topic, partition=partition, start=start, end=end,
                source=checksum(source, topic, partition, start, end),
                target=checksum(target, topic, partition, start, end),
            )
        )  # fmt: skip
    return found


def checksum(client: Client, topic: str, partition: int, start: int, end: int) -> int:
    """Return the CRC-32C over the CRC fields of the batches with offsets in [start, end)."""
    found, offset = 0, start
    while offset < end:
        fetched = client.fetch_raw(topic, partition, offset, max_bytes=PARTITION_BYTES)
        position = 0
        for header in split_batches(fetched.data):
            if not header.is_filler and start <= header.base_offset < end:
                place = position + _CRC
                found = crc32c(fetched.data[place : place + 4], found)
            position += header.size_bytes
        if fetched.next_offset <= offset:
            break
        offset = fetched.next_offset
    return found


# -- promotion ------------------------------------------------------------------------------


def wait_until_copied(
    source: Client,
    target: Client,
    topics: Sequence[str],
    *,
    timeout_seconds: float,
    records: int = 0,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Wait until no partition lags by more than a number of records.

    Raises:
        LinkBehind: partitions still lag when the time is over.
    """
    until = clock.monotonic() + timeout_seconds
    while True:
        behind = [lag for lag in lag_of(source, target, topics) if lag.records > records]
        if not behind:
            return
        if clock.monotonic() > until:
            worst = max(behind, key=lambda lag: lag.records)
            raise LinkBehind(
                f"{len(behind)} partitions lag after {timeout_seconds:g} s; {worst.topic}-"
                f"{worst.partition} by {worst.records} records. Stop the producers of the source,"
                " or give more time"
            )
        time.sleep(LOOK_SECONDS)


def end_links(target: Client, topics: Iterable[str]) -> dict[str, int]:
    """End the links of topics permanently; return the number of aborted transactions by topic.

    The topics accept producers from then on. Transactions that were open in the source are aborted,
    because this cluster has no coordinator for them.

    Raises:
        PenstockError: a topic could not be changed.
        LinkBehind: a broker has not noticed the end of the links in time.
    """
    before = {name: _epoch(target.describe_topic(name)) for name in topics}
    for name in before:
        target.alter_configs("topic", name, delete=[LINK_SOURCE, LINK_CLIENT])
    for node in target.metadata(()).nodes.values():
        _await_epochs(target, node, before)
    return {name: target.abort_open(name) for name in before}


def _epoch(topic: TopicMetadata) -> int:
    return max(row.leader_epoch for row in topic.partitions)


def _await_epochs(target: Client, node: Node, before: Mapping[str, int]) -> None:
    """Wait until a broker serves topics in leader epochs above those of their links."""
    until = SYSTEM_CLOCK.monotonic() + NOTICED_SECONDS
    while True:
        known = target.metadata_of(node, before).topics
        late = [name for name, epoch in before.items() if _epoch(known[name]) <= epoch]
        if not late:
            return
        if SYSTEM_CLOCK.monotonic() > until:
            raise LinkBehind(
                f"the links of {', '.join(late)} have ended, but broker {node.node_id} has not"
                f" noticed that within {NOTICED_SECONDS:g} s. Check the broker, and abort open"
                " transactions of these topics"
            )
        time.sleep(LOOK_SECONDS)


def promote(
    source: Client | None,
    target: Client,
    topics: Sequence[str],
    *,
    timeout_seconds: float,
) -> dict[str, str]:
    """Copy the rest of the source and the groups' offsets, then end the links.

    Without a source, because it is lost, the topics keep the records that they have. Returns the
    reason for each group whose offsets were not copied.

    Raises:
        LinkImpossible: a topic is not linked.
        LinkBehind: records are still missing after the time; the links stay.
    """
    linked_topics(target, topics)
    failed: dict[str, str] = {}
    if source is not None:
        wait_until_copied(source, target, topics, timeout_seconds=timeout_seconds)
        failed = copy_groups(source, target, topics)
    end_links(target, topics)
    return failed


# -- reversal -------------------------------------------------------------------------------


class Surplus(Struct, frozen=True, kw_only=True):
    """Records of a partition that the other cluster does not have, from offset `start` on."""

    topic: str
    partition: int
    start: int
    records: int


def surplus(follower: Client, origin: Origin, topics: Sequence[str]) -> list[Surplus]:
    """Return the records that topics lose when they begin to follow the topics of `origin`.

    The logs are compared by leader epochs, as a follower replica compares them.

    Raises:
        LinkImpossible: a topic is missing, has another number of partitions, or is linked.
    """
    source = Source(*origin)
    try:
        there = source.topics(topics)
        found: list[Surplus] = []
        for name in topics:
            own = follower.describe_topic(name)
            if name not in there or len(there[name].partitions) != len(own.partitions):
                raise LinkImpossible(
                    f"topic {name!r} must have the same partitions on both clusters"
                )
            ends = follower.list_offsets(name)
            for row, other in zip(own.partitions, there[name].partitions, strict=True):
                asked = Asked(ends[row.index], row.leader_epoch)
                wanted = {name: {row.index: asked}}
                for fetched in source.fetch(other.leader, wanted, there):
                    parts = fetched.part.parts
                    start = ends[row.index] if parts is None else min(parts.offset, asked.offset)
                    if start < asked.offset:
                        found.append(
                            Surplus(
                                topic=name, partition=row.index, start=start,
                                records=asked.offset - start,
                            )
                        )  # fmt: skip
        return found
    finally:
        source.close()


def reverse(follower: Client, origin: Origin, topics: Sequence[str]) -> None:
    """Make topics of a former source follow the promoted topics of `origin`.

    Records that `surplus` reports are removed.

    Raises:
        PenstockError: a topic cannot be linked.
    """
    changes: Mapping[str, str] = {
        LINK_SOURCE: origin.bootstrap,
        **({LINK_CLIENT: origin.client_config} if origin.client_config else {}),
    }
    for name in topics:
        follower.alter_configs("topic", name, changes)


def delete(target: Client, topics: Sequence[str]) -> None:
    """Delete linked topics; topics that are not linked are rejected, and nothing is deleted."""
    for name in linked_topics(target, topics):
        target.delete_topic(name)
