"""Check of the Host and Origin headers of HTTP requests.

Host, and the Origin that a browser adds, must name this listener. Then no page of another site can
make a browser send changes, not even if that site's name resolves to this listener (DNS rebinding).

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
    """Request whose Host or Origin header names another listener."""

    code: ClassVar[str] = "invalid_request"


def names_of_listener(host: str, more: Iterable[str]) -> frozenset[str]:
    """Return the host names of a listener on this machine, in lower case."""
    names = ["localhost", host, socket.gethostname(), *more]
    return frozenset(name.lower() for name in names if name)


def check_meant(headers: Mapping[str, str], hosts: Collection[str], setting: str) -> None:
    """Check that the headers Host and, if present, Origin name this listener.

    `hosts` are the listener's names. `setting` is the setting that adds names, for the message.

    Raises:
        NotForHere: a header names another listener.
    """
    host = headers.get("host", "")
    if not names_listener(host, hosts):
        raise NotForHere(
            f"Host {host[:100]!r} is not a name of this listener. If it should be, add it to"
            f" {setting}"
        )
    origin = headers.get("origin")
    if origin is not None and not _is_at(origin, host):
        raise NotForHere(f"Origin {origin[:100]!r} must be this listener, {host[:100]}")


def _is_at(origin: str, host: str) -> bool:
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return origin.startswith("http") and found.netloc.lower() == host.lower()


def names_listener(host: str, hosts: Collection[str]) -> bool:
    """Return whether a Host header is an IP address, or one of the names in `hosts`."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name in hosts
    return True
