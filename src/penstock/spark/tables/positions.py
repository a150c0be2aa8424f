"""Positions of a topic's table: an offset per partition, in the same commit as the rows.

A table that is kept beside a topic has one transaction identifier per partition,
`penstock.position/<topic id>/<partition>`: the offset after the last record in the table. So rows
and offsets agree at any version, even after old commits are deleted. A recreated topic has another
id. The commit's metadata has the same as `penstock.positions`, with topic, id and leader epochs.

Source: the Delta transaction protocol, "Transaction Identifiers".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from deltalake import DeltaTable

from penstock.base.errors import InvalidError
from penstock.spark.positions import Position, Positions

METADATA: Final = "penstock.positions"
HISTORY_COMMITS_MAX: Final = 1_000


class TableOfAnotherTopic(InvalidError):
    """Table with records of another topic, or of an earlier one of that name."""

    code: ClassVar[str] = "inconsistent_topic_id"

    def __init__(self, table: str, topic: str, topic_id: str, held: str) -> None:
        super().__init__(
            f"table {table} was not kept from topic {topic} with id {topic_id}: its last commit "
            f"is of {held}. A topic that was deleted and created again starts with other records: "
            "move the table away, or set the topic's table.location to another place"
        )
        self.table = table
        self.topic = topic


class LogStartsAfterTable(InvalidError):
    """Records between the end of the table and the start of the log that are in neither."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, table: str, topic: str, partition: int, end: int, log_start: int) -> None:
        super().__init__(
            f"{topic}-{partition}: table {table} ends at offset {end} and the log starts at "
            f"{log_start}: the records from {end} to {log_start - 1} were deleted (retention, or "
            "a delete-records call) before the table had them"
        )
        self.table = table
        self.topic = topic
        self.partition = partition
        self.end = end
        self.log_start = log_start


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPositions:
    """Next offset in every partition of one topic."""

    topic: str
    topic_id: str
    partitions: Mapping[int, Position]

    def app_transactions(self) -> dict[str, int]:
        return {
            app_id_of(self.topic_id, partition): position.offset
            for partition, position in self.partitions.items()
        }

    def metadata(self) -> dict[str, Any]:
        return {
            METADATA: {
                "topic": self.topic,
                "id": self.topic_id,
                "partitions": {
                    str(partition): {"offset": position.offset, "epoch": position.leader_epoch}
                    for partition, position in sorted(self.partitions.items())
                },
            }
        }


def app_id_of(topic_id: str, partition: int) -> str:
    return f"penstock.position/{topic_id}/{partition}"


def of_topic(topic: str, positions: Positions) -> TopicPositions:
    """Return one topic's part of a stream's position.

    Raises:
        KeyError: the stream does not read the topic.
    """
    return TopicPositions(
        topic=topic,
        topic_id=positions.topic_ids[topic],
        partitions={
            at.partition: position
            for at, position in positions.partitions.items()
            if at.topic == topic
        },
    )


def table_ends(opened: DeltaTable, topic_id: str, partitions: Iterable[int]) -> dict[int, int]:
    """Return the offset after the last one in the table, for each partition that it has."""
    found = {
        number: opened.transaction_version(app_id_of(topic_id, number)) for number in partitions
    }
    return {number: offset for number, offset in found.items() if offset is not None}


def check_topic(
    opened: DeltaTable, table: str, topic: str, topic_id: str, partitions: Iterable[int]
) -> dict[int, int]:
    """Return `table_ends` of a table that must have been kept from this very topic.

    Raises:
        TableOfAnotherTopic: it has commits, and none of them is of this topic.
    """
    ends = table_ends(opened, topic_id, partitions)
    if not ends:
        raise TableOfAnotherTopic(table, topic, topic_id, _last_kept(opened))
    return ends


def check_reaches(
    table: str, topic: str, ends: Mapping[int, int], log_starts: Mapping[int, int]
) -> None:
    """Check that the log still has what the table does not have yet.

    Raises:
        LogStartsAfterTable: it names the first partition with a gap, and both offsets.
    """
    for partition, log_start in sorted(log_starts.items()):
        end = ends.get(partition, 0)
        if end < log_start:
            raise LogStartsAfterTable(table, topic, partition, end, log_start)


def _last_kept(opened: DeltaTable) -> str:
    for commit in opened.history(HISTORY_COMMITS_MAX):
        found = commit.get(METADATA)
        if isinstance(found, dict):
            return f"topic {found.get('topic')} with id {found.get('id')}"
    return "no topic"
