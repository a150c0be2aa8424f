"""Queue over topics: a member of a share group, used by one thread.

    with client.queue("billing", ["orders"]) as queue:
        taken = queue.take()
        good = check(taken.table)
        taken.ack(good)
        taken.reject(~good)

The queue is the shell around `share_member.py`, which builds requests and converts records to
columns. It has no thread of its own. The member sends heartbeats only during `take`. After an
absence longer than `share.session.timeout.ms` it joins again, while its records stay acquired until
their locks expire.

Each leader has its own connection, because a broker releases a member's records when its connection
breaks. With several leaders the member first fetches from one leader after the other, as long as
they return records, and otherwise from all at once. So it never acquires more records than
requested, and keeps none for a later call.

After a leader change the new leader accepts acknowledgements of records that the member has
acquired.

Source: KIP-932, KIP-1206, KIP-1222.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.settings import INT_MAX
from penstock.client import errors
from penstock.client.arguments import whole
from penstock.client.connection import Connection
from penstock.client.errors import (
    BrokersUnreachable,
    Disconnected,
    InvalidArgument,
    broker_error,
    code_name,
)
from penstock.client.errors import is_retriable as retriable
from penstock.client.protocol import TopicAndPartition, make_call
from penstock.client.session import Session
from penstock.client.share_member import (
    SESSION_ERRORS,
    AckRange,
    Acquired,
    Kind,
    Piece,
    ShareMember,
    Taken,
    piece_of,
)

TAKE_RECORDS: Final = 500
"""Default maximum number of records that one `take` acquires, as in Kafka."""
TAKE_RECORDS_MAX: Final = 100_000
TAKE_WAIT_MS: Final = 1_000
"""Default time in milliseconds that `take` waits for the first record."""
TAKE_ROUND_MS: Final = 200
"""Maximum time in milliseconds that each of several brokers may wait for records.

A round ends only when all brokers have responded.
"""

_STALE: Final = frozenset({"fenced_leader_epoch"})
"""Errors of partitions that a metadata refresh resolves, besides Kafka's retriable errors."""


class Queue:
    """Member of a share group; created by `Client.queue`."""

    def __init__(self, session: Session, group: str, topics: Sequence[str]) -> None:
        self._session = session
        self._member = ShareMember(group, str(session.randomness.uuid()), topics)
        self._connections: dict[int, Connection] = {}
        self._lock_ms = 0
        self._stale = True
        self._closed = False
        self._failures = 0
        self._failed_ms = 0.0

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def partitions(self) -> frozenset[TopicAndPartition]:
        """Partitions that are assigned to this member: topic and partition number."""
        return frozenset(self._member.assigned)

    def take(
        self,
        *,
        max_records: int = TAKE_RECORDS,
        wait_ms: int = TAKE_WAIT_MS,
        max_bytes: int = errors.FETCH_BYTES,
    ) -> Taken:
        """Acquire up to `max_records` records; return without records if none arrive in `wait_ms`.

        While brokers are unavailable, it returns no records. It raises only if no broker has
        responded for the client's delivery timeout.

        Raises:
            InvalidArgument: an argument is invalid; nothing is sent.
            PenstockError: the group or a topic rejected the request.
        """
        self._check_open()
        whole("max_records", max_records, 1, TAKE_RECORDS_MAX)
        whole("wait_ms", wait_ms, 0, INT_MAX)
        whole("max_bytes", max_bytes, 1, errors.RESPONSE_BYTES_MAX)
        end_ms = self._session.now_ms() + wait_ms
        waits = 0.0
        while True:
            pieces: list[Piece] = []
            try:
                self._keep_up()
                self._round(pieces, max_records, max_bytes, waits)
                self._failures = 0
            except (RetriableError, BrokersUnreachable) as error:
                if not pieces:
                    self._pause(error, end_ms)
            left_ms = end_ms - self._session.now_ms()
            if pieces or left_ms <= 0:
                pieces.sort(key=lambda piece: piece.partition)
                return Taken(pieces, self._acknowledge, lock_ms=self._lock_ms)
            if not self._member.assigned:
                due_ms = max(1.0, self._member.due_in_ms(self._session.now_ms()))
                self._session.pause(min(left_ms, due_ms) / 1000)
            waits = max(0.0, min(left_ms, self._wait_ms()))

    def close(self) -> None:
        """Leave the group, and release unacknowledged records to other members; idempotent."""
        if self._closed:
            return
        self._closed = True
        member = self._member
        for node in member.sessions():
            with suppress(PenstockError):
                self._call(node, "ShareAcknowledge", member.acknowledge(
                    node, {}, renews=False, last=True
                ))  # fmt: skip
        if member.epoch:
            with suppress(PenstockError):
                self._session.call_coordinator(
                    member.group, "ShareGroupHeartbeat", member.heartbeat(leave=True)
                )
        for connection in self._connections.values():
            self._session.pool.give_back(connection)
        self._connections.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument(f"the queue of group {self._member.group!r} is closed")

    # The group, and its leaders

    def _wait_ms(self) -> float:
        """Return for how many milliseconds brokers may wait for records before they respond.

        It is the time until the next heartbeat is due. With several leaders it is at most
        `TAKE_ROUND_MS`.
        """
        due_ms = self._member.due_in_ms(self._session.now_ms())
        several = len(self._member.nodes()) > 1
        return min(due_ms, TAKE_ROUND_MS) if several else due_ms

    def _keep_up(self) -> None:
        member, session = self._member, self._session
        if member.due_in_ms(session.now_ms()) <= 0:
            answer = session.call_coordinator(
                member.group, "ShareGroupHeartbeat", member.heartbeat()
            )
            try:
                self._stale |= member.heartbeat_answered(answer, session.now_ms())
            except RetriableError:
                session.forget_coordinator(member.group)
                raise
        if self._stale or member.leaderless:
            self._learn()

    def _learn(self) -> None:
        session = self._session
        self._member.learn([session.fetch_topic(name) for name in self._member.topics])
        self._stale = False

    def _pause(self, error: PenstockError, end_ms: float) -> None:
        """Pause before the next attempt.

        Raises:
            PenstockError: no broker has responded for the delivery timeout.
        """
        now_ms, session = self._session.now_ms(), self._session
        if not self._failures:
            self._failed_ms = now_ms
        self._failures += 1
        self._stale = True
        session.trouble = str(error)
        seconds = session.retry.pause_seconds(
            self._failures, chance=session.randomness.uniform(), elapsed_ms=now_ms - self._failed_ms
        )
        if seconds is None:
            raise error
        session.pause(max(0.0, min(seconds, (end_ms - now_ms) / 1000)))

    # Fetching

    def _round(self, pieces: list[Piece], max_records: int, max_bytes: int, wait_ms: float) -> None:
        nodes, trouble = self._member.nodes(), None
        asked: list[int] = []
        share = max_records if wait_ms <= 0 else max(1, max_records // max(1, len(nodes)))
        for node in nodes:
            left = min(share, max_records - sum(piece.batch.num_rows for piece in pieces))
            if left <= 0:
                break
            body = self._member.fetch(
                node, max_records=left, max_wait_ms=int(wait_ms), max_bytes=max_bytes
            )
            try:
                self._send(node, "ShareFetch", body)
                if wait_ms > 0:
                    asked.append(node)
                else:
                    self._fetched(node, pieces)
            except (RetriableError, BrokersUnreachable) as error:
                trouble = self._lost(node, error)
        for node in asked:
            try:
                self._fetched(node, pieces)
            except (RetriableError, BrokersUnreachable) as error:
                trouble = self._lost(node, error)
        if trouble is not None:
            raise trouble

    def _fetched(self, node: int, pieces: list[Piece]) -> None:
        answer = self._received(node, "ShareFetch")
        stale: PenstockError | None = None
        for topic in answer.responses:
            for partition in topic.partitions:
                key = (self._member.name(topic.topic_id), int(partition.partition_index))
                code = int(partition.error_code)
                if code:
                    error = broker_error(
                        code, f"queue of {key[0]}-{key[1]}", partition.error_message
                    )
                    if not _resolved_by_refresh(code):
                        raise error
                    stale = error
                elif partition.acquired_records:
                    acquired = [
                        Acquired(
                            int(got.first_offset), int(got.last_offset), int(got.delivery_count)
                        )
                        for got in partition.acquired_records
                    ]
                    pieces.append(piece_of(key, partition.records, acquired))
        if stale is not None:
            self._stale = True
            if not pieces:
                raise stale if isinstance(stale, RetriableError) else _again(stale)

    # Acknowledging

    def _acknowledge(
        self, ranges: Mapping[TopicAndPartition, Sequence[AckRange]]
    ) -> Mapping[TopicAndPartition, str]:
        """Send acknowledgements to the leaders, also after leader changes; return rejection
        reasons.
        """
        self._check_open()
        left, refused = dict(ranges), dict[TopicAndPartition, str]()
        renews = any(ack.kind == Kind.RENEW for acks in ranges.values() for ack in acks)

        def once() -> None:
            if self._stale:
                self._learn()
            by_node: dict[int, dict[TopicAndPartition, Sequence[AckRange]]] = {}
            for key, acks in left.items():
                by_node.setdefault(self._member.leader(key), {})[key] = acks
            trouble: PenstockError | None = None
            for node, sent in by_node.items():
                try:
                    self._acknowledge_at(node, sent, left, refused, renews=renews)
                except RetriableError as error:
                    trouble = self._lost(node, error)
            if trouble is not None:
                self._stale = True
                raise trouble

        self._session.retrying(once)
        return refused

    def _acknowledge_at(
        self,
        node: int,
        sent: Mapping[TopicAndPartition, Sequence[AckRange]],
        left: dict[TopicAndPartition, Sequence[AckRange]],
        refused: dict[TopicAndPartition, str],
        *,
        renews: bool,
    ) -> None:
        """Send acknowledgements to one broker; remove the partitions with results from `left`."""
        member = self._member
        if node < 0:
            raise broker_error(5, "partitions " + ", ".join(f"{name}-{at}" for name, at in sent))
        if not member.opened(node):
            opening = member.fetch(node, max_records=0, max_wait_ms=0, max_bytes=0)
            self._call(node, "ShareFetch", opening)
        answer = self._call(node, "ShareAcknowledge", member.acknowledge(node, sent, renews=renews))
        stale: PenstockError | None = None
        for topic in answer.responses:
            for partition in topic.partitions:
                key, code = (
                    (member.name(topic.topic_id), int(partition.partition_index)),
                    partition.error_code,
                )
                if code and _resolved_by_refresh(int(code)):
                    subject = f"acknowledgements of {key[0]}-{key[1]}"
                    stale = broker_error(int(code), subject, partition.error_message)
                    continue
                left.pop(key, None)
                if code:
                    refused[key] = partition.error_message or code_name(int(code))
        if stale is not None:
            self._stale = True
            raise stale if isinstance(stale, RetriableError) else _again(stale)

    # Calls

    def _call(self, node: int, name: str, body: Mapping[str, Any]) -> Any:
        self._send(node, name, body)
        return self._received(node, name)

    def _send(self, node: int, name: str, body: Mapping[str, Any]) -> None:
        connection = self._connections.get(node)
        if connection is not None and connection.under_way:
            connection.close()  # an unread response: the broker releases its records
            raise self._lost(
                node,
                Disconnected(
                    f"the response to the previous call to {connection.where} was not read"
                ),
            )
        if connection is None:
            connection = self._connections[node] = self._session.lease(node)
        version = connection.negotiated.version(name, connection.where)
        connection.send(
            make_call(
                name,
                version,
                body,
                correlation_id=connection.next_correlation_id(),
                client_id=connection.client_id,
            )
        )

    def _received(self, node: int, name: str) -> Any:
        answer = self._connections[node].receive()
        code = int(answer.error_code)
        if code:
            error = broker_error(code, f"{name} of group {self._member.group!r}",
                                 answer.error_message)  # fmt: skip
            if code_name(code) in SESSION_ERRORS:
                self._member.lost(node)
                raise error if isinstance(error, RetriableError) else _again(error)
            raise error
        self._member.answered(node)
        self._lock_ms = int(answer.acquisition_lock_timeout.total_seconds() * 1000)
        return answer

    def _lost(self, node: int, error: PenstockError) -> PenstockError:
        """Discard the connection and share session to an unreachable broker; return the error."""
        connection = self._connections.get(node)
        if connection is not None and connection.broken:
            del self._connections[node]
            self._session.pool.give_back(connection)
            self._session.pool.drop_idle(*connection.address)
            self._member.lost(node)
        elif connection is None:
            self._member.lost(node)
        self._stale = True
        return error


def _resolved_by_refresh(code: int) -> bool:
    return retriable(code) or code_name(code) in _STALE


def _again(error: PenstockError) -> RetriableError:
    again = RetriableError(str(error))
    again.code = error.code  # type: ignore[misc]  # more precise than the class
    return again


def queue_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """Return the topics of a queue, after checking them.

    Raises:
        InvalidArgument: a topic name is invalid, or there is none.
    """
    found = tuple(dict.fromkeys([topics] if isinstance(topics, str) else topics))
    if not found or not all(isinstance(name, str) and name for name in found):
        raise InvalidArgument(f"topics = {topics!r}: must name at least one topic")
    return found
