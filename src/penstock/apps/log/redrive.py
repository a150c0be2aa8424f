"""Dead letters back to the topics that they came from, each once, and with a note of it.

A batch of letters is one transaction: the records on their topics, in the partitions that they came
from, and how far the group of the redrive has come in the dead letter topic
(`penstock-redrive.<group>`). So a redrive that is interrupted is gone on with by the next, which
puts nothing back twice; of two at once the later one fences the other. Of doubles of a letter
(`docs/guides/share-groups.md`) the first goes back: those of a redrive are known, and of the
`REMEMBERED` letters before it in each partition, since a double follows soon after.

A record that goes back is as it was, with headers behind its own that say how it came:
`penstock.redrive.from` (topic-partition@offset of the letter), `.by`, `.at` (ms). The commit of the
group has the same as its metadata. The record's timestamp is that of the redrive: with its old one
retention could take it at once. These headers are left out where the record fits its topic only
without them. A letter that was cut (`records/columnar/fitting.py`) goes back as the original
record; it stays a letter, and is counted, when the log has the original no more.

Source: KIP-447; `spark/pipeline/replay/dead_letters.py` does it for pipelines, as a Spark job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from penstock.base.settings import INT_MAX, whole_number
from penstock.client import Client, Committed, InvalidArgument, OffsetOutOfRange
from penstock.records.columnar.fitting import TRUNCATED, WithoutHeaders, fitting
from penstock.records.columnar.schema import HEADERS_TYPE

LETTER_PREFIX: Final = "__dlq.errors."
REDRIVE_PREFIX: Final = "penstock.redrive."
LETTERS_PER_TRANSACTION: Final = 500
REMEMBERED: Final = 10_000
_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE),
     ("partition", pa.int32())]
)  # fmt: skip

_BARE: Final = WithoutHeaders(prefix=REDRIVE_PREFIX)

Origin = tuple[str, int, int]
"""Topic, partition and offset of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter: where it lies, what it says of itself, and the record in it."""

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
    """Outcome of a redrive: records by topic, doubles, letters of other groups.

    `lost` counts letters that were cut and whose original record the log has no more.
    """

    topics: dict[str, int] = field(default_factory=dict)
    doubles: int = 0
    others: int = 0
    lost: int = 0

    @property
    def records(self) -> int:
        return sum(self.topics.values())


def letters_of(batch: Any) -> Iterator[Letter]:
    """The dead letters of share groups among the records of a batch; others are left out."""
    for row in batch.to_pylist():
        said = {
            one["key"].removeprefix(LETTER_PREFIX): (one["value"] or b"").decode(errors="replace")
            for one in row["headers"]
            if one["key"].startswith(LETTER_PREFIX)
        }
        partition = whole_number(said.get("partition", ""), INT_MAX)
        offset = whole_number(said.get("offset", ""))
        if not said.get("topic") or not said.get("group") or partition is None or offset is None:
            continue
        yield Letter(
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
                one for one in row["headers"] if not one["key"].startswith(LETTER_PREFIX)
            ),
            truncated=TRUNCATED in said,
        )


class Redrive:
    """The redrive of one share group's dead letters."""

    def __init__(self, client: Client, group: str, topic: str, *, by: str, at_ms: int) -> None:
        self.name = redrive_group(group)
        self._client = client
        self._group = group
        self._topic = topic
        self._note = f"by {by} at {at_ms}"
        self._stamp = {"by": by, "at": str(at_ms)}
        self._seen: set[Origin] = set()

    def look(self, limit: int) -> Redriven:
        """What `run` would do now."""
        done = Redriven()
        for letters, _ in self._batches(limit):
            self._chosen(letters, done)
        return done

    def run(self, limit: int) -> Redriven:
        """Put up to so many letters back, those first that lie longest.

        Raises:
            InvalidArgument: a record's topic has the partition no more.
            UnknownTopic: it is not there any more.
        """
        done = Redriven()
        producer = self._client.transactional(self.name)
        producer.begin()
        producer.abort()  # what another redrive had under way is over before it is looked
        for letters, behind in self._batches(limit):
            chosen = self._chosen(letters, done)
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
        """The topic's `max.message.bytes`."""
        configs = self._client.describe_configs("topic", topic)
        [limit] = [entry.value for entry in configs if entry.name == "max.message.bytes"]
        return int(limit or 0)

    def _batches(self, limit: int) -> Iterator[tuple[list[Letter], dict[int, int]]]:
        """Letters that were not redriven yet, and where each partition stands behind them."""
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
                yield list(letters_of(batch)), {partition: at}

    def _remember(self, start: Mapping[int, int]) -> None:
        """Know the last letters that were redriven."""
        earliest = self._client.list_offsets(self._topic, "earliest")
        before = {at: max(earliest[at], offset - REMEMBERED) for at, offset in start.items()}
        for batch in self._client.iter_arrow(self._topic, start=before, end=dict(start)):
            self._seen |= {
                letter.origin for letter in letters_of(batch) if letter.group == self._group
            }

    def _chosen(self, letters: list[Letter], done: Redriven) -> list[Letter]:
        chosen = []
        for letter in letters:
            if letter.group != self._group:
                done.others += 1
            elif letter.origin in self._seen:
                done.doubles += 1
            else:
                self._seen.add(letter.origin)
                whole = self._original(letter) if letter.truncated else letter
                if whole is None:
                    done.lost += 1
                    continue
                topic = letter.origin[0]
                done.topics[topic] = done.topics.get(topic, 0) + 1
                chosen.append(whole)
        return chosen

    def _original(self, letter: Letter) -> Letter | None:
        """The letter with key, value and headers of the original; None if that is deleted."""
        topic, partition, offset = letter.origin
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
        return replace(letter, **{name: row[name] for name in ("key", "value", "headers")})

    def _tables(self, letters: list[Letter]) -> dict[str, Any]:
        rows: dict[str, list[dict[str, Any]]] = {}
        for letter in letters:
            topic, partition, _ = letter.origin
            count = len(self._client.describe_topic(topic).partitions) if topic not in rows else 0
            if count and partition >= count:
                raise InvalidArgument(f"topic {topic!r} has {count} partitions, not {partition}")
            stamp = {"from": f"{self._topic}-{letter.partition}@{letter.offset}", **self._stamp}
            told = [{"key": REDRIVE_PREFIX + name, "value": value.encode()}
                    for name, value in stamp.items()]  # fmt: skip
            rows.setdefault(topic, []).append(
                {
                    "key": letter.key,
                    "value": letter.value,
                    "headers": [*letter.headers, *told],
                    "partition": partition,
                }
            )
        return {topic: pa.Table.from_pylist(found, schema=_SCHEMA) for topic, found in rows.items()}


def redrive_group(group: str) -> str:
    """The group whose offsets say how far a share group's dead letters have been redriven."""
    return f"penstock-redrive.{group}"


def redriven_until(client: Client, group: str, topic: str) -> dict[int, int]:
    """Where each partition's letters begin that were not redriven."""
    begins = client.list_offsets(topic, "earliest")
    committed = client.committed(redrive_group(group))
    return {
        partition: max(begin, committed[topic, partition].offset)
        if (topic, partition) in committed
        else begin
        for partition, begin in begins.items()
    }
