"""gRPC over a Unix socket: payloads as messages with a bytes field, chunks as a repeated one.

    python -m benchmarks.peers.grpc_stream sync|aio PATH

The server takes a stream of messages and answers with their number, or takes one and answers with
one. Two servers are tried, one with threads and one on an event loop; the better one counts.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import BytesValue, UInt64Value

SERVICE = "penstock.bench.Ingest"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def _batch_type() -> type[Any]:
    """`message Batch { repeated bytes chunks = 1; }`"""
    file = descriptor_pb2.FileDescriptorProto(
        name="penstock_bench.proto", package="penstock.bench", syntax="proto3"
    )
    field = file.message_type.add(name="Batch").field.add(name="chunks", number=1)
    field.type = field.TYPE_BYTES
    field.label = field.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("penstock.bench.Batch"))


Batch = _batch_type()


class Producer:
    """A client that streams payloads or batches of chunks, or sends one payload and waits."""

    def __init__(self, path: str) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}", options=UNLIMITED)
        stream, unary = self._channel.stream_unary, self._channel.unary_unary
        self._payloads = stream(f"/{SERVICE}/Payloads", **_codecs(BytesValue))
        self._batches = stream(f"/{SERVICE}/Batches", **_codecs(Batch))
        self._unary = unary(f"/{SERVICE}/One", **_codecs(BytesValue))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def payloads(self, payload: bytes, count: int) -> float:
        """Megabytes a second until the server has counted all messages with one field each."""
        messages = (BytesValue(value=payload) for _ in range(count))
        return self._streamed(self._payloads, messages, count, len(payload))

    def batches(self, chunks: Sequence[bytes], count: int) -> float:
        """The same with messages of many chunks."""
        messages = (Batch(chunks=chunks) for _ in range(count))
        return self._streamed(self._batches, messages, count, sum(map(len, chunks)))

    @staticmethod
    def _streamed(call: Any, messages: Iterator[Message], count: int, size: int) -> float:
        begun = time.perf_counter()
        answer = call(messages)
        elapsed = time.perf_counter() - begun
        if answer.value != count:
            raise RuntimeError(f"{answer.value} of {count} messages arrived")
        return size * count / elapsed / 1e6

    def send(self, payload: bytes) -> None:
        """One there, one back."""
        self._unary(BytesValue(value=payload))


def _codecs(kind: type[Any]) -> dict[str, Callable[..., Any]]:
    """What a client needs to know of a call."""
    return {
        "request_serializer": kind.SerializeToString,
        "response_deserializer": UInt64Value.FromString,
    }


def _counted(requests: Iterator[Message], context: object) -> UInt64Value:
    return UInt64Value(value=sum(1 for _ in requests))


def _one(request: Message, context: object) -> UInt64Value:
    return UInt64Value(value=1)


async def _counted_aio(requests: AsyncIterator[Message], context: object) -> UInt64Value:
    count = 0
    async for _ in requests:
        count += 1
    return UInt64Value(value=count)


async def _one_aio(request: Message, context: object) -> UInt64Value:
    return UInt64Value(value=1)


def _handler(stream: object, one: object) -> grpc.GenericRpcHandler:
    def codecs(kind: type[Any]) -> dict[str, Callable[..., Any]]:
        return {
            "request_deserializer": kind.FromString,
            "response_serializer": UInt64Value.SerializeToString,
        }

    methods = {
        "Payloads": grpc.stream_unary_rpc_method_handler(stream, **codecs(BytesValue)),
        "Batches": grpc.stream_unary_rpc_method_handler(stream, **codecs(Batch)),
        "One": grpc.unary_unary_rpc_method_handler(one, **codecs(BytesValue)),
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
