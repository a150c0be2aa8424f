"""Writer of Arrow batches to a topic: the shell around the produce core.

One thread does all the work. It encodes the next chunk of rows while the broker processes up to
`max_in_flight` requests, and reads responses in between. A chunk is about as large as one full
batch per partition. Its rows are sorted by partition through an array of row addresses, so only the
encoder copies them. Rows without a key are written to one partition per batch, in turn, so batches
are full and these rows need no sorting.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.settings import INT_MAX
from penstock.client import errors
from penstock.client.arguments import optional_whole, positive, text, whole
from penstock.client.columns import ColumnNames, choose, chunks, normalise, open_stream, pick
from penstock.client.connection import Connection
from penstock.client.errors import BrokersUnreachable, InvalidArgument, TimedOut
from penstock.client.partitioning import check_partitions, spread
from penstock.client.produce import (
    Batch,
    PartitionReport,
    ProduceCore,
    ProduceRequest,
    produce_call,
    read_acknowledgements,
)
from penstock.client.producers import ProducerIdentity
from penstock.client.protocol import read_response
from penstock.client.session import Session
from penstock.records import HEADER_BYTES, Codec, columnar
from penstock.records.compression import LEVELS

if TYPE_CHECKING:
    from penstock.client.encoding import ValueSchema

BUFFER_BYTES: Final = 32 << 20
"""Maximum bytes that are queued or in flight; above it the writer waits for responses."""

ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0, -1: -1, 1: 1, 0: 0}
_CODECS: Final = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}
_RATE_STEPS_PER_SECOND: Final = 20
_WAIT_MS_MAX: Final = 100.0
_FILLED_SHARE: Final = 0.85
"""Size of a chunk per partition as a share of a full batch; it avoids a second, tiny batch."""

Progress = Callable[[int, int], None]


class WriteOptions(Struct, frozen=True, kw_only=True):
    codec: Codec = Codec.NONE
    level: int | None = None
    acks: int = -1
    partition: int | None = None
    max_in_flight: int = errors.IN_FLIGHT_MAX
    batch_bytes: int = errors.BATCH_BYTES
    request_bytes: int = errors.PRODUCE_REQUEST_BYTES
    buffer_bytes: int = BUFFER_BYTES
    records_per_second: float | None = None


class WriteReport(Struct, frozen=True, kw_only=True):
    """Result of a write, after its last acknowledgement.

    `offsets` has the first and last offset per partition. They are -1 if unknown: with acks=0, or
    if an acknowledgement was lost and the broker recognised the retried batch as a duplicate.
    """

    topic: str
    records: int
    bytes: int
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    partition_records: dict[int, int] = field(default_factory=dict)
    retries: int = 0


def parse_codec(name: str) -> Codec:
    """Return a codec by Kafka's name.

    Raises:
        InvalidArgument: the name is not one of none, gzip, snappy, lz4, zstd.
    """
    codec = _CODECS.get(name.lower()) if isinstance(name, str) else None
    if codec is None:
        raise InvalidArgument(f"codec = {name!r}: must be one of none, gzip, snappy, lz4, zstd")
    return codec


def parse_level(codec: Codec, level: int | None) -> int | None:
    """Return a compression level after checking it; None is the codec's default.

    Raises:
        InvalidArgument: the codec has no such level.
    """
    if level is None:
        return None
    if codec not in LEVELS:
        raise InvalidArgument(f"level = {level!r}: codec {codec.name.lower()} has no levels")
    smallest, _, largest = LEVELS[codec]
    return whole(f"level of {codec.name.lower()}", level, smallest, largest)


def parse_acks(acks: str | int) -> int:
    """Return the number of acknowledgements, -1 for all.

    Raises:
        InvalidArgument: the value is not one of all, 1, 0.
    """
    if not isinstance(acks, (str, int)) or isinstance(acks, bool) or acks not in ACKS:
        raise InvalidArgument(f"acks = {acks!r}: must be one of all, 1, 0")
    return ACKS[acks]


def write_options(
    *,
    codec: str,
    level: int | None,
    acks: str | int = "all",
    partition: int | str | None,
    max_in_flight: int,
    batch_bytes: int,
    records_per_second: float | None = None,
) -> WriteOptions:
    positive("records_per_second", records_per_second)
    chosen = parse_codec(codec)
    return WriteOptions(
        codec=chosen,
        level=parse_level(chosen, level),
        acks=parse_acks(acks),
        partition=None
        if isinstance(partition, str)
        else optional_whole("partition", partition, 0, INT_MAX),
        max_in_flight=whole("max_in_flight", max_in_flight, 1, errors.IN_FLIGHT_MAX),
        batch_bytes=whole("batch_bytes", batch_bytes, HEADER_BYTES + 1, INT_MAX),
        records_per_second=records_per_second,
    )


class Writer:
    def __init__(
        self,
        session: Session,
        topic: str,
        identity: ProducerIdentity,
        options: WriteOptions,
        progress: Progress | None = None,
    ) -> None:
        self._session = session
        self._topic = topic
        self._identity = identity
        self._options = options
        self._progress = progress
        self._leaders = session.leaders(topic)
        self._count = len(session.topic(topic).partitions)
        if options.partition is not None:
            check_partitions(topic, self._count, options.partition, options.partition)
        self._core = ProduceCore(
            topic,
            retry=session.retry,
            idempotent=identity.idempotent,
            in_flight_max=options.max_in_flight,
            request_bytes=options.request_bytes,
        )
        self._connections: dict[int, Connection] = {}
        self._requests: dict[int, deque[ProduceRequest]] = {}
        self._heard_ms: dict[int, float] = {}
        self._reported = 0
        self._sticky = int(session.randomness.uniform() * self._count)

    def write(self, batches: Iterator[Any], names: ColumnNames) -> WriteReport:
        """Write batches with the named columns; return when all are acknowledged.

        Raises:
            PenstockError: a batch failed permanently. A note of the error has the number of records
                that were acknowledged before.
        """
        keyed = names.key is not None or names.partition is not None
        to_many = keyed and self._options.partition is None
        chunk_bytes = self._options.batch_bytes * (self._count if to_many else 1)
        chunk_bytes = min(int(chunk_bytes * _FILLED_SHARE), self._options.buffer_bytes)

        def encoded() -> Iterator[Iterable[Batch]]:
            started_ms, taken = self._session.now_ms(), 0
            for chunk in chunks(batches, self._rows_max(), chunk_bytes):
                yield self._encode(normalise(chunk, names), to_many)
                taken += chunk.num_rows
                self._pace(started_ms, taken)

        return self.write_batches(encoded())

    def write_batches(self, groups: Iterable[Iterable[Batch]]) -> WriteReport:
        """Write encoded batches, whose headers have the identity's producer and sequences.

        Raises:
            PenstockError: as in `write`.
        """
        try:
            for batches in groups:
                self._core.add(batches)
                self._pump(self._options.buffer_bytes)
            self._pump(0)
        except PenstockError as error:
            error.add_note(f"{self._core.records} records were acknowledged before")
            raise
        finally:
            self._release()
        return self._report()

    def _rows_max(self) -> int:
        rate = self._options.records_per_second
        if rate is None:
            return errors.CHUNK_ROWS_MAX
        return max(1, min(errors.CHUNK_ROWS_MAX, int(rate / _RATE_STEPS_PER_SECOND)))

    def _report(self) -> WriteReport:
        reports: dict[int, PartitionReport] = dict(sorted(self._core.reports.items()))
        return WriteReport(
            topic=self._topic,
            records=self._core.records,
            bytes=self._core.bytes,
            offsets={p: (item.first_offset, item.last_offset) for p, item in reports.items()},
            partition_records={p: item.records for p, item in reports.items()},
            retries=self._core.retries,
        )

    # Encoding

    def _encode(self, chunk: Any, to_many: bool) -> Iterator[Batch]:
        rows = columnar.read_input(chunk, self._session.clock.now_ms())
        if not to_many:
            partition = self._options.partition
            yield from self._encode_run(rows, self._turn() if partition is None else partition)
            return
        parts = spread(chunk, rows, topic=self._topic, count=self._count, unkeyed=self._turn())
        for partition, part in parts:
            yield from self._encode_run(part, partition)

    def _turn(self) -> int:
        for _ in range(self._count):
            self._sticky = (self._sticky + 1) % self._count
            if self._sticky in self._leaders:
                break
        return self._sticky

    def _encode_run(self, rows: Any, partition: int) -> Iterator[Batch]:
        encoded = columnar.encode_batches(
            rows,
            codec=self._options.codec,
            level=self._options.level,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=self._identity.sequence(self._topic, partition),
            transactional=self._identity.transactional_id is not None,
            max_batch_bytes=self._options.batch_bytes,
            now_ms=self._session.clock.now_ms(),
        )
        self._identity.advance(self._topic, partition, rows.size)
        for item in encoded:
            yield Batch(partition, item.data, item.record_count)

    # Sending and receiving

    def _pace(self, started_ms: float, taken: int) -> None:
        rate = self._options.records_per_second
        if rate is None:
            return
        due_ms = started_ms + taken / rate * 1000
        while (left_ms := due_ms - self._session.now_ms()) > 0:
            self._pump(self._options.buffer_bytes)
            self._take_answers(min(left_ms, _WAIT_MS_MAX))

    def _pump(self, limit_bytes: int) -> None:
        while True:
            self._take_answers(0)
            self._send_ready()
            self._session.trouble = self._core.trouble
            if self._core.error is not None:
                raise self._core.error
            if self._core.buffered_bytes <= limit_bytes:
                return
            self._take_answers(_WAIT_MS_MAX)

    def _send_ready(self) -> None:
        now_ms = self._session.now_ms()
        if self._core.metadata_stale and now_ms >= self._core.not_before_ms:
            self._refresh_leaders()
        while request := self._core.next_request(self._leaders, self._session.now_ms()):
            self._send(request)

    def _refresh_leaders(self) -> None:
        self._core.metadata_stale = False
        self._session.forget(self._topic)
        try:
            self._session.fetch_topic(self._topic)
            self._leaders = self._session.leaders(self._topic)
        except (RetriableError, BrokersUnreachable):
            self._core.metadata_stale = True  # refreshed by the next attempt

    def _send(self, request: ProduceRequest) -> None:
        node_id = request.node_id
        under_way = self._requests.setdefault(node_id, deque())
        try:
            connection = self._connections.get(node_id)
            if connection is None:
                connection = self._connections[node_id] = self._session.lease(node_id)
            call = produce_call(
                request,
                topic=self._topic,
                acks=self._options.acks,
                timeout_ms=self._session.request_timeout_ms,
                correlation_id=connection.next_correlation_id(),
                client_id=connection.client_id,
                transactional_id=self._identity.transactional_id,
            )
            if not under_way:
                self._heard_ms[node_id] = self._session.now_ms()
            connection.send(call, answered=self._options.acks != 0)
        except RetriableError as error:
            under_way.append(request)
            self._lost(node_id, error)
            return
        if self._options.acks == 0:
            self._core.acknowledged_unseen(request)
            self._show_progress()
        else:
            under_way.append(request)

    def _lost(self, node_id: int, error: PenstockError) -> None:
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()
            self._session.pool.give_back(connection)
            self._session.pool.drop_idle(*connection.address)
        requests = list(self._requests.pop(node_id, ()))
        self._core.metadata_stale = True
        self._core.disconnected(
            requests,
            error,
            now_ms=self._session.now_ms(),
            chance=self._session.randomness.uniform(),
        )

    def _take_answers(self, wait_ms: float) -> None:
        waiting = {
            self._connections[node_id].fileno(): node_id
            for node_id, requests in self._requests.items()
            if requests
        }
        if not waiting:
            self._wait_for_retry(wait_ms)
            return
        poller = select.poll()
        for descriptor in waiting:
            poller.register(descriptor, select.POLLIN)
        connections = self._connections
        readable = {one for one, node in waiting.items() if connections[node].readable}
        polled = {descriptor for descriptor, _ in poller.poll(0 if readable else wait_ms)}
        for descriptor in readable | polled:
            self._take_answer(waiting.pop(descriptor))
        for node_id in waiting.values():
            self._check_overdue(node_id)

    def _check_overdue(self, node_id: int) -> None:
        limit_ms = self._session.request_timeout_ms
        if self._session.now_ms() - self._heard_ms[node_id] > limit_ms:
            where = self._connections[node_id].where
            self._lost(node_id, TimedOut(f"{where} did not answer Produce within {limit_ms} ms"))

    def _wait_for_retry(self, wait_ms: float) -> None:
        left_ms = min(wait_ms, self._core.not_before_ms - self._session.now_ms())
        if left_ms <= 0 and self._core.metadata_stale and wait_ms > 0:
            left_ms = errors.BACKOFF_FIRST_MS
        if left_ms > 0:
            self._session.pause(left_ms / 1000)

    def _take_answer(self, node_id: int) -> None:
        connection = self._connections[node_id]
        try:
            call, frame = connection.receive_frame(None)
        except RetriableError as error:
            self._lost(node_id, error)
            return
        self._heard_ms[node_id] = self._session.now_ms()
        results = read_acknowledgements(read_response(call, frame, connection.where))
        request = self._requests[node_id].popleft()
        self._core.answered(
            request,
            results,
            now_ms=self._session.now_ms(),
            chance=self._session.randomness.uniform(),
        )
        self._show_progress()

    def _show_progress(self) -> None:
        if self._progress is not None and self._core.records != self._reported:
            self._reported = self._core.records
            self._progress(self._core.records, self._core.bytes)

    def _release(self) -> None:
        for connection in self._connections.values():
            self._session.pool.give_back(connection)
        self._connections.clear()
        self._session.trouble = ""


def write_table(
    session: Session,
    topic: str,
    data: Any,
    identity: ProducerIdentity,
    options: WriteOptions,
    *,
    key: str | None,
    value: str,
    timestamp: str | None,
    headers: str | None,
    partition: str | None,
    progress: Progress | None,
    schema: ValueSchema | None = None,
) -> WriteReport:
    """Write any object with Arrow's C stream interface.

    `key`, `value`, `timestamp`, `headers` and `partition` are the names of its columns. With
    `schema` the values are encoded first.

    Raises:
        InvalidArgument: columns are invalid.
        PenstockError: the broker rejected the write, or retries were exhausted.
    """
    text("topic", topic)
    stream = open_stream(data)
    if schema is not None:
        from penstock.client.encoding import encoded

        others = {name for name in (key, timestamp, headers, partition) if name is not None}
        stream = encoded(stream, schema, topic, value, others)
    names = choose(
        stream.schema,
        key=key,
        value=value,
        timestamp=timestamp,
        headers=headers,
        partition=partition,
    )
    return Writer(session, topic, identity, options, progress).write(pick(stream, names), names)
