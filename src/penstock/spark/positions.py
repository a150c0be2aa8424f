"""Positions of a stream in every partition: the JSON that Spark keeps in its checkpoint.

    {"bootstrap": "host:9092", "group": "billing", "topics":
      {"orders": {"id": "7f0c…", "partitions": {"0": {"epoch": 3, "offset": 4711}}}}}

Spark compares positions as text, so keys have one order: names by alphabet, partitions by number.
`wake` is the time for which the source was last woken by its `wakeFile`. The topic's id identifies
a recreated topic. The driver's listener commits the offsets to group and address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.base.ids import TopicPartition
from penstock.spark.errors import InvalidOption

TOPICS: Final = "topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Next offset to read in one partition, and the leader epoch of its record."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Positions in every partition of every topic read, with the topics' ids."""

    topic_ids: Mapping[str, str]
    partitions: Mapping[TopicPartition, Position]
    bootstrap: str = ""
    group_id: str | None = None
    wake_ms: int = 0

    def offset(self, at: TopicPartition) -> int | None:
        """Return the next offset to read, or None for a missing partition."""
        position = self.partitions.get(at)
        return None if position is None else position.offset

    def same_offsets(self, other: Positions) -> bool:
        """Whether both have the same offsets, whatever the leader epochs."""
        return self.topic_ids == other.topic_ids and dict(_offsets(self)) == dict(_offsets(other))

    def same_place(self, other: Positions) -> bool:
        return self.wake_ms == other.wake_ms and self.same_offsets(other)

    def to_json(self) -> dict[str, Any]:
        topics: dict[str, Any] = {
            topic: {"id": self.topic_ids[topic], "partitions": {}}
            for topic in sorted(self.topic_ids)
        }
        for at in sorted(self.partitions):
            position = self.partitions[at]
            topics[at.topic]["partitions"][str(at.partition)] = {
                "epoch": position.leader_epoch,
                "offset": position.offset,
            }
        body: dict[str, Any] = {"bootstrap": self.bootstrap}
        if self.group_id is not None:
            body["group"] = self.group_id
        body[TOPICS] = topics
        if self.wake_ms:
            body["wake"] = self.wake_ms
        return body


def from_json(body: Mapping[str, Any]) -> Positions:
    """Read what `to_json` wrote.

    Raises:
        InvalidOption: the object is not a position of this source (another source's checkpoint).
    """
    try:
        topics = body[TOPICS]
        return Positions(
            topic_ids={topic: str(entry["id"]) for topic, entry in topics.items()},
            partitions={
                TopicPartition(topic, int(index)): Position(
                    offset=int(place["offset"]), leader_epoch=int(place["epoch"])
                )
                for topic, entry in topics.items()
                for index, place in entry["partitions"].items()
            },
            bootstrap=str(body.get("bootstrap", "")),
            group_id=body.get("group"),
            wake_ms=int(body.get("wake", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidOption(
            "checkpointLocation", str(body)[:200], "holds no position of this source"
        ) from error


def _offsets(positions: Positions) -> Iterator[tuple[TopicPartition, int]]:
    for at, position in positions.partitions.items():
        yield at, position.offset
