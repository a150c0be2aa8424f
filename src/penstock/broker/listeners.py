"""Listeners, as Kafka writes them: `NAME://host:port`, IPv6 hosts in brackets.

A listener has a name, by which `listener.security.protocol.map` gives it a protocol; for now there
is none but PLAINTEXT. Each is advertised by itself: clients are told the addresses of the listener
that they came by, those of `advertised.listeners` where it has its name.

Source: KIP-103 (several listeners), KIP-291; Kafka's `SocketServerConfigs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import InvalidSetting

PLAINTEXT: Final = "PLAINTEXT"
LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOLS: Final = "listener.security.protocol.map"

Address = tuple[str, int]
REPLICATION: Final = "REPLICATION"
"""The name under which a broker's address for other brokers is registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address; port 0 asks for a free one, an empty host for every interface."""

    name: str
    host: str
    port: int


def parse_listeners(texts: Iterable[str], protocols: Iterable[str]) -> list[Listener]:
    """Read listener addresses, and the map from their names to protocols.

    Raises:
        InvalidSetting: no name, a name without a protocol, one that is not served, or no port.
    """
    known = _parse_protocols(protocols)
    found = [_parse(LISTENERS, text) for text in texts]
    for listener in found:
        protocol = known.get(listener.name)
        if protocol != PLAINTEXT:
            served = ", ".join(sorted(name for name, one in known.items() if one == PLAINTEXT))
            said = f"has protocol {protocol}" if protocol else f"has no entry in {PROTOCOLS}"
            raise InvalidSetting(
                LISTENERS,
                listener.name,
                f"{said}; only PLAINTEXT is served, which is that of {served or 'none'}",
            )
    return found


def advertised(
    texts: Iterable[str], listeners: Iterable[Listener], bound: Mapping[str, Address]
) -> dict[str, Address]:
    """What clients of each listener are told, by its name.

    `bound` has the addresses that were bound. A port 0 is told as the one that was bound, a host
    that stands for every interface as localhost.

    Raises:
        InvalidSetting: no listener has the name.
    """
    told: dict[str, Address] = {}
    for listener in listeners:
        host = "localhost" if listener.host in ("", "0.0.0.0", "::") else listener.host  # noqa: S104  (compared, not bound)
        told.setdefault(listener.name, (host, bound[listener.name][1]))
    named: dict[str, Address] = {}
    for text in texts:
        one = _parse(ADVERTISED, text)
        if one.name not in told:
            raise InvalidSetting(
                ADVERTISED, text, f"there is no listener {one.name}, only {', '.join(told)}"
            )
        named.setdefault(one.name, (one.host, one.port or bound[one.name][1]))
    return told | named


def shown(name: str, address: Address) -> str:
    """An address as the settings have it."""
    host, port = address
    return f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"


def _parse_protocols(entries: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for entry in entries:
        name, separator, protocol = entry.upper().partition(":")
        if not (name.strip() and separator and protocol.strip()):
            raise InvalidSetting(PROTOCOLS, entry, "must read NAME:PROTOCOL")
        pairs[name.strip()] = protocol.strip()
    return pairs


def _parse(setting: str, text: str) -> Listener:
    name, separator, address = text.partition("://")
    if not (name and separator):
        raise InvalidSetting(setting, text, "must read NAME://host:port")
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSetting(setting, text, "must end in a port from 0 to 65535")
    return Listener(
        name=name.upper(), host=host.removeprefix("[").removesuffix("]"), port=int(port)
    )
