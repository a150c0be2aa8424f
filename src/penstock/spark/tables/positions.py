"""Positions of a topic's table: one offset per partition, in the same commit as the rows.

The table of a topic has one transaction identifier per partition, `penstock.position/<topic
id>/<partition>`. Its value is the offset after the last record in the table. Rows and offsets
therefore agree at every version, even after old commits are deleted. A recreated topic has another
id and so other identifiers. The commit's metadata `penstock.positions` repeats the offsets, with
the topic's name and id and the leader epochs.

Source: the Delta transaction protocol, "Transaction Identifiers".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from deltalake import DeltaTable

from penstock.base.errors import InvalidError
from penstock.spark.reads.positions import Position, Positions

METADATA: Final = "penstock.positions"
HISTORY_COMMITS_MAX: Final = 1_000


class TableOfAnotherTopic(InvalidError):
    """Table with records of another topic, or of a deleted topic with the same name."""

    code: ClassVar[str] = "inconsistent_topic_id"

    def __init__(self, table: str, topic: str, topic_id: str, held: str) -> None:
        super().__init__(
            f"table {table} does not belong to topic {topic} with id {topic_id}: its last commit "
            f"came from {held}. If the topic was deleted and created again, its offsets mean "
            "other records. Move the table away, or set the topic's table.location to another path"
        )
        self.table = table
        self.topic = topic


class LogStartsAfterTable(InvalidError):
    """Gap of records between the table's end and the log's start: they were deleted from the log
    before the table had them.
    """

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, table: str, topic: str, partition: int, end: int, log_start: int) -> None:
        super().__init__(
            f"{topic}-{partition}: table {table} ends at offset {end}, but the log starts at "
            f"{log_start}. Retention or a DeleteRecords request deleted the records from {end} to "
            f"{log_start - 1} before the table had them"
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
    """Return one topic's part of a stream's positions.

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
    """Return the offset after the table's last record, for each partition that has one."""
    found = {
        number: opened.transaction_version(app_id_of(topic_id, number)) for number in partitions
    }
    return {number: offset for number, offset in found.items() if offset is not None}


def check_topic(
    opened: DeltaTable, table: str, topic: str, topic_id: str, partitions: Iterable[int]
) -> dict[int, int]:
    """Return `table_ends` after checking that the table was filled from this topic.

    Raises:
        TableOfAnotherTopic: none of the table's commits came from the topic with this id.
    """
    ends = table_ends(opened, topic_id, partitions)
    if not ends:
        raise TableOfAnotherTopic(table, topic, topic_id, _last_kept(opened))
    return ends


def check_reaches(
    table: str, topic: str, ends: Mapping[int, int], log_starts: Mapping[int, int]
) -> None:
    """Check that the log still has every record that the table lacks.

    Raises:
        LogStartsAfterTable: the message has the first partition with a gap, and both offsets.
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
