"""Processor time of requests of fetch sessions whose partitions have no new records."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers.bare_client import next_frame
from penstock.wire.kafka.apis import FETCH
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import request_frame

VERSION = 12
HEADER_BYTES = 5
WARM_UP = 200
"""Requests before the measured ones; the first ones find out that all partitions are idle."""


def microseconds(port: int, pid: int, topic: str, partitions: int, *, count: int) -> float:
    """Return the event loop's CPU microseconds for a request of a session of idle partitions."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened = _call(connection, _request(topic, range(partitions), 0, 0))
        requests = [
            _request(topic, (), opened.session_id, epoch) for epoch in range(1, WARM_UP + count + 1)
        ]
        for request in requests[:WARM_UP]:
            _call(connection, request)
        before = _running_nanoseconds(pid)
        for request in requests[WARM_UP:]:
            connection.sendall(request)
            next_frame(connection)
        return (_running_nanoseconds(pid) - before) / count / 1000


def _running_nanoseconds(pid: int) -> int:
    """Return the time that the main thread of a process, its event loop, has run."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def _request(topic: str, partitions: Iterable[int], session_id: int, epoch: int) -> bytes:
    rows = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        for index in partitions
    ]
    body = {
        "max_wait": 0,
        "min_bytes": 1,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": [{"topic": topic, "partitions": rows}] if rows else [],
        "forgotten_topics_data": [],
    }
    return request_frame(FETCH, VERSION, 1, b"bench", encoder("Fetch", VERSION, "request")(body))


def _call(connection: socket.socket, request: bytes) -> Any:
    connection.sendall(request)
    answer, _ = decoder("Fetch", VERSION, "response")(next_frame(connection), HEADER_BYTES)
    if answer.error_code or any(
        row.error_code for entry in answer.responses for row in entry.partitions
    ):
        raise RuntimeError(f"fetch failed: {answer}")
    return answer
