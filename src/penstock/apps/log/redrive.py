"""Redrive of dead letters: returns each one to its original topic once, and stores the progress.

A batch is one transaction: the records, and the committed offset of group
`penstock-redrive.<group>` in the dead letter topic. An interrupted redrive therefore continues
without duplicates, and a second redrive fences the first. One record may have several dead letters
(`docs/guides/share-groups.md`); only the first of them is returned. Duplicates are recognised among
the last `REMEMBERED` dead letters of each partition.

Records are returned unchanged, with additional headers: `penstock.redrive.from`
(topic-partition@offset of the dead letter), `.by` and `.at` (ms). If these make a record too large,
they are left out. Its timestamp is that of the redrive, since retention could otherwise delete the
record at once. For a truncated dead letter (`records/columnar/shortening.py`) the original record
is read from the log and returned. If the log no longer has it, the dead letter is counted as lost.

Source: KIP-447; `spark/pipeline/replay/dead_letters.py` does it for pipelines, as a Spark job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.base.settings import INT_MAX, whole_number
from penstock.client import Client, Committed, InvalidArgument, OffsetOutOfRange
from penstock.records.columnar.shortening import TRUNCATED, WithoutHeaders

LETTER_PREFIX: Final = "__dlq.errors."
REDRIVE_PREFIX: Final = "penstock.redrive."
LETTERS_PER_TRANSACTION: Final = 500
REMEMBERED: Final = 10_000
_BARE: Final = WithoutHeaders(prefix=REDRIVE_PREFIX)

Origin = tuple[str, int, int]
"""Topic, partition and offset of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Dead letter: its position, the facts in its headers, and the record to return."""

    partition: int
    offset: int
    group: str
    origin: Origin
    deliveries: int
    message: str
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Mapping[str, Any], ...]
    truncated: bool


@dataclass(slots=True, kw_only=True)
class Redriven:
    """Result of a redrive: returned records by topic, and counts of dead letters that were not
    returned.

    `doubles` are duplicates, `others` belong to other groups, and `lost` are truncated dead letters
    whose original record was deleted.
    """

    topics: dict[str, int] = field(default_factory=dict)
    doubles: int = 0
    others: int = 0
    lost: int = 0

    @property
    def records(self) -> int:
        return sum(self.topics.values())


def dead_letters_of(batch: Any) -> Iterator[DeadLetter]:
    """Yield the share groups' dead letters in a batch; ignore other records."""
    for row in batch.to_pylist():
        said = {
            header["key"].removeprefix(LETTER_PREFIX): (header["value"] or b"").decode(
                errors="replace"
            )
            for header in row["headers"]
            if header["key"].startswith(LETTER_PREFIX)
        }
        partition = whole_number(said.get("partition", ""), INT_MAX)
        offset = whole_number(said.get("offset", ""))
        if not said.get("topic") or not said.get("group") or partition is None or offset is None:
            continue
        yield DeadLetter(
            partition=row["partition"],
            offset=row["offset"],
            group=said["group"],
            origin=(said["topic"], partition, offset),
            deliveries=whole_number(said.get("delivery.count", "")) or 0,
            message=said.get("message", ""),
            timestamp=row["timestamp"],
            key=row["key"],
            value=row["value"],
            headers=tuple(
                entry for entry in row["headers"] if not entry["key"].startswith(LETTER_PREFIX)
            ),
            truncated=TRUNCATED in said,
        )


class Redrive:
    def __init__(self, client: Client, group: str, topic: str, *, by: str, at_ms: int) -> None:
        self.name = redrive_group(group)
        self._client = client
        self._group = group
        self._topic = topic
        self._note = f"by {by} at {at_ms}"
        self._stamp = {"by": by, "at": str(at_ms)}
        self._seen: set[Origin] = set()

    def look(self, limit: int) -> Redriven:
        """Return the result that `run` would have now, without writing anything."""
        done = Redriven()
        for dead_letters, _ in self._batches(limit):
            self._chosen(dead_letters, done)
        return done

    def run(self, limit: int) -> Redriven:
        """Return at most `limit` dead letters to their topics, the oldest first.

        Raises:
            InvalidArgument: the original partition no longer exists.
            UnknownTopic: the original topic no longer exists.
        """
        from penstock.records.columnar.fitting import fitting

        done = Redriven()
        producer = self._client.transactional(self.name)
        producer.begin()
        producer.abort()  # fences another redrive before the progress is read
        for dead_letters, behind in self._batches(limit):
            chosen = self._chosen(dead_letters, done)
            with producer.transaction():
                for topic, table in self._tables(chosen).items():
                    limit = self._limit(topic)
                    fit = fitting(table, limit_bytes=limit, shorten=_BARE)
                    producer.write_arrow(
                        topic, fit, partition="partition", batch_bytes=limit, codec="zstd"
                    )
                offsets = {
                    (self._topic, partition): Committed(offset=offset, metadata=self._note)
                    for partition, offset in behind.items()
                }
                producer.send_offsets(self.name, offsets)
        return done

    def _limit(self, topic: str) -> int:
        configs = self._client.describe_configs("topic", topic)
        [limit] = [entry.value for entry in configs if entry.name == "max.message.bytes"]
        return int(limit or 0)

    def _batches(self, limit: int) -> Iterator[tuple[list[DeadLetter], dict[int, int]]]:
        """Read at most `limit` records of the dead letter topic after the stored progress.

        Yields the dead letters of each batch, with the partition's offset behind them, which
        becomes the new progress.
        """
        start = redriven_until(self._client, self._group, self._topic)
        end = self._client.list_offsets(self._topic, "latest")
        self._remember(start)
        for partition in sorted(end):
            at = start[partition]
            while limit > 0 and at < end[partition]:
                batch = self._client.read_arrow(
                    self._topic,
                    partitions=[partition],
                    start={partition: at},
                    end=end,
                    max_records=min(limit, LETTERS_PER_TRANSACTION),
                    isolation="read_committed",
                )
                offsets = batch.column("offset").to_pylist()
                at = offsets[-1] + 1 if offsets else end[partition]
                limit -= len(offsets)
                yield list(dead_letters_of(batch)), {partition: at}

    def _remember(self, start: Mapping[int, int]) -> None:
        """Read the last dead letters before `start`; keep their origins to recognise duplicates."""
        earliest = self._client.list_offsets(self._topic, "earliest")
        before = {at: max(earliest[at], offset - REMEMBERED) for at, offset in start.items()}
        for batch in self._client.iter_arrow(self._topic, start=before, end=dict(start)):
            self._seen |= {
                dead_letter.origin
                for dead_letter in dead_letters_of(batch)
                if dead_letter.group == self._group
            }

    def _chosen(self, dead_letters: list[DeadLetter], done: Redriven) -> list[DeadLetter]:
        chosen = []
        for dead_letter in dead_letters:
            if dead_letter.group != self._group:
                done.others += 1
            elif dead_letter.origin in self._seen:
                done.doubles += 1
            else:
                self._seen.add(dead_letter.origin)
                whole = self._original(dead_letter) if dead_letter.truncated else dead_letter
                if whole is None:
                    done.lost += 1
                    continue
                topic = dead_letter.origin[0]
                done.topics[topic] = done.topics.get(topic, 0) + 1
                chosen.append(whole)
        return chosen

    def _original(self, dead_letter: DeadLetter) -> DeadLetter | None:
        """Return a truncated dead letter with key, value and headers of its original record.

        Reads that record from the log; None if it was deleted.
        """
        topic, partition, offset = dead_letter.origin
        start, end = {partition: offset}, {partition: offset + 1}
        try:
            found = self._client.read_arrow(
                topic, partitions=[partition], start=start, end=end
            ).to_pylist()
        except OffsetOutOfRange:
            return None
        if [row["offset"] for row in found] != [offset]:
            return None
        [row] = found
        return replace(dead_letter, **{name: row[name] for name in ("key", "value", "headers")})

    def _tables(self, dead_letters: list[DeadLetter]) -> dict[str, Any]:
        import pyarrow as pa

        from penstock.records.columnar import HEADERS_TYPE

        schema = pa.schema(
            [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE),
             ("partition", pa.int32())]
        )  # fmt: skip
        rows: dict[str, list[dict[str, Any]]] = {}
        for dead_letter in dead_letters:
            topic, partition, _ = dead_letter.origin
            count = len(self._client.describe_topic(topic).partitions) if topic not in rows else 0
            if count and partition >= count:
                raise InvalidArgument(f"topic {topic!r} has {count} partitions, not {partition}")
            stamp = {
                "from": f"{self._topic}-{dead_letter.partition}@{dead_letter.offset}",
                **self._stamp,
            }
            told = [{"key": REDRIVE_PREFIX + name, "value": value.encode()}
                    for name, value in stamp.items()]  # fmt: skip
            rows.setdefault(topic, []).append(
                {
                    "key": dead_letter.key,
                    "value": dead_letter.value,
                    "headers": [*dead_letter.headers, *told],
                    "partition": partition,
                }
            )
        return {topic: pa.Table.from_pylist(found, schema=schema) for topic, found in rows.items()}


def redrive_group(group: str) -> str:
    """Return the group whose committed offsets are the progress of a share group's redrive."""
    return f"penstock-redrive.{group}"


def redriven_until(client: Client, group: str, topic: str) -> dict[int, int]:
    """Return for each partition the offset of the first dead letter that was not redriven."""
    begins = client.list_offsets(topic, "earliest")
    committed = client.committed(redrive_group(group))
    return {
        partition: max(begin, committed[topic, partition].offset)
        if (topic, partition) in committed
        else begin
        for partition, begin in begins.items()
    }
