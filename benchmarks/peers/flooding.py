"""Floods before authentication: what strangers do to a listener, again and again, side by side.

Each kind is a coroutine that does it once from one source address; on loopback every address of
127.0.0.0/8 is one. Connections end by a reset, so that no port has to rest.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import uvloop
from tests.security.certificates import client_hello

from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import request_frame

HOST = "127.0.0.1"
DRIP_SECONDS = 1.0
SOURCES_MAX = 250
_RESET = struct.pack("ii", 1, 0)


class Streams(NamedTuple):
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Target:
    """Listeners of a broker, and what is sent there."""

    def __init__(self, ports: dict[str, int], truststore: str) -> None:
        self.ports = ports
        self.context = ssl.create_default_context(cafile=truststore)
        self.hello = client_hello(self.context)
        self.wrong_password = _frame("SaslHandshake", 1, {"mechanism": "PLAIN"}) + _frame(
            "SaslAuthenticate", 2, {"auth_bytes": b"\0alice\0a guess"}
        )

    @asynccontextmanager
    async def open(self, listener: str, source: str, **more: Any) -> AsyncIterator[Streams]:
        """A connection from an address."""
        address = HOST, self.ports[listener]
        streams = Streams(*await asyncio.open_connection(*address, local_addr=(source, 0), **more))
        opened = streams.writer.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        try:
            yield streams
        finally:
            streams.writer.transport.abort()


def _frame(name: str, version: int, request: dict[str, Any]) -> bytes:
    body = encoder(name, version, "request")(request)
    return request_frame(BY_NAME[name].key, version, 1, b"rude", body)


async def connect(target: Target, source: str) -> None:
    """And leave at once."""
    async with target.open("SASL_PLAINTEXT", source):
        pass


async def shake_hands(target: Target, source: str) -> None:
    """A whole handshake of TLS."""
    async with target.open("SASL_SSL", source, ssl=target.context, server_hostname="localhost"):
        pass


async def greet(target: Target, source: str) -> None:
    """Have the server sign, and leave without looking at it: the cheapest for who does it."""
    async with target.open("SASL_SSL", source) as (reader, writer):
        writer.write(target.hello)
        await reader.read(1)


async def half_a_record(target: Target, source: str) -> None:
    """The begin of a hello, and leave."""
    async with target.open("SASL_SSL", source) as (_, writer):
        writer.write(target.hello[: len(target.hello) // 2])


async def drip(target: Target, source: str) -> None:
    """A hello byte by byte, until the server has had enough."""
    async with target.open("SASL_SSL", source) as (reader, writer):
        for number in range(len(target.hello)):
            writer.write(target.hello[number : number + 1])
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), DRIP_SECONDS)
                return


async def guess(target: Target, source: str) -> None:
    """A wrong password by PLAIN, which the server has to hash."""
    async with target.open("SASL_PLAINTEXT", source) as (reader, writer):
        writer.write(target.wrong_password)
        await reader.read(-1)


async def bomb(target: Target, source: str) -> None:
    """A request that is said to have 2 GiB."""
    async with target.open("SASL_PLAINTEXT", source) as (reader, writer):
        writer.write(struct.pack(">i", 0x7FFFFFFF) + bytes(60))
        await reader.read(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """`once` by so many at once, over as many source addresses."""

    name: str
    once: Callable[[Target, str], Coroutine[Any, Any, None]]
    at_once: int = 32
    sources: int = SOURCES_MAX


FLOODS = (
    Flood(name="connections", once=connect),
    Flood(name="TLS handshakes of one address", once=shake_hands, sources=1),
    Flood(name="TLS handshakes", once=shake_hands),
    Flood(name="TLS handshakes that are left halfway", once=greet),
    Flood(name="halves of TLS records", once=half_a_record),
    Flood(name="1,000 TLS handshakes byte by byte", once=drip, at_once=1_000),
    Flood(name="wrong passwords by PLAIN", once=guess, at_once=64),
    Flood(name="requests of 2 GiB", once=bomb),
)


def flood(number: int, ports: dict[str, int], truststore: str, net: int, seconds: float) -> int:
    """Flood a broker for so long, from the addresses of a net of 127/8; how often it was done."""
    return uvloop.run(_flood(FLOODS[number], Target(ports, truststore), net, seconds))


async def _flood(kind: Flood, target: Target, net: int, seconds: float) -> int:
    done = 0
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # TLS says what it thinks of resets

    async def work(place: int) -> None:
        nonlocal done
        for number in itertools.count(place, kind.at_once):
            source = f"127.{1 + net // 256}.{net % 256}.{1 + number % kind.sources}"
            with suppress(OSError):  # it is closed upon
                await kind.once(target, source)
            done += 1

    tasks = [asyncio.create_task(work(place)) for place in range(kind.at_once)]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [result for result in found if not isinstance(result, asyncio.CancelledError)]
    if broken:
        raise RuntimeError(f"{kind.name}: {broken[0]!r}")
    return done
