"""The exactly-once sink's decisions: a pure core.

A query's commits are a row in the control plane, its newest batch. A post is answered by looking
at it:

| row                      | batch posted          | decision                                     |
|--------------------------|-----------------------|----------------------------------------------|
| none                     | any                   | begin                                        |
| of another owner         | any                   | refused: the checkpoint was replaced         |
| done                     | not above the row's   | replayed                                     |
| done                     | above                 | begin                                        |
| intent                   | below                 | replayed: it was done before the intent      |
| intent                   | the same, or above    | finish the intent, then look again           |

To begin is to save the intent: what to append, and for each partition the producer and the
sequence of its first record. From then on the commit cannot be taken back, and any number of
attempts finish it: the partition's producer state says how many of the commit's records it has,
as sequences count records, and the rest is appended in the same order. That is exact for any
number of batches, because a log loses nothing but its end.

| producer's last sequence, from the commit's first one   | means                                 |
|---------------------------------------------------------|---------------------------------------|
| none is known                                           | nothing of the commit is there        |
| before it by one                                        | nothing                               |
| within the commit                                       | everything up to there                |
| before it by more                                       | the log lost its end: new producer    |
| beyond the commit                                       | cannot be: a fault of ours            |

An unknown producer means that nothing is there because producers of open intents do not expire.
A log loses its end, without damage, only where `log.flush.policy` allows it.

All that is for logs on brokers. Partitions of diskless topics get their offsets in the transaction
that saves the row as done (`objects.py`): their lanes have no producer, and a commit of nothing
else has no intent.

Source: KIP-98.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import UUID

from penstock.base.errors import BugError
from penstock.broker.sinks.errors import LaneBehind
from penstock.broker.sinks.limits import LANE_RECORDS_MAX
from penstock.broker.sinks.manifest import LaneKey, Manifest
from penstock.control import SinkCommit, SinkLane
from penstock.control.limits import SINK_LANES_MAX
from penstock.control.values import SEQUENCES
from penstock.records.header import NO_PRODUCER_ID

_BEHIND_FROM: Final = SEQUENCES - LANE_RECORDS_MAX


class Decision(Enum):
    """What a post asks for, given the row that there is."""

    BEGIN = "begin"
    FINISH = "finish"
    REPLAYED = "replayed"
    OWNER_CHANGED = "owner changed"


def decide(row: SinkCommit | None, *, batch_id: int, owner: str | None) -> Decision:
    """Look at a post; see the module's text. An owner who is not named is not compared."""
    if row is None:
        return Decision.BEGIN
    if row.owner is not None and owner is not None and row.owner != owner:
        return Decision.OWNER_CHANGED
    if batch_id < row.batch_id:
        return Decision.REPLAYED
    if row.state == "intent":
        return Decision.FINISH
    return Decision.REPLAYED if batch_id == row.batch_id else Decision.BEGIN


def key_of(lane: SinkLane) -> LaneKey:
    """The partition that a lane writes to."""
    return LaneKey(lane.topic_id, lane.partition)


def has_producer(lane: SinkLane) -> bool:
    """Whether a lane is appended to a log on a broker, where sequences say what is there."""
    return lane.producer_id != NO_PRODUCER_ID


def continued(
    row: SinkCommit | None, manifest: Manifest, last_sequences: Mapping[LaneKey, int | None]
) -> dict[LaneKey, SinkLane]:
    """The lanes of the manifest whose producer goes on where the row says that it stopped.

    The others need a new producer: the partition is new to the query, or its log lost its end.
    `last_sequences` has what the partitions remember of the row's producers, by those on brokers.
    """
    known = {} if row is None else {key_of(lane): lane for lane in row.lanes}
    found: dict[LaneKey, SinkLane] = {}
    for key in manifest.lanes():
        lane = known.get(key)
        last = last_sequences.get(key)
        if (
            lane is not None
            and has_producer(lane)
            and last in (None, (lane.next_sequence - 1) % SEQUENCES)
        ):
            found[key] = lane
    return found


def plan_lanes(
    row: SinkCommit | None,
    manifest: Manifest,
    *,
    going_on: Mapping[LaneKey, SinkLane],
    diskless: Collection[LaneKey] = (),
    new_producers: Iterator[int],
    topic_ids: frozenset[UUID],
) -> tuple[SinkLane, ...]:
    """The lanes of a new commit: those that it writes to, in order, and those that it keeps.

    `going_on` is what `continued` found; each other lane takes one of `new_producers`, but for
    those of `diskless` partitions, which have none, and are kept no longer. Lanes of
    topics that are not in `topic_ids` any more are dropped, and so are those above the limit: a
    dropped lane gets a new producer when it is written to again.
    """
    lanes: dict[LaneKey, SinkLane] = {}
    for key, (topic, records) in manifest.lanes().items():
        lane = going_on.get(key)
        producer_id, base_sequence = NO_PRODUCER_ID, 0
        if key not in diskless:
            producer_id = next(new_producers) if lane is None else lane.producer_id
            base_sequence = 0 if lane is None else lane.next_sequence
        lanes[key] = SinkLane(
            topic=topic,
            topic_id=key.topic_id,
            partition=key.partition,
            producer_id=producer_id,
            base_sequence=base_sequence,
            records=records,
        )
    for lane in () if row is None else row.lanes:
        key = key_of(lane)
        if len(lanes) >= SINK_LANES_MAX:
            break
        if key not in lanes and lane.topic_id in topic_ids and has_producer(lane):
            lanes[key] = dataclasses.replace(
                lane, base_sequence=lane.next_sequence, records=0, base_offset=-1, next_offset=-1
            )
    return tuple(lanes.values())


def appended_records(lane: SinkLane, last_sequence: int | None) -> int:
    """How many of the commit's records the partition has; see the module's text.

    Raises:
        LaneBehind: it has none, and lost some of those before.
        BugError: it has more than the commit brings.
    """
    if last_sequence is None:
        return 0
    count = (last_sequence + 1 - lane.base_sequence) % SEQUENCES
    if count <= lane.records:
        return count
    if count >= _BEHIND_FROM:
        raise LaneBehind(
            f"{lane.topic}-{lane.partition} ends with sequence {last_sequence} of producer"
            f" {lane.producer_id}, the commit begins with {lane.base_sequence}"
        )
    raise BugError(
        f"{lane.topic}-{lane.partition} ends with sequence {last_sequence} of producer"
        f" {lane.producer_id}, beyond the {lane.records} records from {lane.base_sequence}"
    )


def renewed(
    lanes: tuple[SinkLane, ...], behind: frozenset[LaneKey], new_producers: Iterator[int]
) -> tuple[SinkLane, ...]:
    """The lanes with a new producer for each that is behind; nothing of those is in the log."""
    return tuple(
        dataclasses.replace(lane, producer_id=next(new_producers), base_sequence=0)
        if key_of(lane) in behind
        else lane
        for lane in lanes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A section that is to be appended, from its record `skip` on."""

    blob: str
    lane: LaneKey
    position: int
    end: int
    records: int
    skip: int
    producer_id: int
    base_sequence: int
    """That of the section's first record."""


def schedule(
    manifest: Manifest, lanes: tuple[SinkLane, ...], appended: Mapping[LaneKey, int]
) -> list[Run]:
    """What is left to append, in order.

    `appended` has how many records each partition has already; a partition that is not in it
    takes no appends.
    """
    by_key = {key_of(lane): lane for lane in lanes}
    counts = dict.fromkeys(by_key, 0)
    runs: list[Run] = []
    for blob in manifest.blobs:
        for section in blob.sections:
            key = section.lane
            start = counts[key]
            counts[key] = start + section.records
            there = appended.get(key)
            if there is None or there >= start + section.records:
                continue
            runs.append(
                Run(
                    blob=blob.name,
                    lane=key,
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
    """Every section, as it is read before there is an intent."""
    return [
        Run(
            blob=blob.name,
            lane=section.lane,
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
