"""Core of the exactly-once sink: decides about commits without I/O.

The control plane stores a row with the newest batch of each query. The row decides a posted commit:

| row                      | posted batch id       | decision                                     |
|--------------------------|-----------------------|----------------------------------------------|
| none                     | any                   | begin                                        |
| of another owner         | any                   | refuse: the checkpoint was replaced          |
| done                     | up to the row's       | replayed: the log has the batch already      |
| done                     | above the row's       | begin                                        |
| intent                   | below the row's       | replayed: the log has the batch already      |
| intent                   | the row's, or above   | finish the intent, then decide again         |

A commit begins by saving its intent: the sections to append, and for each partition the producer
and the sequence of the first record. From then on the commit cannot be revoked, and any later
attempt can finish it. Sequences count records, so the producer state of a partition shows how many
records of the commit the partition has. The attempt appends the others in the same order. This
works for any number of record batches, because a log can lose only its end.

| last sequence of the producer in the log                | meaning                               |
|---------------------------------------------------------|---------------------------------------|
| unknown producer                                        | the log has no record of the commit   |
| one below the commit's first sequence                   | the log has no record of the commit   |
| within the commit                                       | the log has all records up to it      |
| further below the commit's first sequence               | the log lost its end: new producer    |
| above the commit                                        | impossible: a bug                     |

An unknown producer has no records in the log, because producers of open intents do not expire. An
undamaged log loses its end only if `log.flush.policy` allows that. The sequences of replicated
partitions are requested from their leaders (`roll_forward.py`).

Diskless partitions get their offsets in the transaction that saves the row as done
(`roll_forward.py`). Their targets have no producer, and a commit that writes only diskless
partitions has no intent.

Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import BugError
from penstock.base.metrics import Metrics, Registry, counter, counters, gauge
from penstock.broker.batch_commits.manifest import (
    TARGET_RECORDS_MAX,
    Manifest,
    TargetBehind,
    TopicIdPartition,
)
from penstock.control import SinkCommit, SinkTarget
from penstock.control.values.errors import SINK_TARGETS_MAX
from penstock.control.values.topics import SEQUENCES
from penstock.records.header import NO_PRODUCER_ID

if TYPE_CHECKING:
    import asyncio

    from penstock.base.system import Clock, Randomness
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.listeners import Identity
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.requests.schema_ids import SchemaChecks
    from penstock.control import ControlPlane
    from penstock.diskless.topics.service import DisklessService
    from penstock.partitions import GroupCommits
    from penstock.storage import LogStore


_BEHIND_FROM: Final = SEQUENCES - TARGET_RECORDS_MAX


CLIENT_ID: Final = "penstock-sink"


class Decision(Enum):
    BEGIN = "begin"
    FINISH = "finish"
    REPLAYED = "replayed"
    OWNER_CHANGED = "owner changed"


def decide(row: SinkCommit | None, *, batch_id: int, owner: str | None) -> Decision:
    """Return the decision about a posted commit. Owners are compared only if both are known."""
    if row is None:
        return Decision.BEGIN
    if row.owner is not None and owner is not None and row.owner != owner:
        return Decision.OWNER_CHANGED
    if batch_id < row.batch_id:
        return Decision.REPLAYED
    if row.state == "intent":
        return Decision.FINISH
    return Decision.REPLAYED if batch_id == row.batch_id else Decision.BEGIN


def key_of(target: SinkTarget) -> TopicIdPartition:
    return TopicIdPartition(target.topic_id, target.partition)


def has_producer(target: SinkTarget) -> bool:
    """Whether a target is appended to a log on a broker, by an idempotent producer."""
    return target.producer_id != NO_PRODUCER_ID


def continued(
    row: SinkCommit | None,
    manifest: Manifest,
    last_sequences: Mapping[TopicIdPartition, int | None],
) -> dict[TopicIdPartition, SinkTarget]:
    """Return the row's targets that the manifest writes again with the same producer.

    Other partitions need a new producer: they are new to the query, or their log lost its end.
    `last_sequences` are the last sequences of the row's producers in partitions on brokers; None
    for an unknown producer.
    """
    known = {} if row is None else {key_of(target): target for target in row.targets}
    found: dict[TopicIdPartition, SinkTarget] = {}
    for key in manifest.targets():
        target = known.get(key)
        last = last_sequences.get(key)
        if (
            target is not None
            and has_producer(target)
            and last in (None, (target.next_sequence - 1) % SEQUENCES)
        ):
            found[key] = target
    return found


def plan_targets(
    row: SinkCommit | None,
    manifest: Manifest,
    *,
    continuing: Mapping[TopicIdPartition, SinkTarget],
    diskless: Collection[TopicIdPartition] = (),
    new_producers: Iterator[int],
    topic_ids: frozenset[UUID],
) -> tuple[SinkTarget, ...]:
    """Return the targets of a new commit: first those it writes, in order, then those it keeps.

    `continuing` is the result of `continued`. Every other written target takes an id from
    `new_producers`, except `diskless` targets, which have no producer. Kept targets are earlier
    targets with a producer. They are dropped if their topic is not in `topic_ids`, or if there are
    more than `SINK_TARGETS_MAX`. A dropped target gets a new producer when it is written again.
    """
    targets: dict[TopicIdPartition, SinkTarget] = {}
    for key, (topic, records) in manifest.targets().items():
        target = continuing.get(key)
        producer_id, base_sequence = NO_PRODUCER_ID, 0
        if key not in diskless:
            producer_id = next(new_producers) if target is None else target.producer_id
            base_sequence = 0 if target is None else target.next_sequence
        targets[key] = SinkTarget(
            topic=topic,
            topic_id=key.topic_id,
            partition=key.partition,
            producer_id=producer_id,
            base_sequence=base_sequence,
            records=records,
        )
    for target in () if row is None else row.targets:
        key = key_of(target)
        if len(targets) >= SINK_TARGETS_MAX:
            break
        if key not in targets and target.topic_id in topic_ids and has_producer(target):
            targets[key] = replace(
                target,
                base_sequence=target.next_sequence,
                records=0,
                base_offset=-1,
                next_offset=-1,
            )
    return tuple(targets.values())


def appended_records(target: SinkTarget, last_sequence: int | None) -> int:
    """Return the number of the commit's records that a partition's log has already.

    `last_sequence` is the last sequence of the target's producer in the log, None without one.

    Raises:
        TargetBehind: the partition has none of them, and lost earlier records.
        BugError: the partition has more records of the producer than the commit.
    """
    if last_sequence is None:
        return 0
    count = (last_sequence + 1 - target.base_sequence) % SEQUENCES
    if count <= target.records:
        return count
    if count >= _BEHIND_FROM:
        raise TargetBehind(
            f"{target.topic}-{target.partition} ends with sequence {last_sequence} of producer"
            f" {target.producer_id}, but the commit begins with {target.base_sequence}"
        )
    raise BugError(
        f"{target.topic}-{target.partition} ends with sequence {last_sequence} of producer"
        f" {target.producer_id}, beyond the {target.records} records from {target.base_sequence}"
    )


def renewed(
    targets: tuple[SinkTarget, ...],
    behind: frozenset[TopicIdPartition],
    new_producers: Iterator[int],
) -> tuple[SinkTarget, ...]:
    return tuple(
        replace(target, producer_id=next(new_producers), base_sequence=0)
        if key_of(target) in behind
        else target
        for target in targets
    )


class Run(Struct, frozen=True, kw_only=True):
    """Section of a staged blob to append to one partition.

    The first `skip` of its records are in the log already, from an earlier attempt.
    """

    blob: str
    target: TopicIdPartition
    position: int
    end: int
    records: int
    skip: int
    producer_id: int
    base_sequence: int


def schedule(
    manifest: Manifest, targets: tuple[SinkTarget, ...], appended: Mapping[TopicIdPartition, int]
) -> list[Run]:
    """Return the sections that are still to be appended, in order.

    `appended` contains the number of the commit's records that each partition already has. Nothing
    is appended to partitions without an entry.
    """
    by_key = {key_of(target): target for target in targets}
    counts = dict.fromkeys(by_key, 0)
    runs: list[Run] = []
    for blob in manifest.blobs:
        for section in blob.sections:
            key = section.target
            start = counts[key]
            counts[key] = start + section.records
            there = appended.get(key)
            if there is None or there >= start + section.records:
                continue
            runs.append(
                Run(
                    blob=blob.name,
                    target=key,
                    position=section.position,
                    end=section.position + section.size_bytes,
                    records=section.records,
                    skip=max(0, there - start),
                    producer_id=by_key[key].producer_id,
                    base_sequence=(by_key[key].base_sequence + start) % SEQUENCES,
                )
            )
    return runs


def runs_to_verify(manifest: Manifest) -> list[Run]:
    return [
        Run(
            blob=blob.name,
            target=section.target,
            position=section.position,
            end=section.position + section.size_bytes,
            records=section.records,
            skip=0,
            producer_id=-1,
            base_sequence=0,
        )
        for blob in manifest.blobs
        for section in blob.sections
    ]


class SinkContext(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    control: ControlPlane
    store: LogStore
    clock: Clock
    randomness: Randomness
    registry: Registry
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    commits: GroupCommits
    identity: Identity
    diskless: DisklessService | None
    schema_checks: SchemaChecks
    stopping: asyncio.Event


class SinkCounters(Metrics, prefix="penstock_sink_"):
    commits: dict[str, int] = counters(
        "commits_total", "Posted commits of exactly-once sinks, by outcome.", "outcome"
    )
    records = counter(
        "records_total",
        "Records appended by commits of exactly-once sinks, diskless topics included.",
    )
    size_bytes = counter(
        "bytes_total", "Bytes of record batches appended by commits of exactly-once sinks."
    )
    redrives = counter("redrives_total", "Retries of unfinished commits by the broker itself.")
    skipped = counter(
        "skipped_partitions_total",
        "Partitions of commits that were skipped because their topic was deleted.",
    )
    renewed = counter(
        "renewed_producers_total",
        "Partitions that got a new producer because their log lost its end.",
    )
    open_intents = gauge(
        "open_intents", "Commits of exactly-once sinks that are recorded but not finished."
    )
    staged_bytes = gauge("staged_bytes", "Bytes of staged blobs.")
    staged_blobs = gauge("staged_blobs", "Files in the staging directory.")
    orphans = counter(
        "orphans_removed_total", "Staged blobs that were removed because no commit named them."
    )

    def __init__(self) -> None:
        super().__init__()
        self.commits.update(appended=0, replayed=0, refused=0, failed=0)
