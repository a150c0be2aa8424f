"""Bare server for transactional producers and offset commits: only the writes that are needed.

It makes one write for each request of a transaction that must be durable: added partitions,
records, the commit, and the markers after the answer to the commit. The offset commits of one turn
of the event loop share one write. With `sync` each write is synced. Records and markers go to one
file, everything else to another. The server checks nothing and keeps no state.

    python -m benchmarks.peers.bare_transactions PARTITIONS sync|none
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import uvloop

from penstock.broker.handlers.api_versions import answer_body
from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import read_request_header, response_prefix

FILE_BYTES, ENTRY_BYTES = 4 << 20, 4096


class Written:
    """A file that is written again from its start when it is full, as a journal is."""

    def __init__(self, *, sync: bool) -> None:
        self._file = tempfile.TemporaryFile(prefix="penstock-bench-")  # noqa: SIM115  (until the end)
        self._file.write(bytes(FILE_BYTES))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._position = 0
        self._sync = sync

    def write(self, data: bytes | memoryview = b"") -> None:
        size = -(-max(len(data), 1) // ENTRY_BYTES) * ENTRY_BYTES
        if self._position + size > FILE_BYTES:
            self._position = 0
        os.pwritev(self._file.fileno(), [data, bytes(size - len(data))], self._position)
        self._position += size
        if self._sync:
            os.fdatasync(self._file.fileno())


class Answers:
    """The answer to each request of a transactional producer."""

    def __init__(self, partitions: int, *, sync: bool) -> None:
        self._partitions = partitions
        self._log, self._coordinator = Written(sync=sync), Written(sync=sync)
        self.port = 0
        self.of: Mapping[str, Callable[[Any, memoryview], dict[str, Any]]] = {
            "Metadata": self._metadata,
            "FindCoordinator": self._coordinators,
            "InitProducerId": lambda *_: {"producer_id": 1, "producer_epoch": 0},
            "AddPartitionsToTxn": self._add,
            "Produce": self._produce,
            "EndTxn": self._end,
            "OffsetCommit": self._commit,
        }
        self._commits: list[bytes] = []
        self._committed: list[Callable[[], None]] = []

    def _broker(self) -> dict[str, Any]:
        return {"node_id": 1, "host": "127.0.0.1", "port": self.port}

    def _metadata(self, request: Any, frame: memoryview) -> dict[str, Any]:
        rows = [
            {"partition_index": index, "leader_id": 1, "replica_nodes": (1,), "isr_nodes": (1,)}
            for index in range(self._partitions)
        ]
        return {
            "brokers": [{**self._broker(), "rack": None}],
            "cluster_id": "bare",
            "controller_id": 1,
            "topics": [{"name": topic.name, "partitions": rows} for topic in request.topics or ()],
        }

    def _coordinators(self, request: Any, frame: memoryview) -> dict[str, Any]:
        keys = getattr(request, "coordinator_keys", ())
        return {**self._broker(), "coordinators": [{"key": key, **self._broker()} for key in keys]}

    def _add(self, request: Any, frame: memoryview) -> dict[str, Any]:
        self._coordinator.write()
        topics = [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": 0}
                    for index in topic.partitions
                ],
            }
            for topic in request.v3_and_below_topics
        ]
        return {"results_by_topic_v3_and_below": topics}

    def _produce(self, request: Any, frame: memoryview) -> dict[str, Any]:
        self._log.write(frame)
        topics = [
            {
                "name": topic.name,
                "partition_responses": [
                    {"index": row.index, "base_offset": 0, "record_errors": ()}
                    for row in topic.partition_data
                ],
            }
            for topic in request.topic_data
        ]
        return {"responses": topics}

    def _end(self, request: Any, frame: memoryview) -> dict[str, Any]:
        self._coordinator.write()
        asyncio.get_running_loop().call_soon(self._log.write)
        return {}

    def _commit(self, request: Any, frame: memoryview) -> dict[str, Any]:
        self._commits.append(bytes(frame))
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": row.partition_index, "error_code": 0}
                    for row in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        return {"topics": topics}

    def when_written(self, write: Callable[[], None]) -> None:
        """Call `write` once the commits of this turn are written; now if there is none."""
        if not self._commits:
            write()
            return
        if not self._committed:
            asyncio.get_running_loop().call_soon(self._write_commits)
        self._committed.append(write)

    def _write_commits(self) -> None:
        commits, self._commits = self._commits, []
        committed, self._committed = self._committed, []
        self._coordinator.write(b"".join(commits))
        for write in committed:
            write()


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            frame = memoryview(bytes(self._received[4:end]))
            del self._received[:end]
            answer = self._answer(frame)
            self._answers.when_written(partial(self._transport.write, answer))

    def _answer(self, frame: memoryview) -> bytes:
        header = read_request_header(frame)
        api, version = APIS[header.api_key], header.api_version
        if api.name == "ApiVersions":
            version = version if version <= api.maximum else 0
            body = answer_body(version, 0)
        else:
            request, _ = decoder(api.name, version, "request")(frame, header.body_offset)
            answer = self._answers.of[api.name](request, frame)
            body = encoder(api.name, version, "response")(answer)
        header_version = api.response_header_version(version)
        return response_prefix(header.correlation_id, header_version, len(body)) + body


async def main() -> None:
    """Serve until the process is ended."""
    answers = Answers(int(sys.argv[1]), sync=sys.argv[2] == "sync")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answers), "127.0.0.1", 0)
    answers.port = server.sockets[0].getsockname()[1]
    print(f"ready {answers.port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
