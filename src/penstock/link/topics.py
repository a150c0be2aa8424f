"""Operations on links: create, compare with the source, promote, reverse. All calls block.

The target is a Penstock cluster. The source may be Apache Kafka, except for `reverse`: a former
source that becomes the linked side must be Penstock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import ClassVar, Final

from msgspec import Struct

from penstock.base.crc import crc32c
from penstock.base.errors import InvalidError, PenstockError, RetriableError
from penstock.base.settings import by_name
from penstock.base.system import SYSTEM_CLOCK
from penstock.client import Client, Node, TopicMetadata
from penstock.client.errors import broker_error
from penstock.client.fetch import Asked
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.control.rules.metadata import LINK_CLIENT, LINK_CONFIGS, LINK_SOURCE, LINK_TOPIC_ID
from penstock.control.rules.tiers import REMOTE_CONFIG
from penstock.link.groups import copy_groups
from penstock.link.source import PARTITION_BYTES, Origin, Source, source_problem
from penstock.records import BatchHeader, decode_header, split_batches
from penstock.storage.files.settings import LogConfig

_NOT_COPIED: Final = {
    **dict.fromkeys(
        ("min.insync.replicas", REMOTE_CONFIG, DISKLESS_CONFIG),
        "a linked topic has one replica on the brokers' disks",
    ),
    **dict.fromkeys(LINK_CONFIGS, "it belongs to a link of the source"),
}
"""Settings of a source topic that would not hold for a linked topic, with reasons."""
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
    `target_end` is -1 until the link has added a partition that is new at the source.
    """

    topic: str
    partition: int
    source_start: int
    source_end: int
    target_end: int
    lag_ms: int

    @property
    def records(self) -> int:
        return max(0, self.source_end - max(0, self.target_end))


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
    for setting, value in source.own_configs(name).items():
        info = known.get(setting)
        if setting in _NOT_COPIED:
            left[setting] = _NOT_COPIED[setting]
        elif info is None:
            left[setting] = "Penstock has no such setting"
        else:
            copied[setting] = value
            if info.no_effect is not None:
                left[setting] = f"copied, but without effect: {info.no_effect.why}"
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
    link = {**origin.configs, DISKLESS_CONFIG: "false"}
    for name, topic in topics.items():
        configs, notes[name] = copied_configs(source, name)
        target.create_topic(name, len(topic.partitions), configs | link, replication_factor=1)
    return notes


def linked_topics(target: Client, names: Iterable[str] = ()) -> dict[str, Origin]:
    """Return linked topics of a cluster with their sources; all of them without `names`.

    Raises:
        LinkImpossible: a named topic is not linked.
    """
    wanted = list(names)
    found = {}
    for name in wanted or [topic.name for topic in target.list_topics()]:
        origin = Origin.of(target.own_configs(name))
        if origin.bootstrap:
            found[name] = origin
    others = sorted(set(wanted) - found.keys())
    if others:
        raise LinkImpossible(f"topics {', '.join(others)} are not linked")
    return found


# -- comparison -----------------------------------------------------------------------------


def lag_of(
    source: Client, target: Client, topics: Iterable[str], *, now_ms: int | None = None
) -> list[PartitionLag]:
    """Return the lag of each partition of linked topics.

    Without `now_ms`, log starts are not requested: `lag_ms` is 0, and `source_start` is -1.
    """
    found = []
    topics = list(topics)
    for client in (source, target):
        client.metadata(topics)  # partitions may have been added
    for topic in topics:
        ends = source.list_offsets(topic)
        starts = {} if now_ms is None else source.list_offsets(topic, "earliest")
        copied = target.list_offsets(topic)
        for partition, end in ends.items():
            own_end = copied.get(partition, -1)
            age = 0
            if now_ms is not None and max(0, own_end) < end:
                header = _header_at(source, topic, partition, max(own_end, starts[partition]))
                age = max(0, now_ms - header.base_timestamp) if header else 0
            found.append(
                PartitionLag(
                    topic=topic, partition=partition, source_start=starts.get(partition, -1),
                    source_end=end, target_end=own_end, lag_ms=age,
                )
            )  # fmt: skip
    return found


def problems(source: Client, target: Client, topics: Sequence[str]) -> dict[str, str]:
    """Return the linked topics that cannot follow their source's topic, with cause and remedy."""
    there = source.metadata(topics).topics
    found = {
        name: source_problem(
            name, there.get(name), target.own_configs(name).get(LINK_TOPIC_ID, ""),
            len(target.describe_topic(name).partitions),
        )
        for name in topics
    }  # fmt: skip
    return {name: reason for name, reason in found.items() if reason}


def _header_at(client: Client, topic: str, partition: int, offset: int) -> BatchHeader | None:
    data = client.fetch_raw(topic, partition, offset, max_bytes=1).data  # one batch
    return decode_header(data) if data else None


def common_starts(source: Client, target: Client, topic: str) -> dict[int, int]:
    """Return the offsets from which both sides have records, by partition."""
    starts = source.list_offsets(topic, "earliest")
    own = target.list_offsets(topic, "earliest")
    return {partition: max(starts[partition], own[partition]) for partition in starts.keys() & own}


def compare(source: Client, target: Client, topic: str) -> list[Checksums]:
    """Read the offsets that both sides have, and return their checksums by source partition."""
    ends, own_ends = source.list_offsets(topic), target.list_offsets(topic)
    starts = common_starts(source, target, topic)
    found = []
    for partition, source_end in sorted(ends.items()):
        start, end = starts.get(partition, 0), min(source_end, own_ends.get(partition, 0))
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
        for header in split_batches(fetched.data):
            if not header.is_filler and start <= header.base_offset < end:
                found = crc32c(header.crc.to_bytes(4), found)
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
) -> None:
    """Wait until no partition lags by more than a number of records.

    Raises:
        LinkBehind: partitions still lag when the time is over.
    """
    until = SYSTEM_CLOCK.monotonic() + timeout_seconds
    while True:
        lags = lag_of(source, target, topics)
        behind = [lag for lag in lags if lag.records > records or lag.target_end < 0]
        if not behind:
            return
        if SYSTEM_CLOCK.monotonic() > until:
            worst = max(behind, key=lambda lag: lag.records)
            raise LinkBehind(
                f"{len(behind)} partitions lag after {timeout_seconds:g} s; {worst.topic}-"
                f"{worst.partition} by {worst.records} records. Stop the producers of the source,"
                " or give more time"
            )
        time.sleep(LOOK_SECONDS)


def end_links(target: Client, topics: Iterable[str]) -> None:
    """End the links of topics permanently, so that the topics accept producers.

    Transactions that were open in the source are aborted, because the target has no coordinator for
    them.

    Raises:
        PenstockError: a topic could not be changed.
        LinkBehind: the links have ended, but a broker has not noticed that in time, or transactions
            are still open.
    """
    before = {name: _epoch(target.describe_topic(name)) for name in topics}
    for name in before:
        target.alter_configs("topic", name, delete=[LINK_SOURCE, LINK_CLIENT])
    for node in target.metadata(()).nodes.values():
        _await_epochs(target, node, before)
    for name in before:
        _abort_open(target, name)


def _abort_open(target: Client, topic: str) -> None:
    until = SYSTEM_CLOCK.monotonic() + NOTICED_SECONDS
    while True:
        try:
            target.abort_open(topic)
            return
        except PenstockError as error:
            if not isinstance(error, RetriableError) or SYSTEM_CLOCK.monotonic() > until:
                raise LinkBehind(
                    f"the links have ended, but open transactions of topic {topic!r} could not be"
                    f" aborted: {error}. Abort them with kafka-transactions.sh, which needs"
                    " ClusterAction on the cluster"
                ) from error
        time.sleep(LOOK_SECONDS)


def _epoch(topic: TopicMetadata) -> int:
    return max(row.leader_epoch for row in topic.partitions)


def _await_epochs(target: Client, node: Node, before: Mapping[str, int]) -> None:
    """Wait until a broker serves topics in leader epochs above those of their links."""
    until = SYSTEM_CLOCK.monotonic() + NOTICED_SECONDS
    while True:
        late = list(before)
        with suppress(RetriableError):  # the broker may just restart
            known = target.metadata_of(node, before).topics
            late = [name for name in before if _epoch(known[name]) <= before[name]]
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
        LinkImpossible: a topic is not linked, or cannot follow its source.
        LinkBehind: records are still missing after the time; the links stay.
    """
    linked_topics(target, topics)
    failed: dict[str, str] = {}
    if source is not None:
        if reasons := problems(source, target, topics):
            raise LinkImpossible("; ".join(reasons.values()))
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

    The logs are compared by the leader epochs of their records, as a follower replica compares
    them.

    Raises:
        LinkImpossible: a topic is missing, or has another number of partitions.
        PenstockError: the leader of a partition cannot compare the logs.
    """
    found: list[Surplus] = []
    with closing(Source(*origin)) as source:
        there = source.topics(topics)
        for name in topics:
            own = follower.describe_topic(name)
            if name not in there or len(there[name].partitions) != len(own.partitions):
                raise LinkImpossible(
                    f"topic {name!r} must have the same partitions on both clusters"
                )
            starts = follower.list_offsets(name, "earliest")
            ends = follower.list_offsets(name)
            for row in there[name].partitions:
                index, end = row.index, ends[row.index]
                if end == starts[index]:
                    continue
                last = _header_at(follower, name, index, end - 1)
                asked = Asked(end, last.partition_leader_epoch if last else -1)
                [fetched] = source.fetch(row.leader, {name: {index: asked}}, there)
                if fetched.part.error_code:
                    raise broker_error(fetched.part.error_code, f"fetch of {name}-{index}")
                parts = fetched.part.parts
                if parts is not None and parts.offset < end:
                    found.append(
                        Surplus(
                            topic=name, partition=index, start=parts.offset,
                            records=end - parts.offset,
                        )
                    )  # fmt: skip
    return found


def reverse(follower: Client, origin: Origin, topics: Sequence[str]) -> None:
    """Make topics of a former source follow the promoted topics of `origin`.

    Records that `surplus` reports are removed.

    Raises:
        PenstockError: a topic cannot be linked.
    """
    for name in topics:
        follower.alter_configs("topic", name, origin.configs)


def delete(target: Client, topics: Sequence[str]) -> None:
    """Delete linked topics; topics that are not linked are rejected, and nothing is deleted."""
    for name in linked_topics(target, topics):
        target.delete_topic(name)
