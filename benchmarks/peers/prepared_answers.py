"""Server that answers Fetch from memory, to measure the most that a client can read.

It is the advertised address of a broker and forwards every request except Fetch to it. It reads the
records of a topic from the broker beforehand, and its Fetch responses consist of these records.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from compat.servers import PenstockProcess
from tests.ports import free_port

from benchmarks.peers.bare_client import batches, fetch_request, fetched, next_frame
from benchmarks.peers.load import Shape, create_topic, produce
from penstock.wire.kafka.apis import FETCH
from penstock.wire.kafka.fetch import (
    FLEXIBLE_FROM,
    PartitionAnswer,
    ResponseWriter,
    decode_request,
)
from penstock.wire.kafka.framing import read_request_header, response_prefix

Records = dict[int, bytes]
START_SECONDS: Final = 60
PARTITION_BYTES: Final = 4 << 20


@contextmanager
def prepared(topic: str, shape: Shape) -> Iterator[tuple[str, int]]:
    """Produce a topic; yield the address and the process id of a server with its records."""
    context = multiprocessing.get_context("spawn")
    port, filled, ready = free_port(), context.Event(), context.Event()
    with TemporaryDirectory(prefix="penstock-bench-") as directory:
        configs = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        broker = PenstockProcess(Path(directory), configs=configs).start()
        upstream = int(broker.bootstrap.rpartition(":")[2])
        arguments = (port, upstream, topic, shape.partitions, filled, ready)
        server = context.Process(target=_serve, args=arguments, daemon=True)
        server.start()
        try:
            address = f"127.0.0.1:{port}"
            create_topic(address, topic, shape.partitions)
            produce(address, broker.pid, topic, shape)
            filled.set()
            if not ready.wait(START_SECONDS) or server.pid is None:
                raise RuntimeError("the server with prepared answers has not started")
            yield address, server.pid
        finally:
            server.kill()
            server.join()
            broker.stop()


def _serve(
    port: int, upstream: int, topic: str, partitions: int, filled: Event, ready: Event
) -> None:
    records: Records = {}
    listening = socket.create_server(("127.0.0.1", port), backlog=64)

    def accept() -> None:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_relay, args=(connection, upstream, records)).start()

    threading.Thread(target=accept).start()
    filled.wait()
    with socket.create_connection(("127.0.0.1", upstream)) as broker:
        ends = dict.fromkeys(range(partitions), 0)
        while ends:
            broker.sendall(
                fetch_request(topic, ends, max_wait_ms=500, partition_bytes=PARTITION_BYTES)
            )
            for found in fetched(next_frame(broker)):
                index = found.partition
                records[index] = records.get(index, b"") + bytes(found.records)
                for _, end in batches(found.records):
                    ends[index] = end
                if 0 < found.high_watermark <= ends[index]:
                    del ends[index]
    ready.set()


def _relay(client: socket.socket, upstream: int, records: Records) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with client, socket.create_connection(("127.0.0.1", upstream)) as broker:
        while True:
            try:
                frame = next_frame(client)
                if struct.unpack_from(">h", frame)[0] == FETCH:
                    _answer(client, frame, records)
                else:
                    broker.sendall(struct.pack(">i", len(frame)) + frame)
                    answer = next_frame(broker)
                    client.sendall(struct.pack(">i", len(answer)) + answer)
            except OSError:
                return


def _answer(client: socket.socket, frame: memoryview, records: Records) -> None:
    header = read_request_header(frame)
    request = decode_request(frame, header.body_offset, header.api_version)
    size, topics = 0, []
    for key, rows in request.topics:
        answers = []
        for index, _, offset, _, _ in rows:
            data = records.get(index, b"") if offset == 0 and size < request.max_bytes else b""
            size += len(data)
            answers.append(
                PartitionAnswer(
                    index, 0, 1 << 40, 1 << 40, 0, buffers=(data,) if data else (),
                    size_bytes=len(data),
                )
            )  # fmt: skip
        topics.append((key, answers))
    if not size:
        time.sleep(request.max_wait_ms / 1000)
    writer = ResponseWriter(header.api_version)
    pieces = writer.write(topics)
    flexible = 1 if header.api_version >= FLEXIBLE_FROM else 0
    client.sendall(response_prefix(header.correlation_id, flexible, writer.size_bytes))
    for piece in pieces:
        client.sendall(piece)
