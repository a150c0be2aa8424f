"""Check of the Host and Origin headers: rejects HTTP requests that were meant for another listener.

Host, and the Origin that a browser adds, must name the listener: so no page of another site sends
changes, also not by a name that it has made to lead here (DNS rebinding).

Source: OWASP, "Cross-Site Request Forgery Prevention"; RFC 6454.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar, Final
from urllib.parse import urlsplit

from penstock.base.errors import InvalidError

READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class NotForHere(InvalidError):
    """The request was meant for another listener."""

    code: ClassVar[str] = "invalid_request"


def names_of_listener(host: str, more: Iterable[str]) -> frozenset[str]:
    """Return the names of a listener on this machine, in lower case."""
    names = ["localhost", host, socket.gethostname(), *more]
    return frozenset(name.lower() for name in names if name)


def check_meant(headers: Mapping[str, str], hosts: Collection[str], setting: str) -> None:
    """Raise NotForHere unless Host and Origin, where there is one, name this listener.

    `setting` is the one that adds names.
    """
    host = headers.get("host", "")
    if not names_listener(host, hosts):
        raise NotForHere(f"Host {host[:100]!r} is no name of this listener: add it to {setting}")
    origin = headers.get("origin")
    if origin is not None and not _is_at(origin, host):
        raise NotForHere(f"Origin {origin[:100]!r} is not this listener, {host[:100]}")


def _is_at(origin: str, host: str) -> bool:
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return origin.startswith("http") and found.netloc.lower() == host.lower()


def names_listener(host: str, hosts: Collection[str]) -> bool:
    """Return whether a Host header names a listener: any address, or a name of `hosts`."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name in hosts
    return True
