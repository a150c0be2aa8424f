"""Consumer of an outbox topic: yields the verified payloads of its records, at least once.

    with OutboxReader(root) as reader, OutboxConsumer(client, "weather", reader, group="load",
                                                      dead_letter_topic="weather-dead") as messages:
        for message in messages:
            store(message.payload)

A message counts as processed when the loop requests the next one, or when `commit` is called. The
offsets of processed messages are committed to the group every second, every thousand messages, and
at the end. After a crash, messages since the last commit are yielded again.

**Duplicates.** A batch that was processed recently, within the *dedup window* (`dedup`), is
skipped. If a record has the id of such a batch but another payload, it is a bad record
(`BatchReused`), not a duplicate. The window is in memory. A starting consumer rebuilds it from the
records below the committed offsets, without reading payload files. So a crash loses only batches
without a commit, which are yielded again anyway.

**Bad payloads.** A payload that cannot be read is read again, within the limits of `policy`. Then
the record goes to the dead-letter topic with a reason. If the file system itself fails, the
consumer stops with the error instead. Without a dead-letter topic, it stops at the first bad
payload. A `BatchReused` is only reported and skipped in this case, because the batch has been
processed.

**No group membership.** The consumer does not join the group. It reads the given partitions and
commits their offsets to the group, which Kafka allows while a group has no members. Two consumers
of one group must have different partitions, because nothing assigns partitions to them.

Source: `filesystem-outbox.txt`, consumer pass; `design/host-and-outbox.md`, Read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pyarrow as pa
from msgspec import Struct

from penstock.base.crc import crc32c
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.metrics import Sample
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.client.arguments import POSITIONS, partition_list, text
from penstock.client.errors import InvalidArgument, MessageTooLarge, OffsetOutOfRange
from penstock.outbox.errors import InvalidPointer, OutboxClosed
from penstock.outbox.metrics import ConsumerCounters
from penstock.outbox.pointer import Pointer
from penstock.outbox.reader.consuming import BatchKey, ConsumerCore, ConsumerLimits
from penstock.outbox.reader.decoding import POINTER, decode_records, header_column
from penstock.outbox.reader.policy import (
    BatchReused,
    ChecksumMismatch,
    DeadLetter,
    MountSuspected,
    ReadPolicy,
    TryAgain,
    classify,
)
from penstock.outbox.reader.reader import OutboxReader
from penstock.records.columnar import HEADERS_TYPE
from penstock.records.extents import READ_COMMITTED

if TYPE_CHECKING:
    from penstock.client import Client


# Reading of a partition's latest records, backwards in pieces, up to a number of bytes.
#
# A starting consumer needs only the newest records, but records may have large inline payloads.
# Reading backwards keeps the newest records within the limit.


TAIL_PIECE_RECORDS: Final = 2_000
"""Records of one piece."""
TAIL_BYTES_MAX: Final = 64 << 20
"""Bytes of columns, per partition, after which no further piece is read."""


def backwards(
    client: Client,
    topic: str,
    partition: int,
    *,
    first: int,
    end: int,
    columns: Sequence[str],
    bytes_max: int = TAIL_BYTES_MAX,
) -> Iterator[Any]:
    """Yield tables of the committed records in [first, end).

    The table with the newest records is first.

    It ends early after `bytes_max` bytes of columns, or at records that retention has removed.
    """
    size_bytes = 0
    while end > first and size_bytes < bytes_max:
        start = max(first, end - TAIL_PIECE_RECORDS)
        try:
            table = client.read_arrow(
                topic, start={partition: start}, end={partition: end}, columns=columns,
                isolation="read_committed",
            )  # fmt: skip
        except OffsetOutOfRange:
            return
        yield table
        size_bytes += table.nbytes
        end = start


# Dead letters: copies of records whose payload cannot be used, on their own topic.
#
# A dead letter has the key, value and headers of the record, followed by these headers:
#
# | header                            | value                                                    |
# |-----------------------------------|----------------------------------------------------------|
# | `penstock-dead-letter-reason`     | a word: `missing`, `size-mismatch`, `checksum-mismatch`, |
# |                                   | `too-large`, `path-escapes`, `invalid-pointer` …         |
# | `penstock-dead-letter-message`    | the error as a sentence                                  |
# | `penstock-dead-letter-topic`      | the record's topic                                       |
# | `penstock-dead-letter-partition`  | in decimal digits                                        |
# | `penstock-dead-letter-offset`     | in decimal digits                                        |
#
# A value that is too large for the dead-letter topic is replaced by null.
#
# The consumer's position passes a record only after all replicas have acknowledged its dead letter.
# A crash in between writes the dead letter twice. To process a dead letter again, produce it to its
# original topic.


DEAD_LETTERS_LOOKED_AT_MAX: Final = 10_000
"""Latest records per partition of the dead-letter topic that a starting consumer reads."""
REASON_BYTES_MAX: Final = 1024
"""Bytes of a reason or message in a dead letter's headers. Longer texts are cut."""

REASON_HEADER: Final = "penstock-dead-letter-reason"
MESSAGE_HEADER: Final = "penstock-dead-letter-message"
TOPIC_HEADER: Final = "penstock-dead-letter-topic"
PARTITION_HEADER: Final = "penstock-dead-letter-partition"
OFFSET_HEADER: Final = "penstock-dead-letter-offset"

Headers = Sequence[tuple[str, bytes | None]]


class DeadLetters:
    """Writer and reader of one dead-letter topic.

    Raises:
        UnknownTopic: the cluster has no such topic.
    """

    def __init__(self, client: Client, topic: str) -> None:
        client.describe_topic(topic)
        self._client = client
        self.topic = topic

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        *,
        source: tuple[str, int, int],
        reason: str,
        message: str,
    ) -> None:
        """Write a dead letter and wait for its acknowledgement.

        `source` is the topic, partition and offset of the record.

        Raises:
            PenstockError: the topic rejects it.
        """
        topic, partition, offset = source
        pairs = [
            *headers,
            (REASON_HEADER, reason.encode()[:REASON_BYTES_MAX]),
            (MESSAGE_HEADER, message.encode()[:REASON_BYTES_MAX]),
            (TOPIC_HEADER, topic.encode()),
            (PARTITION_HEADER, b"%d" % partition),
            (OFFSET_HEADER, b"%d" % offset),
        ]
        listed = [[{"key": name, "value": data} for name, data in pairs]]
        table = pa.table(
            {
                "key": pa.array([key], pa.binary()),
                "value": pa.array([value], pa.binary()),
                "headers": pa.array(listed, HEADERS_TYPE),
            }
        )
        try:
            self._client.write_arrow(self.topic, table)
        except MessageTooLarge:
            # The topic allows smaller records than its source: send the headers only.
            bare = table.set_column(1, "value", pa.nulls(1, pa.binary()))
            self._client.write_arrow(self.topic, bare)

    def sources(self, topic: str) -> set[tuple[int, int]]:
        """Return (partition, offset) of each record of `topic` among the latest dead letters."""
        first = self._client.list_offsets(self.topic, "earliest")
        last = self._client.list_offsets(self.topic, "latest", isolation=READ_COMMITTED)
        found: set[tuple[int, int]] = set()
        for partition, end in last.items():
            start = max(first[partition], end - DEAD_LETTERS_LOOKED_AT_MAX)
            for table in backwards(
                self._client, self.topic, partition, first=start, end=end, columns=("headers",)
            ):
                found |= _sources(table.column("headers"), topic)
        return found


def _sources(headers: Any, topic: str) -> set[tuple[int, int]]:
    columns = [
        header_column(headers, name).to_pylist()
        for name in (TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER)
    ]
    source_topic = topic.encode()
    return {
        (int(partition), int(offset))
        for name, partition, offset in zip(*columns, strict=True)
        if name == source_topic and _is_number(partition) and _is_number(offset)
    }


def _is_number(text: bytes | None) -> bool:
    return text is not None and 1 <= len(text) <= 19 and text.isdigit()


# Rebuilding of the dedup window when a consumer starts.
#
# Records below the committed offset were processed, or are in the dead-letter topic. They are read
# again (`tail.backwards`), the newest first, until the limits of the window in number, age or bytes
# are reached. Payload files are not read.


_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")


def processed_before(
    client: Client,
    topic: str,
    committed: Mapping[int, int],
    dead: set[tuple[int, int]],
    bounds: ConsumerLimits,
    now_ms: int,
) -> Iterator[tuple[BatchKey, int, int]]:
    """Yield the batches below the committed offsets, with CRC32C and time, the oldest first.

    Batches in `dead` are left out. It has partition and offset of records that became dead letters.
    """
    if bounds.dedup_entries_max == 0 or not committed:
        return
    oldest_ms = now_ms - bounds.dedup_age_ms
    found: list[tuple[BatchKey, int, int]] = []
    earliest = client.list_offsets(topic, "earliest", partitions=list(committed))
    latest = client.list_offsets(
        topic, "latest", partitions=list(committed), isolation=READ_COMMITTED
    )
    for partition, offset in committed.items():
        end = min(offset, latest[partition])
        first = max(earliest[partition], end - bounds.rebuild_records_max)
        for table in backwards(client, topic, partition, first=first, end=end, columns=_COLUMNS):
            found.extend(_keys(table, partition, dead, oldest_ms))
            if table.num_rows and table["timestamp"][0].as_py() < oldest_ms:
                break
    found.sort(key=lambda entry: entry[2])
    yield from found[-bounds.dedup_entries_max :]


def _keys(
    table: Any, partition: int, dead: set[tuple[int, int]], oldest_ms: int
) -> Iterator[tuple[BatchKey, int, int]]:
    decoded = decode_records(table["key"], table["value"], table["headers"].combine_chunks())
    rows = zip(
        table["offset"].to_pylist(),
        table["timestamp"].to_pylist(),
        decoded["partition_id"].to_pylist(),
        decoded["batch_id"].to_pylist(),
        decoded["crc32c"].to_pylist(),
        strict=True,
    )
    for offset, at_ms, partition_id, batch_id, crc in rows:
        if batch_id is not None and at_ms >= oldest_ms and (partition, offset) not in dead:
            yield (partition_id, batch_id), crc, at_ms


POLL_MS: Final = 1_000
"""Time for which a consumer waits for records before it checks whether to commit or stop."""
FETCH_BYTES: Final = 4 << 20
"""Bytes of one fetch: about 15,000 pointers, or fewer inline payloads."""

logger = logging.getLogger(__name__)

COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")


class OutboxMessage(Struct, frozen=True, kw_only=True):
    """A batch with its verified `payload`. `pointer` is None for an inline payload.

    `codec` is the producer's name of the payload's compression. The consumer does not decompress
    it.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    partition_id: str
    batch_id: str
    crc32c: int
    codec: str
    event_count: int
    payload: bytes
    pointer: Pointer | None

    @property
    def key(self) -> BatchKey:
        return self.partition_id, self.batch_id


class OutboxConsumer:
    """Consumer of one topic. One thread iterates over it, once. Any thread may call `stop`.

    Args:
        client: a client of the cluster. The caller closes it.
        topic: topic of the outbox.
        reader: reader of the outbox's root on this machine. The caller closes it.
        group: group to which offsets are committed. The consumer starts at the group's offsets.
        dead_letter_topic: topic for bad records. With None, the consumer stops at the first one.
        partitions: partitions to read. None reads all that exist at the start.
        start: position at which to start in partitions without a committed offset.
        until_end: whether to stop at the offset that was the log's end when the iteration began.
        read_payloads: False leaves the payloads of pointers empty. The caller then opens
            `message.pointer` with the reader, for example as a stream, and calls `give_up` if
            that fails.
        policy: how often to read a payload again before it counts as bad.
        bounds: limits of the dedup window, the commits and the dead letters.
        report: function that is called with a sentence for each skipped `BatchReused`.

    Raises:
        InvalidArgument: a name, a partition or `start` is invalid.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        reader: OutboxReader,
        *,
        group: str,
        dead_letter_topic: str | None = None,
        partitions: Sequence[int] | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        until_end: bool = False,
        read_payloads: bool = True,
        policy: ReadPolicy | None = None,
        bounds: ConsumerLimits | None = None,
        report: Callable[[str], None] = logger.warning,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if start not in POSITIONS:
            raise InvalidArgument(f"start = {start!r}: must be {' or '.join(POSITIONS)}")
        self._client = client
        self._reader = reader
        self._start: Literal["earliest", "latest"] = start
        self._until_end = until_end
        self._read_payloads = read_payloads
        self._policy = policy or ReadPolicy()
        self._bounds = bounds or ConsumerLimits()
        self._report = report
        self._clock = clock
        self._core = ConsumerCore(self._bounds)
        self._stopped = threading.Event()
        self._current: OutboxMessage | None = None
        self._begun = False
        self._given = partition_list(partitions)
        self._dead_letters: DeadLetters | None = None
        self._dead_letter_topic = dead_letter_topic
        self.topic = text("topic", topic)
        self.group = text("group", group)

    @property
    def counters(self) -> ConsumerCounters:
        return self._core.counters

    def samples(self) -> Iterator[Sample]:
        return self._core.counters.samples()

    @property
    def positions(self) -> dict[int, int]:
        """Next offset to read of each partition. Empty before the iteration begins."""
        return self._core.positions

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._stopped.set()
            try:
                self._commit()
            except PenstockError as late:
                if error is not None:
                    error.add_note(f"the offsets could not be committed: {late}")

    def close(self) -> None:
        """Commit the offsets of processed messages and end the iteration.

        Raises:
            PenstockError: the group rejects the offsets.
        """
        self._stopped.set()
        self._commit()

    def stop(self) -> None:
        """End the iteration before the next message. Any thread or signal handler may call it."""
        self._stopped.set()

    def commit(self) -> None:
        """Commit offsets up to and including the last yielded message.

        Raises:
            PenstockError: the group rejects the offsets, for example because it has members.
        """
        self._mark_processed()
        self._commit()

    def give_up(self, reason: str, message: str) -> None:
        """Send the last yielded record to the dead-letter topic, because its payload is unusable.

        `reason` is a word, `message` a sentence.

        Raises:
            InvalidError: there is no yielded message that is not processed yet, or no dead-letter
                topic.
        """
        current, self._current = self._current, None
        if current is None:
            raise InvalidError("give_up requires a current message, but none was yielded")
        if self._dead_letters is None:
            raise InvalidError(
                "give_up requires a dead-letter topic: set the consumer's dead_letter_topic"
            )
        table = self._client.read_arrow(
            self.topic,
            start={current.partition: current.offset},
            end={current.partition: current.offset + 1},
            columns=COLUMNS,
        )
        self._bury(self._dead_letters, table.to_batches()[0], 0, reason, message)

    def __iter__(self) -> Iterator[OutboxMessage]:
        """Yield messages until the end or `stop`, in the order of offsets within a partition.

        Raises:
            PayloadUnreadable: the file system failed and did not recover.
            MountSuspected: too many records in a row became dead letters.
            PenstockError: the broker returned an error, or a payload is bad and there is no
                dead-letter topic.
        """
        if self._begun:
            raise OutboxClosed("a consumer can be iterated only once; create another one")
        self._begun = True
        ends = self._begin()
        while not self._stopped.is_set():
            if ends is not None and all(self.positions[p] >= end for p, end in ends.items()):
                break
            try:
                yield from self._read_on(ends)
            except OffsetOutOfRange as error:
                self._skip(error)
        self._commit()

    def _begin(self) -> dict[int, int] | None:
        if self._dead_letter_topic is not None:
            self._dead_letters = DeadLetters(self._client, self._dead_letter_topic)
        first = self._client.list_offsets(self.topic, self._start, partitions=self._given)
        held = self._client.committed(self.group, [(self.topic, p) for p in first])
        for partition, offset in first.items():
            at = held.get((self.topic, partition))
            self._core.begin(partition, offset if at is None else at.offset)
        dead = set() if self._dead_letters is None else self._dead_letters.sources(self.topic)
        below = {p: at.offset for (_, p), at in held.items()}
        for key, crc, at_ms in processed_before(
            self._client, self.topic, below, dead, self._bounds, self._clock.now_ms()
        ):
            self._core.remember(key, crc, at_ms)
        if not self._until_end:
            return None
        return self._client.list_offsets(
            self.topic, "latest", partitions=list(first), isolation=READ_COMMITTED
        )

    def _skip(self, error: OffsetOutOfRange) -> None:
        partition = error.partition
        first = self._client.list_offsets(self.topic, "earliest", partitions=[partition])[partition]
        last = self._client.list_offsets(self.topic, "latest", partitions=[partition])[partition]
        at = self.positions[partition]
        if first <= at <= last:
            raise error
        self._core.skip_to(partition, first if at < first else last)

    def _read_on(self, ends: dict[int, int] | None) -> Iterator[OutboxMessage]:
        """Yield messages up to the offsets `ends`, and commit offsets when due.

        Without `ends`, it returns when no message arrives for `POLL_MS`. A commit is then made in
        time even if the topic is idle.
        """
        batches = self._client.iter_arrow(
            self.topic,
            partitions=list(self.positions),
            start=self.positions,
            end=ends,
            columns=COLUMNS,
            isolation="read_committed",
            max_bytes=FETCH_BYTES,
            max_wait_ms=POLL_MS,
            idle_timeout_ms=POLL_MS if ends is None else None,
        )
        with closing(batches):  # returns its connection at once
            for batch in batches:
                for message in self._messages(batch):
                    self._current = message
                    yield message
                    self._mark_processed()
                    self._commit_if_due()
                self._commit_if_due()
                if self._stopped.is_set():
                    return
        self._commit_if_due()
        for partition, end in (ends or {}).items():
            # The rest below the end is transaction markers and aborted records.
            self._core.at_end(partition, end)

    def _messages(self, batch: Any) -> Iterator[OutboxMessage]:
        decoded = decode_records(
            batch.column("key"), batch.column("value"), batch.column("headers")
        ).to_pylist()
        positions = zip(
            batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True
        )
        for row, (fields, (partition, offset)) in enumerate(zip(decoded, positions, strict=True)):
            if self._stopped.is_set():
                return
            if fields["problem"] is None and self._seen(fields) == fields["crc32c"]:
                self._core.passed(partition, offset)
                continue
            message = self._resolve(batch, row, fields, partition, offset)
            if message is not None:
                yield message

    def _resolve(
        self, batch: Any, row: int, fields: dict[str, Any], partition: int, offset: int
    ) -> OutboxMessage | None:
        timestamp_ms = int(batch.column("timestamp")[row].as_py())
        attempts = 0
        while not self._stopped.is_set():
            attempts += 1
            try:
                pointer, payload = self._payload(batch, row, fields)
            except PenstockError as error:
                trouble, reason = classify(error)
                age_ms = self._clock.now_ms() - timestamp_ms
                judged = self._policy.judge(trouble, attempts=attempts, record_age_ms=age_ms)
                if isinstance(judged, TryAgain):
                    self._core.counters.retries += 1
                    self._stopped.wait(judged.pause_ms / 1000)
                    continue
                if isinstance(judged, DeadLetter) and self._dead_letters is not None:
                    self._bury(self._dead_letters, batch, row, reason, str(error))
                    return None
                if isinstance(error, BatchReused):
                    self._core.rejected(partition, offset)
                    self._report(f"{self.topic}-{partition} at offset {offset}: {error}")
                    return None
                error.add_note(f"{self.topic}-{partition} at offset {offset}")
                raise
            self._core.counters.payload_bytes += len(payload)
            self._core.counters.inline += pointer is None
            return OutboxMessage(
                topic=self.topic,
                partition=partition,
                offset=offset,
                timestamp_ms=timestamp_ms,
                partition_id=fields["partition_id"],
                batch_id=fields["batch_id"],
                crc32c=fields["crc32c"],
                codec=fields["codec"],
                event_count=fields["event_count"],
                payload=payload,
                pointer=pointer,
            )
        return None

    def _payload(
        self, batch: Any, row: int, fields: dict[str, Any]
    ) -> tuple[Pointer | None, bytes]:
        if fields["problem"] is not None:
            raise InvalidPointer(fields["problem"])
        if (seen := self._seen(fields)) is not None:
            raise BatchReused(fields["partition_id"], fields["batch_id"], fields["crc32c"], seen)
        if fields["kind"] != POINTER:
            payload: bytes = batch.column("value")[row].as_py()
            found = crc32c(payload)
            if found != fields["crc32c"]:
                where = f"inline batch {fields['batch_id']}"
                raise ChecksumMismatch(where, found, fields["crc32c"])
            return None, payload
        pointer = Pointer(**{name: fields[name] for name in Pointer.__struct_fields__})
        return pointer, self._reader.read(pointer) if self._read_payloads else b""

    def _seen(self, fields: dict[str, Any]) -> int | None:
        return self._core.seen((fields["partition_id"], fields["batch_id"]), self._clock.now_ms())

    def _bury(
        self, dead_letters: DeadLetters, batch: Any, row: int, reason: str, message: str
    ) -> None:
        partition = int(batch.column("partition")[row].as_py())
        offset = int(batch.column("offset")[row].as_py())
        headers = batch.column("headers")[row].as_py() or ()
        dead_letters.send(
            batch.column("key")[row].as_py(),
            batch.column("value")[row].as_py(),
            [(header["key"], header["value"]) for header in headers],
            source=(self.topic, partition, offset),
            reason=reason,
            message=message,
        )
        self._core.dead_lettered(partition, offset, reason)
        if self._core.suspicious:
            raise MountSuspected(
                f"{self.topic}-{partition}: {self._bounds.dead_letters_in_a_row_max} records in a"
                f" row became dead letters, the last one at offset {offset} ({reason}); is the"
                f" outbox's file system mounted at {self._reader.root}?"
            )

    def _mark_processed(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            now_ms = self._clock.now_ms()
            self._core.processed(
                current.partition, current.offset, current.key, current.crc32c, now_ms
            )

    def _commit_if_due(self) -> None:
        if self._core.due(self._clock.now_ms()):
            self._commit()

    def _commit(self) -> None:
        positions = self._core.to_commit()
        if positions:
            self._client.commit_offsets(
                self.group, {(self.topic, p): offset for p, offset in positions.items()}
            )
            self._core.committed(positions, self._clock.now_ms())
