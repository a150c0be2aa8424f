"""Plain-socket clients of logs: requests built once and sent again and again, answers counted.

A client library would be the limit of most servers here. These clients write prepared bytes and
count answers in what they receive, so that a run measures the server. Values contain no line
ends, because two protocols are counted by lines.

- Kafka: Produce of version 7 and Fetch of version 11; a request has one batch.
- Redis: RESP; a request is a pipeline of XADD commands, answered by one id each.
- NATS: the text protocol; a request is a sequence of PUB, each answered by one message.
- RabbitMQ: the stream protocol; a request is one Publish frame, answered by PublishConfirm frames.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from benchmarks.peers.bare_client import (
    BatchTemplate,
    batches,
    exactly,
    fetch_request,
    fetched,
    next_frame,
    produced,
    received,
    text,
)
from benchmarks.peers.load import create_topic, delete_topic

TIMEOUT_SECONDS: Final = 60
FETCH_BYTES: Final = 1 << 20
XREAD_ENTRIES: Final = 5_000
PULLED_MESSAGES: Final = 5_000
CREDIT_CHUNKS: Final = 10
WINDOW: Final = 8
"""Requests of a connection that are sent before the first of them is answered."""
VALUE: Final = b"x"

Answers = Callable[[bytes], int]
"""Takes received bytes and returns how many requests they complete."""


class LogClient(ABC):
    """Client of one kind of server."""

    def __init__(self, port: int) -> None:
        self.port = port

    @abstractmethod
    def create(self, topic: str) -> None:
        """Create a topic with one partition."""

    @abstractmethod
    def delete(self, topic: str) -> None:
        """Delete a topic."""

    @abstractmethod
    def request(self, topic: str, records: int, value_bytes: int, number: int = 0) -> bytes:
        """Return a request that appends equal records, for the connection of a number."""

    @abstractmethod
    def answers(self, records: int) -> Answers:
        """Return the counter of one connection's answers to requests with so many records."""

    @abstractmethod
    def consume(self, topic: str, records: int, value_bytes: int) -> None:
        """Read so many records from the start of a topic."""

    def open(self, topic: str, number: int = 0) -> socket.socket:
        """Return a connection that is ready to append to a topic.

        Args:
            number: distinguishes the connections that are open at the same time.
        """
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def in_flight(client: LogClient, topic: str, request: bytes, records: int, count: int) -> None:
    """Send a request `count` times over one connection, `WINDOW` of them ahead of the answers."""
    with client.open(topic) as connection:
        answers = client.answers(records)
        sent = min(WINDOW, count)
        connection.sendall(request * sent)
        answered = 0
        while answered < count:
            answered += answers(received(connection))
            more = min(count - sent, answered + WINDOW - sent)
            if more > 0:
                connection.sendall(request * more)
                sent += more


def one_by_one(client: LogClient, topic: str, request: bytes, count: int) -> list[float]:
    """Send a request of one record `count` times, each after the last answer; return seconds."""
    durations = []
    with client.open(topic) as connection:
        answers = client.answers(1)
        for _ in range(count):
            begun = time.perf_counter()
            connection.sendall(request)
            while not answers(received(connection)):
                pass
            durations.append(time.perf_counter() - begun)
    return durations


class Loop(NamedTuple):
    """Seconds of a run, and of each request that was answered in it, in the order of answers."""

    seconds: float
    durations: Sequence[float]


class Link(NamedTuple):
    """Connection, the requests that it sends in turn, and the counter of its answers."""

    connection: socket.socket
    requests: Iterator[bytes]
    answers: Answers


def closed_loop(links: Sequence[Link], seconds: float) -> Loop:
    """Keep one request in flight on each connection for a time, then wait for the last answers."""
    sent: dict[int, float] = {}
    by_descriptor = {link.connection.fileno(): link for link in links}
    durations: list[float] = []
    with select.epoll() as poll:
        begun = time.perf_counter()
        for descriptor, link in by_descriptor.items():
            poll.register(descriptor, select.EPOLLIN)
            sent[descriptor] = time.perf_counter()
            link.connection.sendall(next(link.requests))
        end, now = begun + seconds, begun
        while now < end:
            ready = poll.poll(TIMEOUT_SECONDS)
            if not ready:
                raise TimeoutError(f"no server answered in {TIMEOUT_SECONDS} s")
            for descriptor, _ in ready:
                connection, requests, answers = by_descriptor[descriptor]
                if answers(received(connection)):
                    now = time.perf_counter()
                    durations.append(now - sent[descriptor])
                    sent[descriptor] = now
                    connection.sendall(next(requests))
    for link in links:
        while not link.answers(received(link.connection)):
            pass
    return Loop(now - begun, durations)


def at_once(
    client: LogClient, topic: str, value_bytes: int, connections: int, seconds: float
) -> Loop:
    """Keep one request of one record in flight on each of several connections."""
    with ExitStack() as stack:
        links = []
        for number in range(connections):
            connection = stack.enter_context(client.open(topic, number))
            request = client.request(topic, 1, value_bytes, number)
            links.append(Link(connection, itertools.repeat(request), client.answers(1)))
        return closed_loop(links, seconds)


def framed(check: Callable[[memoryview], object]) -> Answers:
    """Return a counter of frames with a length of four bytes, each of which is checked."""
    pending = bytearray()

    def count(data: bytes) -> int:
        if not pending and len(data) == 4 + int.from_bytes(data[:4], "big"):
            check(memoryview(data)[4:])
            return 1
        pending.extend(data)
        done = at = 0
        while len(pending) - at >= 4:
            size = int.from_bytes(pending[at : at + 4], "big")
            if len(pending) - at < 4 + size:
                break
            check(memoryview(bytes(pending[at + 4 : at + 4 + size])))
            at += 4 + size
            done += 1
        del pending[:at]
        return done

    return count


class KafkaClient(LogClient):
    """Client of Penstock and of Apache Kafka."""

    def create(self, topic: str) -> None:
        create_topic(f"127.0.0.1:{self.port}", topic, 1)

    def delete(self, topic: str) -> None:
        delete_topic(f"127.0.0.1:{self.port}", topic)

    def request(self, topic: str, records: int, value_bytes: int, number: int = 0) -> bytes:
        return BatchTemplate(records, value_bytes).request(topic, 0)

    def answers(self, records: int) -> Answers:
        return framed(produced)

    def consume(self, topic: str, records: int, value_bytes: int) -> None:
        position = 0
        with self.open(topic) as connection:
            while position < records:
                connection.sendall(
                    fetch_request(
                        topic, {0: position}, max_wait_ms=500, partition_bytes=FETCH_BYTES
                    )
                )
                for part in fetched(next_frame(connection)):
                    if part.error:
                        raise RuntimeError(f"fetch failed with error code {part.error}")
                    for _, end in batches(part.records):
                        position = max(position, end)


class EchoClient(KafkaClient):
    """Client of `EchoServer`, whose answers all have the same size and no content."""

    ANSWER_BYTES = 80

    def create(self, topic: str) -> None:
        """Do nothing: the server has no topics."""

    def delete(self, topic: str) -> None:
        """Do nothing: the server has no topics."""

    def request(self, topic: str, records: int, value_bytes: int, number: int = 0) -> bytes:
        """Return a request whose size does not depend on the topic."""
        return super().request("load-0-single", records, value_bytes)

    def answers(self, records: int) -> Answers:
        size = 0

        def count(data: bytes) -> int:
            nonlocal size
            before = size // self.ANSWER_BYTES
            size += len(data)
            return size // self.ANSWER_BYTES - before

        return count


class RedisClient(LogClient):
    """Client of Redis Streams; a topic is a key."""

    def create(self, topic: str) -> None:
        self.delete(topic)

    def delete(self, topic: str) -> None:
        with self.open(topic) as connection:
            connection.sendall(_resp("UNLINK", topic))
            received(connection)

    def request(self, topic: str, records: int, value_bytes: int, number: int = 0) -> bytes:
        return _resp("XADD", topic, "*", "v", VALUE * value_bytes) * records

    def answers(self, records: int) -> Answers:
        return _lines(2 * records)

    def consume(self, topic: str, records: int, value_bytes: int) -> None:
        tail = len(f"\r\n*2\r\n$1\r\nv\r\n${value_bytes}\r\n\r\n") + value_bytes
        last, done = b"0", 0
        with self.open(topic) as connection:
            while done < records:
                connection.sendall(
                    _resp("XREAD", "COUNT", str(XREAD_ENTRIES), "STREAMS", topic, last)
                )
                answer = bytearray()
                entries, newlines = -1, 0
                while entries < 0 or newlines < 5 + 8 * entries:
                    data = received(connection)
                    answer += data
                    newlines += data.count(b"\n")
                    if entries < 0 and newlines >= 5:
                        entries = int(answer.split(b"\r\n", 5)[4][1:])
                end = len(answer) - tail
                last = bytes(answer[answer.rindex(b"\n", 0, end) + 1 : end])
                done += entries


class NatsClient(LogClient):
    """Client of NATS JetStream; a topic is a stream in files with one subject."""

    def open(self, topic: str, number: int = 0) -> socket.socket:
        """Return a connection that receives the messages of its inbox."""
        connection = super().open(topic)
        connection.sendall(
            f'CONNECT {{"verbose":false}}\r\nSUB inbox.{number} 1\r\nPING\r\n'.encode()
        )
        greeting = b""
        while not greeting.endswith(b"PONG\r\n"):
            greeting += received(connection)
        return connection

    def create(self, topic: str) -> None:
        stream = {"name": topic, "subjects": [topic], "storage": "file", "retention": "limits"}
        self._ask(f"STREAM.CREATE.{topic}", stream)

    def delete(self, topic: str) -> None:
        self._ask(f"STREAM.DELETE.{topic}", {})

    def request(self, topic: str, records: int, value_bytes: int, number: int = 0) -> bytes:
        return _pub(topic, f"inbox.{number}", VALUE * value_bytes) * records

    def answers(self, records: int) -> Answers:
        return _lines(2 * records)

    def consume(self, topic: str, records: int, value_bytes: int) -> None:
        consumer = {"name": "c", "ack_policy": "none", "deliver_policy": "all"}
        body = {"stream_name": topic, "config": {**consumer, "durable_name": "c"}}
        self._ask(f"CONSUMER.DURABLE.CREATE.{topic}.c", body)
        pull = json.dumps({"batch": PULLED_MESSAGES}).encode()
        request = _pub(f"$JS.API.CONSUMER.MSG.NEXT.{topic}.c", "inbox.0", pull)
        with self.open(topic) as connection:
            lines = 0
            for start in range(0, records, PULLED_MESSAGES):
                connection.sendall(request)
                wanted = 2 * min(records, start + PULLED_MESSAGES)
                while lines < wanted:
                    lines += received(connection).count(b"\n")

    def _ask(self, subject: str, body: object) -> None:
        with self.open("") as connection:
            connection.sendall(_pub(f"$JS.API.{subject}", "inbox.0", json.dumps(body).encode()))
            answer = b""
            while answer.count(b"\n") < 2:
                answer += received(connection)
        if b'"error"' in answer:
            raise RuntimeError(f"NATS rejects {subject}: {answer.decode()}")


class RabbitClient(LogClient):
    """Client of RabbitMQ streams."""

    PUBLISHER, PUBLISH, CONFIRM, PUBLISH_ERROR, SUBSCRIBE, DELIVER, CREDIT = 1, 2, 3, 4, 7, 8, 9
    CREATE, DELETE, PROPERTIES, SASL, AUTHENTICATE, TUNE, OPEN = 13, 14, 17, 18, 19, 20, 21
    OK = 1

    def open(self, topic: str, number: int = 0) -> socket.socket:
        """Return a connection that is authenticated and has a publisher for the topic."""
        connection = super().open(topic)
        self._ask(connection, self.PROPERTIES, struct.pack(">i", 0))
        self._ask(connection, self.SASL)
        secret = b"\0guest\0guest"
        secret = struct.pack(">i", len(secret)) + secret
        self._ask(connection, self.AUTHENTICATE, text("PLAIN") + secret)
        key, body = self._frame(connection)
        if key != self.TUNE:
            raise RuntimeError(f"RabbitMQ sent frame {key} instead of {self.TUNE}")
        connection.sendall(_frame(self.TUNE, bytes(body[:4]) + struct.pack(">I", 0)))
        self._ask(connection, self.OPEN, text("/"))
        if topic:
            self._ask(connection, self.PUBLISHER, b"\0" + text("") + text(topic))
        return connection

    def create(self, topic: str) -> None:
        with self.open("") as connection:
            self._ask(connection, self.CREATE, text(topic) + struct.pack(">i", 0))

    def delete(self, topic: str) -> None:
        with self.open("") as connection:
            self._ask(connection, self.DELETE, text(topic))

    def request(self, topic: str, records: int, value_bytes: int, number: int = 0) -> bytes:
        message = struct.pack(">qi", 0, value_bytes) + VALUE * value_bytes
        return _frame(self.PUBLISH, struct.pack(">bi", 0, records) + message * records)

    def answers(self, records: int) -> Answers:
        confirmed = 0

        def confirm(frame: memoryview) -> None:
            nonlocal confirmed
            key, confirms = struct.unpack_from(">H3xi", frame)
            if key != self.CONFIRM:
                raise RuntimeError(f"RabbitMQ sent frame {key} instead of {self.CONFIRM}")
            confirmed += confirms

        frames = framed(confirm)

        def count(data: bytes) -> int:
            before = confirmed // records
            frames(data)
            return confirmed // records - before

        return count

    def consume(self, topic: str, records: int, value_bytes: int) -> None:
        with self.open("") as connection:
            first, credit = struct.pack(">H", 1), struct.pack(">H", CREDIT_CHUNKS)
            body = b"\0" + text(topic) + first + credit + struct.pack(">i", 0)
            self._ask(connection, self.SUBSCRIBE, body)
            more = _frame(self.CREDIT, b"\0" + struct.pack(">H", 1))
            done = 0
            while done < records:
                key, chunk = self._frame(connection)
                if key == self.DELIVER:
                    done += struct.unpack_from(">I", chunk, 5)[0]
                    connection.sendall(more)

    def _ask(self, connection: socket.socket, key: int, body: bytes = b"") -> None:
        connection.sendall(_frame(key, struct.pack(">I", 1) + body))
        while True:
            answered, answer = self._frame(connection)
            if answered == key | 0x8000:
                break
        _, code = struct.unpack_from(">IH", answer)
        if code != self.OK:
            raise RuntimeError(f"RabbitMQ answers request {key} with code {code}")

    def _frame(self, connection: socket.socket) -> tuple[int, bytearray]:
        size, key, _ = struct.unpack(">IHH", exactly(connection, 8))
        return key, exactly(connection, size - 4)


def _resp(*words: str | bytes) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word if isinstance(word, bytes) else word.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _pub(subject: str, reply: str, payload: bytes) -> bytes:
    return f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"


def _frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, 1) + body


def _lines(each: int) -> Answers:
    """Return a counter of answers of so many lines each; lines with PING or an error do not count.

    A PING that arrives in two pieces counts as a line, which delays no answer.
    """
    lines, last = 0, b"\n"

    def count(data: bytes) -> int:
        nonlocal lines, last
        before = lines // each
        lines += data.count(b"\n") - data.count(b"PING\r\n")
        if b"\n-" in last + data[:1] or b"\n-" in data or b'"error"' in data:
            raise RuntimeError(f"the server rejects a record: {data[:200]!r}")
        last = data[-1:]
        return lines // each - before

    return count
