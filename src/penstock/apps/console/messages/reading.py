"""Reading of a topic's partitions by requests of the caller, at this broker and at others.

Requests for partitions that another broker leads are sent there. The caller's permission to read
the topic is checked here before, because the other broker only sees this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.requests import CallerRequests, refused
from penstock.base.errors import PenstockError, UnavailableError
from penstock.base.pause import pause
from penstock.broker.net.errors import UnknownTopicOrPartition
from penstock.client.fetch import Asked, fetch_body, walk_batches
from penstock.client.protocol import VERSION_MAX
from penstock.records.columnar import decode_batches
from penstock.records.extents import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from penstock.records.transactions import AbortedRange, ranges_until

if TYPE_CHECKING:
    from penstock.broker.admin.access import Caller
    from penstock.broker.assembly import Assembly
    from penstock.broker.partitions.registry import ServedTopic

CHUNK_BYTES: Final = 4 << 20
"""Bytes of one Fetch request."""
THROTTLE_SECONDS_MAX: Final = 1.0
"""Longest pause that a quota causes at once."""
WAIT_MS: Final = 250
"""Time for which a broker waits for records that it does not have yet."""
ANSWERS_MAX: Final = 20
"""Most responses without records in succession."""
COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")


class PartitionLeaderless(UnavailableError):
    """The partition has no leader at the moment."""

    code: ClassVar[str] = "leader_not_available"


def served_topic(broker: Assembly, topic: str) -> ServedTopic:
    """Return a topic as this broker serves it; raises UnknownTopicOrPartition."""
    served = broker.partitions.topics.get(topic)
    if served is None:
        raise UnknownTopicOrPartition(f"topic {topic!r} does not exist")
    return served


def leader_of(broker: Assembly, served: ServedTopic, partition: int) -> int:
    """Return the broker to which requests for a partition are sent.

    Raises:
        UnknownTopicOrPartition: the topic has no such partition.
        PartitionLeaderless: the partition has no leader.
    """
    name = served.topic.name
    if not 0 <= partition < len(served.partitions):
        raise UnknownTopicOrPartition(f"topic {name} has no partition {partition}")
    if served.diskless or served.partitions[partition] is not None:
        return broker.node_id
    leader = served.topic.partitions[partition].leader
    if leader < 0:
        raise PartitionLeaderless(f"partition {partition} of {name} has no leader")
    return leader


class Chunk(Struct, frozen=True, kw_only=True):
    """Whole stored batches of one partition.

    `following` is the offset after them, or the requested one if there are none. `end` is the end
    of the readable log.
    """

    partition: int
    data: bytes
    start: int
    following: int
    end: int
    aborted: tuple[AbortedRange, ...]

    def decoded(self, columns: Iterable[str] = COLUMNS, end: int | None = None) -> Any:
        """Return the records below the offset `end` as columns. Blocks; call it in a thread."""
        return decode_batches(
            self.data,
            columns=tuple(columns),
            start_offset=self.start,
            end_offset=end,
            aborted=self.aborted,
        )


class TopicReader:
    """Reader of one topic for one caller."""

    def __init__(
        self,
        broker: Assembly,
        requests: CallerRequests,
        caller: Caller,
        topic: str,
        *,
        committed: bool,
    ) -> None:
        """With `committed`, records of open and aborted transactions are left out.

        Raises:
            AuthorisationFailed: the caller may not read the topic.
            UnknownTopicOrPartition: the topic does not exist.
        """
        caller.check("read", "topic", [topic])
        self._broker = broker
        self._requests = requests
        self._caller = caller
        self.topic = topic
        self.committed = committed
        self._isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
        served_topic(broker, topic)

    @property
    def served(self) -> ServedTopic:
        """The topic as this broker serves it; raises UnknownTopicOrPartition."""
        return served_topic(self._broker, self.topic)

    def leader(self, partition: int) -> int:
        """Return the broker that is asked for a partition; raises PenstockError without one."""
        return leader_of(self._broker, self.served, partition)

    async def offsets(self, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        """Return the first offset at or after a time in each partition, -1 if there is none.

        `time_ms` may be EARLIEST or LATEST.
        """
        by_leader: dict[int, list[int]] = {}
        for partition in partitions:
            by_leader.setdefault(self.leader(partition), []).append(partition)
        found: dict[int, int] = {}
        for leader, asked in by_leader.items():
            rows = [
                {"partition_index": index, "current_leader_epoch": -1, "timestamp": time_ms}
                for index in asked
            ]
            body = {
                "replica_id": -1,
                "isolation_level": self._isolation,
                "topics": [{"name": self.topic, "partitions": rows}],
            }
            answer = await self._requests.call(self._caller, "ListOffsets", body, leader)
            for row in answer.topics[0].partitions:
                if row.error_code:
                    subject = f"partition {row.partition_index} of {self.topic}"
                    raise refused(row.error_code, None, subject)
                found[int(row.partition_index)] = int(row.offset)
        return found

    async def bounds(
        self, partitions: Iterable[int]
    ) -> tuple[dict[int, tuple[int, int]], dict[int, str]]:
        """Return start and end of each readable partition, and the errors of the others."""
        found: dict[int, tuple[int, int]] = {}
        failures: dict[int, str] = {}
        partitions = list(partitions)
        try:
            starts = await self.offsets(partitions, EARLIEST)
            ends = await self.offsets(partitions, LATEST)
            return {index: (starts[index], ends[index]) for index in partitions}, failures
        except PenstockError:
            if len(partitions) == 1:
                raise
        for index in partitions:
            try:
                one, _ = await self.bounds([index])
                found |= one
            except PenstockError as error:
                failures[index] = str(error)
        return found, failures

    async def fetch(self, partition: int, offset: int, max_bytes: int = CHUNK_BYTES) -> Chunk:
        """Return batches from an offset below the end of the log on, at least one.

        The result has no batches if compaction has removed the rest of the log. A broker that has
        just learned of a diskless partition's records returns none at first, and is asked again.
        """
        leader = self.leader(partition)
        for _ in range(ANSWERS_MAX):
            asked = {partition: offset}
            found = (await self.fetch_many(leader, asked, max_bytes, wait_ms=WAIT_MS)).get(
                partition
            )
            if found is not None and (found.data or found.end > offset):
                return found
        raise UnavailableError(
            f"the broker sends no records of partition {partition} of {self.topic} from offset"
            f" {offset} on: they are not committed, or a quota is used up"
        )

    async def fetch_many(
        self, leader: int, asked: Mapping[int, int], max_bytes: int, *, wait_ms: int
    ) -> dict[int, Chunk]:
        """Return batches of several partitions of a leader; wait for records if there are none.

        A partition may be missing, if a quota delays the caller.
        """
        body = fetch_body(
            self.topic,
            self.served.topic.topic_id,
            {index: Asked(offset) for index, offset in asked.items()},
            version=VERSION_MAX["Fetch"],
            isolation=self._isolation,
            max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
            max_wait_ms=wait_ms,
        )
        answer = await self._requests.call(self._caller, "Fetch", body, leader)
        if answer.error_code:
            raise refused(answer.error_code, None, f"topic {self.topic}")
        throttle = answer.throttle_time.total_seconds()
        if throttle > 0:
            await pause(min(throttle, THROTTLE_SECONDS_MAX))
        rows = [row for topic in answer.responses for row in topic.partitions]
        return {int(row.partition_index): self._chunk(row, asked) for row in rows}

    def _chunk(self, row: Any, asked: Mapping[int, int]) -> Chunk:
        partition = int(row.partition_index)
        if row.error_code:
            raise refused(row.error_code, None, f"partition {partition} of {self.topic}")
        data, offset = row.records or b"", asked[partition]
        walked = walk_batches(memoryview(data))
        aborted = [
            (int(item.producer_id), int(item.first_offset))
            for item in row.aborted_transactions or ()
        ]
        return Chunk(
            partition=partition,
            data=data,
            start=offset,
            following=max(offset, walked.behind.offset),
            end=int(row.last_stable_offset if self.committed else row.high_watermark),
            aborted=ranges_until(tuple(aborted), walked.markers),
        )
