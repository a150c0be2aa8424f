"""Reader of a topic: the shell around the fetch core.

Each leader has one fetch in flight, or two while the reader is behind in several of its partitions.
When a response arrives, the reader moves the positions by the batch headers, sends the next fetch,
and only then decodes the response. During the decoding the broker reads and sends, and the kernel
receives what fits into the socket's buffer. (A second thread that receives the next response gained
nothing in measurements, because its bytes had to move between cores.)

After a leader change the reader fetches from the new leader at once if the response names it, and
otherwise after a metadata refresh.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.base.errors import PenstockError, RetriableError
from penstock.client import errors
from penstock.client.connection import Connection
from penstock.client.errors import (
    BrokersUnreachable,
    LogTruncated,
    MessageTooLarge,
    OffsetOutOfRange,
    TimedOut,
    UnknownTopic,
    broker_error,
    is_retriable,
    note_attempts,
)
from penstock.client.fetch import (
    BY_ID_FROM,
    OFFSET_OUT_OF_RANGE,
    Asked,
    FetchCore,
    FetchedPartition,
    FetchRequest,
    ReadPosition,
    Run,
    read_fetch,
)
from penstock.client.frames import Frames
from penstock.client.protocol import TopicMetadata, make_call
from penstock.client.session import Session

FETCHES_UNDER_WAY: Final = 2
"""Maximum number of fetches in flight to one broker; each fetch has different partitions."""

_MARGIN_MS: Final = 100.0


class ReadLimits(Struct, frozen=True, kw_only=True):
    max_bytes: int = errors.FETCH_BYTES
    partition_max_bytes: int = errors.FETCH_PARTITION_BYTES
    max_wait_ms: int = errors.FETCH_WAIT_MS
    idle_timeout_ms: float | None = None
    """Time in milliseconds without records after which the read ends; None means no limit."""


class Reader:
    def __init__(self, session: Session, core: FetchCore, bounds: ReadLimits) -> None:
        self._session = session
        self._core = core
        self._bounds = bounds
        self._connections: dict[int, Connection] = {}
        self._requests: dict[int, deque[FetchRequest]] = {}
        self._heard_ms: dict[int, float] = {}
        self._frames = Frames()
        self._learn_leaders(session.topic(core.topic))
        self._failures = 0
        self._failed_ms = 0.0
        self._retry_at_ms = 0.0

    def runs(self) -> Generator[Sequence[Run]]:
        """Fetch until each partition has reached its end; yield the batches of each response.

        A run holds undecoded batches of one partition. It is a view of received memory, which is
        not reused while a view of it exists.

        Raises:
            PenstockError: a partition has an error that no retry resolves.
        """
        last_ms = self._session.now_ms()
        try:
            while not self._core.done:
                self._send_all()
                left_ms, found = self._left_ms(last_ms), False
                for node_id in self._ready(max(0.0, left_ms)):
                    runs = self._receive(node_id)
                    if runs:
                        found = True
                        yield runs
                        last_ms = self._session.now_ms()
                # Read what arrived while this process was suspended before ending the read.
                if left_ms <= 0 and not found:
                    return
        finally:
            self._close()

    def _close(self) -> None:
        for connection in self._connections.values():
            self._session.pool.give_back(connection)
        self._connections.clear()
        self._requests.clear()
        self._session.trouble = ""

    def _left_ms(self, last_ms: float) -> float:
        """Return the milliseconds to wait for a response; 0 or less after the idle timeout."""
        most = float(self._bounds.max_wait_ms + _MARGIN_MS)
        if self._bounds.idle_timeout_ms is None:
            return most
        return min(most, last_ms + self._bounds.idle_timeout_ms - self._session.now_ms())

    def _send_all(self) -> None:
        now_ms = self._session.now_ms()
        if now_ms < self._retry_at_ms:
            return
        if self._failures and self._retry_at_ms:
            self._refresh_leaders()
        if self._core.without_leader() and not self._retry_at_ms:
            self._failed(broker_error(5, f"topic {self._core.topic!r}"))
        for node_id in sorted(self._core.nodes() - set(self._requests)):
            self._send(node_id)

    def _refresh_leaders(self) -> None:
        self._retry_at_ms = 0.0
        self._session.forget(self._core.topic)
        try:
            self._learn_leaders(self._session.fetch_topic(self._core.topic))
        except (RetriableError, BrokersUnreachable) as error:
            self._failed(error)

    def _learn_leaders(self, topic: TopicMetadata) -> None:
        core = self._core
        core.topic_id = core.topic_id or topic.topic_id
        if topic.topic_id != core.topic_id:
            raise UnknownTopic(
                f"topic {core.topic!r} was deleted and created again during the read"
            )
        for row in topic.partitions:
            core.learn(row.index, (row.leader, row.leader_epoch))

    def _send(self, node_id: int) -> None:
        under_way = self._requests.get(node_id, ())
        while len(under_way) < FETCHES_UNDER_WAY:
            request = self._core.request(node_id, under_way)
            if request is None or not self._send_one(node_id, request):
                return
            under_way = self._requests[node_id]

    def _send_one(self, node_id: int, request: FetchRequest) -> bool:
        try:
            connection = self._connections.get(node_id)
            if connection is None:
                connection = self._connections[node_id] = self._session.lease(node_id)
            _send_fetch(connection, self._core, request)
        except RetriableError as error:
            self._lost(node_id, error)
            return False
        under_way = self._requests.setdefault(node_id, deque())
        if not under_way:
            self._heard_ms[node_id] = self._session.now_ms()
        under_way.append(request)
        return True

    def _ready(self, wait_ms: float) -> list[int]:
        if not self._requests:
            pause_ms = min(wait_ms, max(1.0, self._retry_at_ms - self._session.now_ms()))
            self._session.pause(pause_ms / 1000)
            return []
        if len(self._requests) == 1 and self._bounds.idle_timeout_ms is None:
            return list(self._requests)  # the read itself waits
        poller = select.poll()
        by_descriptor = {self._connections[node].fileno(): node for node in self._requests}
        for descriptor in by_descriptor:
            poller.register(descriptor, select.POLLIN)
        readable = {node for node in self._requests if self._connections[node].readable}
        polled = poller.poll(0 if readable else wait_ms)
        ready = list(readable | {by_descriptor[descriptor] for descriptor, _ in polled})
        for node_id in set(self._requests).difference(ready):
            self._check_overdue(node_id)
        return ready

    def _check_overdue(self, node_id: int) -> None:
        limit_ms = self._session.request_timeout_ms
        if self._session.now_ms() - self._heard_ms[node_id] > limit_ms:
            where = self._connections[node_id].where
            self._lost(node_id, TimedOut(f"{where} did not answer Fetch within {limit_ms} ms"))

    def _receive(self, node_id: int) -> list[Run]:
        connection = self._connections[node_id]
        try:
            call, frame = connection.receive_frame(self._frames)
        except RetriableError as error:
            self._lost(node_id, error)
            return []
        error_code, partitions = read_fetch(
            frame, call.response_header_bytes, connection.where, call.version
        )
        self._heard_ms[node_id] = self._session.now_ms()
        request = self._requests[node_id].popleft()
        if not self._requests[node_id]:
            del self._requests[node_id]
        if error_code:
            self._refused(error_code, f"fetch from topic {self._core.topic!r}")
        taken = [self._take(fetched, request) for fetched in partitions]
        if not self._retry_at_ms:
            self._failures = 0
            self._session.trouble = ""
            self._send(node_id)
        return [run for run in taken if run is not None]

    def _take(self, fetched: FetchedPartition, request: FetchRequest) -> Run | None:
        subject = f"fetch of {self._core.topic}-{fetched.partition}"
        core, position = self._core, request.asked[fetched.partition].offset
        if fetched.leader is not None and core.learn(fetched.partition, fetched.leader):
            return None
        if core.outdated(fetched.partition, request):
            return None
        if fetched.error_code == OFFSET_OUT_OF_RANGE:
            raise _out_of_range(core.topic, fetched, position)
        if fetched.error_code:
            self._refused(fetched.error_code, f"{subject} at offset {position}")
            return None
        core.check(fetched)
        cursor = core.cursors[fetched.partition]
        run = core.advance(fetched)
        if len(fetched.records) and cursor.position == position and not cursor.done:
            raise too_large(core, fetched.partition, position)
        return run

    def _refused(self, error_code: int, subject: str) -> None:
        error = broker_error(error_code, subject)
        if not is_retriable(error_code):
            raise error
        self._failed(error)

    def _lost(self, node_id: int, error: PenstockError) -> None:
        self._requests.pop(node_id, None)
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()
            self._session.pool.give_back(connection)
            self._session.pool.drop_idle(*connection.address)
        self._failed(error)

    def _failed(self, error: PenstockError) -> None:
        now_ms = self._session.now_ms()
        if self._failures == 0:
            self._failed_ms = now_ms
        self._failures += 1
        self._session.trouble = str(error)
        pause = self._session.retry.pause_seconds(
            self._failures,
            elapsed_ms=now_ms - self._failed_ms,
            chance=self._session.randomness.uniform(),
        )
        if pause is None:
            note_attempts(error, self._failures)
            raise error
        self._retry_at_ms = now_ms + pause * 1000


def too_large(core: FetchCore, partition: int, position: int) -> MessageTooLarge:
    """Return the error for a position whose batch does not fit into a fetch."""
    return MessageTooLarge(
        f"fetch of {core.topic}-{partition} at offset {position}: the batch exceeds the"
        f" fetch limit of {core.partition_max_bytes} bytes, and the broker did not send it"
        " whole"
    )


def _out_of_range(topic: str, fetched: FetchedPartition, position: int) -> OffsetOutOfRange:
    known = fetched.log_start_offset >= 0 and fetched.high_watermark >= 0
    bounds = f", which has offsets {fetched.log_start_offset} to {fetched.high_watermark}"
    return OffsetOutOfRange(
        f"fetch of {topic}-{fetched.partition}: OFFSET_OUT_OF_RANGE (1): offset {position} is"
        f" outside the log{bounds if known else ''}",
        partition=fetched.partition,
        offset=position,
    )


def _send_fetch(connection: Connection, core: FetchCore, request: FetchRequest) -> None:
    version = connection.negotiated.version("Fetch", connection.where)
    if core.topic_id is None:
        version = min(version, BY_ID_FROM - 1)
    connection.send(
        make_call(
            "Fetch",
            version,
            core.body(request, version),
            correlation_id=connection.next_correlation_id(),
            client_id=connection.client_id,
        )
    )


def fetch_once(session: Session, core: FetchCore) -> FetchedPartition:
    """Send one fetch for a core that has one partition; return the response's part for it.

    The records are in memory that no later fetch overwrites.

    Raises:
        PenstockError: the broker returned an error, or the connection failed.
    """
    topic = core.topic
    ((partition, cursor),) = core.cursors.items()
    (node_id,) = session.leaders_of(topic, [partition])
    request = FetchRequest(node_id=node_id, asked={partition: Asked(cursor.position)})
    connection = session.lease(node_id)
    try:
        _send_fetch(connection, core, request)
        call, frame = connection.receive_frame(Frames())
        error_code, partitions = read_fetch(
            frame, call.response_header_bytes, connection.where, call.version
        )
    finally:
        session.pool.give_back(connection)
    found = partitions[0] if partitions else None
    code = error_code or (found.error_code if found is not None else 0)
    if code == OFFSET_OUT_OF_RANGE and found is not None:
        raise _out_of_range(topic, found, cursor.position)
    if code or found is None:
        if is_retriable(code):
            session.forget(topic)
        raise broker_error(code, f"fetch of {topic}-{partition}")
    return found


class Subscription:
    """Iterator of record batches, for one thread; it ends after an error.

    `positions` are the positions after the last returned batch, by partition. To continue there,
    pass them as `start` to `Client.subscribe`. After `LogTruncated` they are the end of the records
    that the log still has.
    """

    def __init__(self, core: FetchCore, batches: Generator[tuple[Run, Any]]) -> None:
        self._batches = batches
        self.positions = {
            partition: ReadPosition(cursor.epoch, cursor.position)
            for partition, cursor in core.cursors.items()
        }

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Any:
        """Return the next record batch.

        Raises:
            LogTruncated: a leader election discarded records that were already returned.
            OffsetOutOfRange: the log start offset is now above the next offset.
            UnreadableBatch: a stored batch cannot be read; earlier ones were returned.
            PenstockError: the broker rejected the request, or retries were exhausted.
        """
        try:
            run, batch = next(self._batches)
        except LogTruncated as error:
            self.positions[error.partition] = ReadPosition(*error.left)
            raise
        self.positions[run.partition] = run.behind
        return batch

    def close(self) -> None:
        self._batches.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
