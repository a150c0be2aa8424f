"""Rules that all methods of diskless topics share: keys, leases, repeated commits, rejections.

Pure functions. `commit_rules.py` places entries; `index_rules.py` has finds, retention and swaps.

The result of a commit, by the state of the object's row:

| row                                              | the commit                            |
|--------------------------------------------------|---------------------------------------|
| PENDING                                          | succeeds: COMMITTED, or DELETING if   |
|                                                  | all entries are rejected              |
| COMMITTED or DELETING, by an earlier commit      | gets the first answer                 |
| COMMITTED, its answer too old to be kept         | `CommitForgotten`                     |
| DELETING by the sweeper, or gone                 | `ObjectLeaseLost`                     |

Source: Aiven's Inkless (`CommitFileJob`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from penstock.control.batch_index.values import ObjectState, Watermarks
from penstock.control.errors import (
    CommitForgotten,
    ObjectLeaseLost,
    StaleBroker,
    TooLarge,
)
from penstock.control.limits import OBJECT_LEASES_PER_CALL_MAX
from penstock.control.values import MetadataImage, Topic
from penstock.records.extents import Extent

DISKLESS_CONFIG: Final = "diskless.enable"
"""The topic config that must be `true`."""

LAYOUT: Final = Struct("<ii")
"""A batch in a layout: its size in bytes, and its number of offsets."""

Answer = TypeVar("Answer")
"""A stored answer, encoded or not."""

TopicOf = Callable[[UUID], Topic | None]
"""Function from a topic's id to the topic, or None."""

ProducerKey = tuple[UUID, int, int]
"""A topic's id, a partition's index, a producer's id."""


class PartitionRow(NamedTuple):
    """A partition's row; `wal_extents` and `wal_bytes` count its extents in write-ahead objects.

    The id is internal to the database; it is 0 for a partition without a commit.
    """

    partition_id: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    size_bytes: int = 0
    wal_extents: int = 0
    wal_bytes: int = 0
    open_offset: int = -1
    aborted_offset: int = -1

    @property
    def watermarks(self) -> Watermarks:
        return Watermarks(
            self.log_start_offset,
            self.high_watermark,
            self.size_bytes,
            self.open_offset,
            self.aborted_offset,
        )


EMPTY: Final = PartitionRow()


def check_lease(image: MetadataImage, broker_id: int, incarnation: UUID, count: int) -> None:
    if not 1 <= count <= OBJECT_LEASES_PER_CALL_MAX:
        raise TooLarge(
            f"{count} object keys in one call, allowed are 1 to {OBJECT_LEASES_PER_CALL_MAX}"
        )
    broker = image.broker(broker_id)
    if broker is None:
        raise StaleBroker(broker_id, registered=False)
    if broker.incarnation != incarnation:
        raise StaleBroker(broker_id)


def object_key(object_id: int, nonce: int) -> str:
    """Return the key of an object, spread over 256 prefixes, as stores limit requests by prefix.

    `nonce` is 32 random bits, which keep keys unique if a restored database leases ids again.
    """
    return f"wal/{object_id & 0xFF:02x}/{object_id:016x}-{nonce & 0xFFFFFFFF:08x}"


def segment_key(
    object_id: int,
    nonce: int,
    topic_id: UUID,
    partition: int,
    base_offset: int,
    leader_epoch: int = 0,
    *,
    suffix: str = ".log",
) -> str:
    """Return the key of a sealed segment; the segments of a partition are listed by offset.

    The leader epoch in it is 0 for diskless topics; `nonce` is as in `object_key`.
    """
    unique = f"{object_id:016x}-{nonce & 0xFFFFFFFF:08x}"
    return f"archive/{topic_id}/{partition}/{base_offset:020d}-{leader_epoch}-{unique}{suffix}"


def first_answer(object_id: int, state: ObjectState | None, answer: Answer | None) -> Answer:
    """Return a repeated commit's stored answer; raises ObjectLeaseLost or CommitForgotten."""
    if answer is not None:
        return answer
    if state == "committed":
        raise CommitForgotten(object_id)
    raise ObjectLeaseLost(object_id)


def layout_totals(layout: bytes) -> tuple[int, int]:
    """Return the bytes and offsets of a layout; (-1, -1) for a malformed one."""
    if len(layout) == LAYOUT.size:
        size_bytes, count = LAYOUT.unpack(layout)
        return (size_bytes, count) if size_bytes > 0 and count > 0 else (-1, -1)
    if not layout or len(layout) % LAYOUT.size:
        return -1, -1
    sizes, counts = zip(*LAYOUT.iter_unpack(layout), strict=True)
    return (sum(sizes), sum(counts)) if min(sizes) > 0 and min(counts) > 0 else (-1, -1)


def adjoin(extents: Sequence[Extent]) -> bool:
    """Return whether each extent begins where the one before it ends."""
    return all(extent.next_offset == other.base_offset for extent, other in pairwise(extents))


def write_refusal(topic: Topic | None, topic_id: UUID, partition: int) -> tuple[str, str] | None:
    """Return the reason why a partition rejects writes: that of `refusal`, or its fence."""
    refused = refusal(topic, topic_id, partition)
    if refused is None and topic is not None and topic.partitions[partition].move:
        return "not_leader_or_follower", f"topic {topic.name!r} is getting replicas: ask again"
    return refused


def refusal(topic: Topic | None, topic_id: UUID, partition: int) -> tuple[str, str] | None:
    """Return why a partition cannot be read, as error name and message; None if it can."""
    if topic is None:
        return "unknown_topic_id", f"there is no topic of id {topic_id}"
    if topic.configs.get(DISKLESS_CONFIG) != "true":
        return "not_leader_or_follower", f"topic {topic.name!r} has no {DISKLESS_CONFIG} = true"
    if not 0 <= partition < len(topic.partitions):
        return (
            "unknown_topic_or_partition",
            f"topic {topic.name!r} has {len(topic.partitions)} partitions;"
            f" partition {partition} does not exist",
        )
    return None
