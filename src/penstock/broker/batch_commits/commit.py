"""Core of the exactly-once sink: decides about commits without I/O.

The newest batch of a query is a row in the control plane, which decides a posted commit:

| row                      | batch posted          | decision                                     |
|--------------------------|-----------------------|----------------------------------------------|
| none                     | any                   | begin                                        |
| of another owner         | any                   | refused: the checkpoint was replaced         |
| done                     | not above the row's   | replayed                                     |
| done                     | above                 | begin                                        |
| intent                   | below                 | replayed: it was done before the intent      |
| intent                   | the same, or above    | finish the intent, then decide again         |

A commit begins by saving its intent: what to append, and for each partition the producer and the
sequence of the first record. After that it cannot be revoked, and any number of attempts finish it:
the partition's producer state shows how many records of the commit it has, because sequences count
records, and the rest is appended in the same order. That holds for any number of batches, because a
log can lose only its end.

| last sequence of the producer, relative to the commit   | meaning                               |
|---------------------------------------------------------|---------------------------------------|
| unknown producer                                        | the log has none of the commit        |
| one before its first                                    | none                                  |
| within the commit                                       | everything up to there                |
| further before its first                                | the log lost its end: new producer    |
| beyond the commit                                       | impossible: a bug                     |

An unknown producer has no records in the log, because producers of open intents do not expire. A
log loses its end without damage only where `log.flush.policy` allows it. The sequences of
replicated partitions are requested from their leaders (`replicated.py`).

Diskless partitions get their offsets in the transaction that saves the row as done (`objects.py`):
their targets have no producer, and a commit to diskless partitions only has no intent.

Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import BugError
from penstock.broker.batch_commits.errors import TargetBehind
from penstock.broker.batch_commits.manifest import TARGET_RECORDS_MAX, Manifest, TopicIdPartition
from penstock.control import SinkCommit, SinkTarget
from penstock.control.limits import SINK_TARGETS_MAX
from penstock.control.values import SEQUENCES
from penstock.records.header import NO_PRODUCER_ID

_BEHIND_FROM: Final = SEQUENCES - TARGET_RECORDS_MAX


class Decision(Enum):
    BEGIN = "begin"
    FINISH = "finish"
    REPLAYED = "replayed"
    OWNER_CHANGED = "owner changed"


def decide(row: SinkCommit | None, *, batch_id: int, owner: str | None) -> Decision:
    """Decide about a posted commit by its row; an unnamed owner is not compared."""
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
    """Return the manifest's targets whose producers continue at the row's sequences.

    Others need a new producer: the partition is new to the query, or its log lost its end.
    `last_sequences` are those of the row's producers, by partitions on brokers.
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
    """Return the targets of a new commit: those it appends to, in order, then those it keeps.

    `continuing` is the result of `continued`; each other target takes one of `new_producers`,
    except `diskless` ones, which have none and are not kept. Targets of topics outside `topic_ids`
    and targets above the limit are dropped; a dropped target gets a new producer when it is written
    to again.
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
    """Return the number of the commit's records that the partition has.

    Raises:
        TargetBehind: it has none, and lost earlier records.
        BugError: it has more than the commit.
    """
    if last_sequence is None:
        return 0
    count = (last_sequence + 1 - target.base_sequence) % SEQUENCES
    if count <= target.records:
        return count
    if count >= _BEHIND_FROM:
        raise TargetBehind(
            f"{target.topic}-{target.partition} ends with sequence {last_sequence} of producer"
            f" {target.producer_id}, the commit begins with {target.base_sequence}"
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
    """Section to be appended from its record `skip` on."""

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
    """Return the sections that are left to append, in order.

    `appended` has the number of records that each partition already has; others take no appends.
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
