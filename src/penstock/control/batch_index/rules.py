"""Rules that all methods of diskless topics share: keys, leases, repeated commits, rejections.

Pure functions. `commit_rules.py` assigns offsets; `index_rules.py` has lookups, retention and
swaps.

The result of a commit depends on the state of the object's row:

| object's row                                     | result of the commit                  |
|--------------------------------------------------|---------------------------------------|
| PENDING                                          | success: the row becomes COMMITTED,   |
|                                                  | or DELETING if no entry was accepted  |
| COMMITTED or DELETING, by an earlier commit      | the stored result of that commit      |
| COMMITTED, and the stored result was deleted     | `CommitForgotten`                     |
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
"""Topic config that makes a topic diskless if it is `true`."""

LAYOUT: Final = Struct("<ii")
"""One batch in an extent's layout: its size in bytes, and its number of offsets."""

Answer = TypeVar("Answer")
"""The stored result of a commit, encoded or decoded."""

TopicOf = Callable[[UUID], Topic | None]
"""Function that takes a topic id and returns the topic, or None."""

ProducerKey = tuple[UUID, int, int]
"""A topic's id, a partition's index, a producer's id."""


class PartitionRow(NamedTuple):
    """The row of a diskless partition.

    `partition_id` is internal to the database; 0 means without a row.

    `wal_extents` and `wal_bytes` count the extents in write-ahead objects, and their bytes.
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
    """Return the key of a write-ahead object.

    Keys are spread over 256 prefixes, because object stores limit requests by prefix. `nonce` is 32
    random bits. It keeps keys unique if a restored database leases the same ids again.
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
    """Return the key of a sealed segment. Keys sort by topic, partition and offset.

    `leader_epoch` is 0 for diskless topics; `nonce` is as in `object_key`.
    """
    unique = f"{object_id:016x}-{nonce & 0xFFFFFFFF:08x}"
    return f"archive/{topic_id}/{partition}/{base_offset:020d}-{leader_epoch}-{unique}{suffix}"


def first_answer(object_id: int, state: ObjectState | None, answer: Answer | None) -> Answer:
    """Return a commit's stored result. Raises ObjectLeaseLost or CommitForgotten without one."""
    if answer is not None:
        return answer
    if state == "committed":
        raise CommitForgotten(object_id)
    raise ObjectLeaseLost(object_id)


def layout_totals(layout: bytes) -> tuple[int, int]:
    """Return the total bytes and offsets of a layout, or (-1, -1) if it is malformed."""
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
    """Return why a partition rejects writes, as error name and message; None if it accepts them."""
    refused = refusal(topic, topic_id, partition)
    if refused is None and topic is not None and topic.partitions[partition].move:
        return "not_leader_or_follower", f"topic {topic.name!r} is becoming replicated: retry"
    return refused


def refusal(topic: Topic | None, topic_id: UUID, partition: int) -> tuple[str, str] | None:
    """Return why a partition cannot be read, as error name and message; None if it can be read."""
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
