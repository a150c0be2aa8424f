"""Certificates for tests: one authority for a run, whose keystores are made where they are used."""

from __future__ import annotations

import functools
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.security.data.secret_files import write_private
from penstock.security.development_ca import (
    DAYS,
    Authority,
    common_name,
    new_authority,
)

HOSTS: Final = ("localhost", "127.0.0.1", "::1")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@functools.cache
def authority(name: str = "test CA") -> Authority:
    return new_authority(now_ms(), name)


def truststore(directory: Path, name: str = "test CA") -> str:
    """The path of a file with an authority's certificate."""
    path = directory / f"{name.replace(' ', '-')}.pem"
    path.write_bytes(authority(name).pem)
    return str(path)


def keystore(
    directory: Path,
    name: str = "broker",
    *,
    hosts: Sequence[str] = HOSTS,
    days: float = DAYS,
    password: str = "",
    ca: str = "test CA",
) -> str:
    """The path of a new keystore of that name: a server's, or a client's where `hosts` is empty."""
    path = directory / f"{name}.keystore.pem"
    made = authority(ca).issue(
        common_name(name), now_ms(), hosts=hosts, days=days, password=password
    )
    write_private(path, made)
    return str(path)


def client_hello(context: ssl.SSLContext) -> bytes:
    """Return a client's first TLS message."""
    sent = ssl.MemoryBIO()
    made = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        made.do_handshake()
    return sent.read()
