"""A broker among hostile peers: its addresses, raw connections, and the table of what they do."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.testing import Broker
from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import request_frame
from tests.security.exchanges import signing_key

CLOSED_SECONDS: Final = 5.0
LATE_SECONDS: Final = 2.5
"""What a tick of the broker and a busy machine may add."""
GROWTH_KIB: Final = 64 << 10
FAILED, ILLEGAL_STATE, UNSUPPORTED_MECHANISM, UNSUPPORTED_VERSION = 58, 34, 33, 35
INVALID_REQUEST: Final = 42
MECHANISM: Final = "SCRAM-SHA-256"
LISTENERS: Final = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
RSA: Final = signing_key()


HTTP: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BOMB: Final = zlib.compress(bytes(16 << 20), 9)


@dataclass(slots=True)
class Arena:
    """The broker and its addresses."""

    broker: Broker
    directory: Path
    ports: dict[str, int]
    trusting: ssl.SSLContext
    sources: Iterator[int] = field(default_factory=lambda: iter(range(2, 250)))

    def open(self, listener: str, *, source: str | None = None, secure: bool = True) -> Peer:
        """A connection from an address of its own."""
        source = source or f"127.0.1.{next(self.sources)}"
        opened = socket.create_connection(
            ("127.0.0.1", self.ports[listener]), 20, source_address=(source, 0)
        )
        if secure and listener.endswith(("SSL", "ADMIN")):
            opened = self.trusting.wrap_socket(opened, server_hostname="localhost")
        return Peer(opened)

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])


class Peer:
    """A raw connection."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.began = time.monotonic()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes, pause: float = 0.0) -> None:
        with suppress(OSError):
            for piece in pieces:
                self.socket.sendall(piece)
                if pause:
                    time.sleep(pause)

    def rest(self) -> bytes:
        """Return all bytes until the broker closes the connection, soon."""
        said, last = b"", time.monotonic()
        self.socket.settimeout(15)
        with suppress(ConnectionError, ssl.SSLError):
            while piece := self.socket.recv(1 << 16):
                said += piece
                last = time.monotonic()
        assert time.monotonic() - max(last, self.began) < CLOSED_SECONDS + LATE_SECONDS
        return said

    def call(self, name: str, version: int, request: Mapping[str, Any]) -> Any:
        body = encoder(name, version, "request")(request)
        self.socket.sendall(request_frame(BY_NAME[name].key, version, 7, b"rude", body))
        return self.answer(name, version)

    def answer(self, name: str, version: int) -> Any:
        self.socket.settimeout(15)
        (size,) = struct.unpack(">i", self._exactly(4))
        offset = 5 if BY_NAME[name].response_header_version(version) else 4
        return decoder(name, version, "response")(self._exactly(size), offset)[0]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def sasl(self, mechanism: str, *messages: bytes) -> Any:
        """Agree on a mechanism and send messages; the last answer."""
        assert self.call("SaslHandshake", 1, {"mechanism": mechanism}).error_code == 0
        for message in messages:
            answer = self.call("SaslAuthenticate", 2, {"auth_bytes": message})
            if answer.error_code:
                break
        return answer


Kind = Callable[[Arena], None]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__.replace("_", " ")] = function
    return function


def frame(name: str, version: int, body: bytes) -> bytes:
    return request_frame(BY_NAME[name].key, version, 1, b"x", body)


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def said(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    good = {"sub": "alice", "iss": "https://issuer", "aud": "penstock", "exp": now + 600}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}
