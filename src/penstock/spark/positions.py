"""Where a stream stands in every partition: the JSON that Spark keeps in its checkpoint.

    {"bootstrap": "host:9092", "group": "billing", "topics":
      {"orders": {"id": "7f0c…", "partitions": {"0": {"epoch": 3, "offset": 4711}}}}}

Theory of operation. Spark compares two positions as text, so keys are always written in the same
order: names by alphabet, partitions by number. A `wake` is there once the source was woken by its
`wakeFile`: the time for which it was woken. The topic's id tells a topic from a later one of
the same name; the leader epoch says under which leader the offset was seen. The group and the
address ride along so that the driver's listener can commit them as a consumer group's offsets
without knowing the query.
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
    """The next offset to read in one partition, and the leader epoch it was learnt under."""

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
        """The next offset to read, or None for a partition that is not there."""
        position = self.partitions.get(at)
        return None if position is None else position.offset

    def same_offsets(self, other: Positions) -> bool:
        """Whether both stand at the same offsets, whatever the leader epochs."""
        return self.topic_ids == other.topic_ids and dict(_offsets(self)) == dict(_offsets(other))

    def same_place(self, other: Positions) -> bool:
        """Whether nothing is between the two: the same offsets, and no waking."""
        return self.wake_ms == other.wake_ms and self.same_offsets(other)

    def to_json(self) -> dict[str, Any]:
        """The checkpoint's form, with keys in their one order."""
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
        InvalidOption: the object is no position of this source (another source's checkpoint).
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
