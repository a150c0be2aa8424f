"""Positions of a stream in every partition: the JSON that Spark stores in its checkpoint.

    {"bootstrap": "host:9092", "group": "billing", "topics":
      {"orders": {"id": "7f0c…", "partitions": {"0": {"epoch": 3, "offset": 4711}}}}}

Spark compares positions as text, so keys are always in the same order: topics by name, partitions
by number. The topic's id reveals a recreated topic. `bootstrap` and `group` are for the driver's
listener where to commit the offsets. An optional `wake` is the time (milliseconds since 1970) of
the last batch that a `wakeFile` requested.
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
    """Next offset to read in one partition, and the partition's leader epoch at that time."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Positions in every partition of all topics of a stream, with the topics' ids."""

    topic_ids: Mapping[str, str]
    partitions: Mapping[TopicPartition, Position]
    bootstrap: str = ""
    group_id: str | None = None
    wake_ms: int = 0

    def offset(self, at: TopicPartition) -> int | None:
        """Return the next offset to read in a partition; None if the partition is unknown."""
        position = self.partitions.get(at)
        return None if position is None else position.offset

    def same_offsets(self, other: Positions) -> bool:
        """Return whether two positions have the same topic ids and offsets; epochs may differ."""
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
    """Decode the result of `to_json`.

    Raises:
        InvalidOption: the JSON is not a position of this source, but perhaps another source's.
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
            "checkpointLocation", str(body)[:200], "must be a checkpoint of the penstock source"
        ) from error


def _offsets(positions: Positions) -> Iterator[tuple[TopicPartition, int]]:
    for at, position in positions.partitions.items():
        yield at, position.offset
