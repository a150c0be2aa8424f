"""Worker's side of the sink: Arrow batches in, staged blobs out.

A task gathers rows to chunks of a bounded size, encodes each chunk by columns into record batches
per topic and partition, and stores it as a blob under a unique name. It returns the blobs' entries
for the manifest, in row order. Only blobs that the driver's commit names are appended; others are
collected by age. Problems of the rows are returned as a `problem` instead of being raised, because
Spark would retry the task and bury the cause in a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from penstock.base.errors import InvalidError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.client.columns import chunks
from penstock.client.errors import BrokerRefused
from penstock.client.security import admin_security
from penstock.formats.json.writing import json_rows
from penstock.records import RecordTooLarge
from penstock.records.columnar import encode_batches, read_input
from penstock.records.columnar.fitting import Shorten, fitting
from penstock.spark.admin_http import BrokerAdmins
from penstock.spark.broker_log import NO_OPTIONS, BrokerLog
from penstock.spark.errors import InvalidRows, StagingRefused, UnknownTopics
from penstock.spark.sink.blobs import Blob, BlobParts
from penstock.spark.sink.columns import KEY, VALUE
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.placing import MESSAGE_BYTES_DEFAULT, Target, Turns, by_partition, by_topic
from penstock.spark.sink.store import BlobStore, StagingLocation, staging_locations

CHUNK_BYTES: Final = 32 << 20
"""Encoded bytes of rows that a task holds at a time; a chunk is one blob."""
CHUNK_ROWS_MAX: Final = 1 << 20
"""Most rows of a chunk."""
CHUNK_HALVINGS_MAX: Final = 20
"""Most halvings of a chunk that encodes to more than a blob may hold."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Largest batch that is staged, whatever its topic's limit."""
TOPICS_MAX: Final = 1_000
"""Most topics that one task may write to."""

_NAME_CHARS_MAX: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Batch, task and attempt number of a stager."""

    application: str
    batch_id: int
    partition: int
    number: int

    def blob_name(self, index: int, unique: str) -> str:
        """Return a name unique to this attempt and driver."""
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", self.application)[:_NAME_CHARS_MAX]
        return f"s-{plain}-{self.batch_id}-{self.partition}-{self.number}-{index}-{unique}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Staged blob of a task, or a problem of its rows."""

    blob: Blob | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Topics by name: those known from the driver, others requested once."""

    bootstrap: str
    security: Mapping[str, str] = field(repr=False)
    known: dict[str, Target]

    def __call__(self, name: str) -> Target:
        """Return the topic.

        Raises:
            UnknownTopics: no topic has this name.
        """
        found = self.known.get(name)
        if found is None:
            if len(self.known) >= TOPICS_MAX:
                raise InvalidRows(f"column topic names more than {TOPICS_MAX} topics in one task")
            found = self.known[name] = find_topic(self.bootstrap, name, self.security)
        return found


def find_topic(bootstrap: str, name: str, security: Mapping[str, str] = NO_OPTIONS) -> Target:
    """Request a topic's id, its number of partitions and its `max.message.bytes`.

    Raises:
        UnknownTopics: no topic has this name.
    """
    log = BrokerLog(bootstrap, security=security)
    try:
        state = log.topics((name,)).get(name)
        batch_bytes_max = MESSAGE_BYTES_DEFAULT if state is None else _batch_bytes(log, name)
    finally:
        log.close()
    if state is None:
        raise UnknownTopics(
            f"{bootstrap} has no topic {name}: create it (penstock topic create {name}); the sink"
            " creates none"
        )
    return Target(
        name=name,
        topic_id=state.topic_id,
        partitions=len(state.leader_epochs),
        batch_bytes_max=min(batch_bytes_max, MESSAGE_BYTES_MAX),
    )


def _batch_bytes(log: BrokerLog, name: str) -> int:
    """Return the topic's `max.message.bytes`; the default if its configuration is not readable."""
    try:
        entries = log.client.describe_configs("topic", name)
    except BrokerRefused:
        return MESSAGE_BYTES_DEFAULT
    found = {entry.name: entry.value for entry in entries}
    return int(found.get("max.message.bytes") or MESSAGE_BYTES_DEFAULT)


def stage(
    batches: Iterator[Any],
    options: SinkOptions,
    attempt: Attempt,
    *,
    columns: Sequence[str],
    locations: Sequence[StagingLocation] = (),
    topics: dict[str, Target] | None = None,
    shorten: Shorten | None = None,
    clock: Clock = SYSTEM_CLOCK,
    randomness: Randomness = SYSTEM_RANDOMNESS,
) -> Iterator[Staged]:
    """Stage the rows of one task attempt; yield its blobs in row order, durable when yielded.

    Args:
        columns: the result of `written_columns`.
        locations, topics: staging locations and topics that the driver found; else requested.
        shorten: shortens records that are too large for their topic; by default they are rejected.

    Raises:
        AdminUnavailable, PenstockError: the broker is unreachable.
        OSError: the staging directory cannot be written to.
    """
    try:
        with _Stager(options, attempt, locations, topics, shorten, clock, randomness) as stager:
            for blob in stager.blobs(batches, columns):
                yield Staged(blob=blob)
    except InvalidError as error:
        yield Staged(problem=str(error))


class _Stager:
    def __init__(
        self,
        options: SinkOptions,
        attempt: Attempt,
        locations: Sequence[StagingLocation],
        topics: dict[str, Target] | None,
        shorten: Shorten | None,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._options = options
        self._attempt = attempt
        self._clock = clock
        self._randomness = randomness
        self._admins = BrokerAdmins(
            options.admin_url,
            clock=clock,
            randomness=randomness,
            security=admin_security(options.security),
        )
        self._locations = locations
        self._shorten = shorten
        self._topics = Topics(
            bootstrap=options.bootstrap, security=options.security, known=dict(topics or {})
        )
        self._turns = Turns(attempt.partition + attempt.batch_id)
        self._count = 0

    def __enter__(self) -> _Stager:
        return self

    def __exit__(self, *_: object) -> None:
        self._admins.close()

    def blobs(self, batches: Iterator[Any], columns: Sequence[str]) -> Iterator[Blob]:
        store: BlobStore | None = None
        chosen = (_as_bytes(batch.select(columns)) for batch in batches if batch.num_rows)
        for chunk in chunks(chosen, CHUNK_ROWS_MAX, CHUNK_BYTES):
            if store is None:  # a task without rows asks for nothing
                self._locations = self._locations or staging_locations(self._admins)
                store = BlobStore(self._admins, self._locations)
            for parts in self._encode(chunk, CHUNK_HALVINGS_MAX):
                name = self._attempt.blob_name(self._count, self._randomness.uuid().hex)
                self._count += 1
                holders = store.put(name, parts.pieces, parts.size_bytes)
                yield parts.named(name, holders)

    def _encode(self, chunk: Any, halvings: int) -> Iterator[BlobParts]:
        parts = BlobParts()
        for topic, rows in by_topic(chunk, self._options.topic):
            target = self._topics(topic)
            self._add(parts, target, rows)
        limit = min([place.blob_bytes_max for place in self._locations], default=0)
        if parts.size_bytes <= limit:
            yield parts
            return
        if halvings == 0 or chunk.num_rows == 1:
            raise StagingRefused(
                f"a blob of {parts.size_bytes} bytes is above the broker's limit of {limit} bytes"
            )
        half = chunk.num_rows // 2
        yield from self._encode(chunk.slice(0, half), halvings - 1)
        yield from self._encode(chunk.slice(half), halvings - 1)

    def _add(self, parts: BlobParts, target: Target, chunk: Any) -> None:
        now_ms = self._clock.now_ms()
        limit = target.batch_bytes_max
        if self._shorten is not None:
            chunk = fitting(chunk, limit_bytes=limit, shorten=self._shorten)
        rows = read_input(chunk, now_ms)
        for partition, part in by_partition(chunk, rows, target, self._turns):
            try:
                batches = encode_batches(
                    part,
                    now_ms=now_ms,
                    codec=self._options.codec,
                    max_batch_bytes=limit,
                    aim_bytes=self._options.batch_bytes,
                    compress_large=True,
                )
            except RecordTooLarge as error:
                raise InvalidRows(
                    f"topic {target.name}, partition {partition}: a record is too large, even"
                    f" compressed: {error}. The limit is the topic's max.message.bytes; raise it"
                    f" (penstock config set topic {target.name} max.message.bytes=<more>), or keep"
                    " large payloads in files and send pointers to them"
                ) from error
            parts.add(target, partition, batches)


def _as_bytes(batch: Any) -> Any:
    """Return the batch with key and value as bytes; text is not copied, structs become JSON."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_struct(column.type):
            column = json_rows(column)
        columns.append(column.cast(pa.binary()) if name in {KEY, VALUE} else column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
