"""Peer that speaks enough Kafka to pass as a broker, and then answers Produce badly."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any

from penstock.wire.kafka.apis import APIS, PRODUCE
from penstock.wire.kafka.encoder import encoder

_HEAD = struct.Struct(">hhi")


class HalfBroker:
    """Node 1 of a cluster of one, with one topic; a thread per connection.

    `produce_answer` is the response to each Produce request; None sends nothing and
    keeps the connection, no bytes close it.
    """

    def __init__(
        self,
        topic: str,
        *,
        partitions: int,
        produce_answer: bytes | None,
        leader: int = 1,
        produce_version: int = 9,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._produce_answer = produce_answer
        self._leader = leader
        self._produce_version = produce_version
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> HalfBroker:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for item in list(self._open):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)

    def _run(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.add(connection)
                self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while head := connection.recv(4, socket.MSG_WAITALL):
                length = struct.unpack(">i", head)[0]
                frame = connection.recv(length, socket.MSG_WAITALL)
                key, version, correlation_id = _HEAD.unpack_from(frame)
                if key != PRODUCE:
                    connection.sendall(self._answer(key, version, correlation_id))
                elif self._produce_answer == b"":
                    return
                elif self._produce_answer is not None:
                    connection.sendall(self._produce_answer)
        self._open.discard(connection)

    def _answer(self, key: int, version: int, correlation_id: int) -> bytes:
        api = APIS[key]
        body = encoder(api.name, version, "response")(getattr(self, f"_{api.name.lower()}")())
        tags = b"\0" * api.response_header_version(version)
        answer = struct.pack(">i", correlation_id) + tags + body
        return struct.pack(">i", len(answer)) + answer

    def _apiversions(self) -> dict[str, Any]:
        keys = [
            {
                "api_key": api.key,
                "min_version": api.minimum,
                "max_version": self._produce_version if api.key == PRODUCE else api.maximum,
            }
            for api in APIS.values()
        ]
        return {"error_code": 0, "api_keys": keys, "throttle_time": 0}

    def _metadata(self) -> dict[str, Any]:
        host, _, port = self.address.rpartition(":")
        partitions = [
            {
                "error_code": 0,
                "partition_index": index,
                "leader_id": self._leader,
                "leader_epoch": 0,
                "replica_nodes": [1],
                "isr_nodes": [1],
                "offline_replicas": [],
            }
            for index in range(self._partitions)
        ]
        topic = {"error_code": 0, "name": self._topic, "is_internal": False}
        return {
            "throttle_time": 0,
            "brokers": [{"node_id": 1, "host": host, "port": int(port), "rack": None}],
            "cluster_id": "half",
            "controller_id": 1,
            "topics": [topic | {"partitions": partitions}],
        }
