"""gRPC over a Unix socket: the same payloads as messages with a bytes field.

    python -m benchmarks.peers.grpc_stream sync|aio PATH

The server takes a stream of messages and answers with their number, or takes one and answers with
one. Two servers are tried, one with threads and one on an event loop; the better one counts.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc  # type: ignore[import-untyped]
from google.protobuf.wrappers_pb2 import BytesValue, UInt64Value

SERVICE = "penstock.bench.Ingest"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Producer:
    """A client that streams payloads, or sends one and waits."""

    def __init__(self, path: str) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}", options=UNLIMITED)
        self._stream = self._channel.stream_unary(
            f"/{SERVICE}/Stream",
            request_serializer=BytesValue.SerializeToString,
            response_deserializer=UInt64Value.FromString,
        )
        self._unary = self._channel.unary_unary(
            f"/{SERVICE}/One",
            request_serializer=BytesValue.SerializeToString,
            response_deserializer=UInt64Value.FromString,
        )

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def stream(self, payload: bytes, count: int) -> float:
        """Megabytes a second until the server has counted them all."""
        begun = time.perf_counter()
        answer = self._stream(BytesValue(value=payload) for _ in range(count))
        elapsed = time.perf_counter() - begun
        if answer.value != count:
            raise RuntimeError(f"{answer.value} of {count} messages arrived")
        return len(payload) * count / elapsed / 1e6

    def send(self, payload: bytes) -> None:
        """One there, one back."""
        self._unary(BytesValue(value=payload))


def _counted(requests: Iterator[BytesValue], context: object) -> UInt64Value:
    return UInt64Value(value=sum(1 for _ in requests))


def _one(request: BytesValue, context: object) -> UInt64Value:
    return UInt64Value(value=1)


async def _counted_aio(requests: AsyncIterator[BytesValue], context: object) -> UInt64Value:
    count = 0
    async for _ in requests:
        count += 1
    return UInt64Value(value=count)


async def _one_aio(request: BytesValue, context: object) -> UInt64Value:
    return UInt64Value(value=1)


def _handler(stream: object, one: object) -> grpc.GenericRpcHandler:
    codecs = {
        "request_deserializer": BytesValue.FromString,
        "response_serializer": UInt64Value.SerializeToString,
    }
    methods = {
        "Stream": grpc.stream_unary_rpc_method_handler(stream, **codecs),
        "One": grpc.unary_unary_rpc_method_handler(one, **codecs),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _serve(path: str) -> None:
    server = grpc.server(ThreadPoolExecutor(4), options=UNLIMITED)
    server.add_generic_rpc_handlers((_handler(_counted, _one),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


async def _serve_aio(path: str) -> None:
    server = grpc.aio.server(options=UNLIMITED)
    server.add_generic_rpc_handlers((_handler(_counted_aio, _one_aio),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    if sys.argv[1] == "aio":
        asyncio.run(_serve_aio(sys.argv[2]))
    else:
        _serve(sys.argv[2])
