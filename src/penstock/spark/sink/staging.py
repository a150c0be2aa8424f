"""Workers' part of the sink: converts Arrow batches to staged blobs.

A task collects rows into chunks of limited size and encodes each chunk into record batches per
topic and partition. It stores each chunk as a blob under a unique name, and returns the blobs'
entries for the commit, in row order. The broker appends only blobs that the driver's commit names;
it deletes others by age.

Invalid rows are returned as a `problem` instead of being raised, because Spark would retry the task
and hide the cause in a stack trace.
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
from penstock.records.columnar.fitting import fitting
from penstock.records.columnar.shortening import Shorten
from penstock.spark.admin_http import BrokerAdmins
from penstock.spark.errors import InvalidRows, StagingRefused, UnknownTopics
from penstock.spark.reads.broker_log import NO_OPTIONS, BrokerLog
from penstock.spark.sink.blobs import (
    MESSAGE_BYTES_DEFAULT,
    Blob,
    BlobParts,
    BlobStore,
    StagingLocation,
    Target,
    Turns,
    by_partition,
    by_topic,
    staging_locations,
)
from penstock.spark.sink.options import KEY, VALUE, SinkOptions

CHUNK_BYTES: Final = 32 << 20
"""Bytes of rows after which a task closes a chunk; each chunk becomes a blob."""
CHUNK_ROWS_MAX: Final = 1 << 20
"""Most rows of a chunk."""
CHUNK_HALVINGS_MAX: Final = 20
"""How often a chunk may be halved if its blob would exceed the broker's limit."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Largest record batch that is staged, even if the topic's limit is higher."""
TOPICS_MAX: Final = 1_000
"""Most topics that one task may write to."""

_NAME_CHARS_MAX: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Identity of one attempt of a staging task."""

    application: str
    batch_id: int
    partition: int
    number: int

    def blob_name(self, index: int, unique: str) -> str:
        """Return the name of the attempt's blob number `index`; `unique` is a random text."""
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", self.application)[:_NAME_CHARS_MAX]
        return f"s-{plain}-{self.batch_id}-{self.partition}-{self.number}-{index}-{unique}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Result of staging: a blob, or a problem of the task's rows."""

    blob: Blob | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Cache of the topics that rows are written to; missing ones are requested."""

    bootstrap: str
    security: Mapping[str, str] = field(repr=False)
    known: dict[str, Target]

    def __call__(self, name: str) -> Target:
        """Return the topic of this name.

        Raises:
            UnknownTopics: no topic has this name.
            InvalidRows: the task writes to more than `TOPICS_MAX` topics.
        """
        found = self.known.get(name)
        if found is None:
            if len(self.known) >= TOPICS_MAX:
                raise InvalidRows(
                    f"the column topic has more than {TOPICS_MAX} topics in one task. Write to"
                    " fewer topics in a batch"
                )
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
            f"{bootstrap} has no topic {name}, and the sink does not create topics. Create it:"
            f" penstock topic create {name}"
        )
    return Target(
        name=name,
        topic_id=state.topic_id,
        partitions=len(state.leader_epochs),
        batch_bytes_max=min(batch_bytes_max, MESSAGE_BYTES_MAX),
    )


def _batch_bytes(log: BrokerLog, name: str) -> int:
    """Return the topic's `max.message.bytes`; the default if the client may not read it."""
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
    """Stage the rows of one task attempt; yield its blobs in row order, each durable when yielded.

    If rows are invalid, the last item has the `problem` instead of a blob.

    Args:
        batches: rows as Arrow batches.
        options: options of the sink.
        attempt: identity of the task attempt, for the names of blobs.
        columns: columns to write, the result of `written_columns`.
        locations, topics: staging locations and topics that the driver already requested; if they
            are missing, the task requests them.
        shorten: function that shortens records that exceed their topic's limit; without it they are
            rejected.

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
            if store is None:  # a task without rows sends no request
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
                f"a blob of {parts.size_bytes} bytes exceeds the broker's limit of {limit} bytes"
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
                    f"topic {target.name}, partition {partition}: a record exceeds the topic's"
                    f" max.message.bytes even when compressed: {error}. Raise the limit (penstock"
                    f" config set topic {target.name} max.message.bytes=<more>), or store large"
                    " payloads in files and send their paths"
                ) from error
            parts.add(target, partition, batches)


def _as_bytes(batch: Any) -> Any:
    """Return the batch with `key` and `value` as bytes; a struct becomes JSON."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_struct(column.type):
            column = json_rows(column)
        columns.append(column.cast(pa.binary()) if name in {KEY, VALUE} else column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
