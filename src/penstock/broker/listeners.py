"""Listeners, as Kafka writes them: `NAME://host:port`, IPv6 hosts in brackets.

A listener has a name, by which `listener.security.protocol.map` gives it a protocol. Each is
advertised by itself: clients are told the addresses of the listener that they came by, those of
`advertised.listeners` where it has its name.

Source: KIP-103 (several listeners), KIP-291; Kafka's `SocketServerConfigs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.base.http_listener import parse_address
from penstock.base.settings import whole_number

PLAINTEXT: Final = "PLAINTEXT"
SERVED: Final = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOLS: Final = "listener.security.protocol.map"

Address = tuple[str, int]
REPLICATION: Final = "REPLICATION"
"""The name under which a broker's address for other brokers is registered."""
ADMIN: Final = "ADMIN"
"""The admin interface's name, of its settings `listener.name.admin.…`."""
ADMIN_LISTENER: Final = "admin.listener"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address; port 0 asks for a free one, an empty host for every interface."""

    name: str
    host: str
    port: int
    protocol: str = PLAINTEXT

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def secured(self) -> bool:
        """Whether clients are not simply anybody."""
        return self.protocol != PLAINTEXT


def parse_listeners(texts: Iterable[str], protocols: Iterable[str]) -> list[Listener]:
    """Read listener addresses, and the map from their names to protocols.

    Raises:
        InvalidSetting: no name, a name without a protocol, one that is not served, or no port.
    """
    known = _parse_protocols(protocols)
    found = []
    for text in texts:
        listener = _parse(LISTENERS, text)
        protocol = known.get(listener.name)
        if protocol not in SERVED:
            said = f"has protocol {protocol}" if protocol else f"has no entry in {PROTOCOLS}"
            raise InvalidSetting(
                LISTENERS, listener.name, f"{said}; protocols are {', '.join(SERVED)}"
            )
        found.append(replace(listener, protocol=protocol))
    return found


def admin_listener(text: str, protocol: str) -> Listener:
    """The admin interface's address, as a listener: it takes names and passwords, or tokens.

    Raises:
        InvalidSetting: the text is no address.
    """
    host, port = parse_address(text, setting=ADMIN_LISTENER)
    secured = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"
    return Listener(name=ADMIN, host=host, port=port, protocol=secured)


def between_brokers(listeners: Sequence[Listener], name: str, protocol: str) -> Listener:
    """The listener by which brokers call each other: by its name, its protocol, or the first one.

    Raises:
        InvalidSetting: there is none of this name or protocol.
    """
    found = [
        listener
        for listener in listeners
        if (listener.name == name.upper() if name else protocol in ("", listener.protocol))
    ]
    if not found:
        setting = "inter.broker.listener.name" if name else "security.inter.broker.protocol"
        known = ", ".join([f"{listener.name} ({listener.protocol})" for listener in listeners])
        raise InvalidSetting(setting, name or protocol, f"there is no such listener, only {known}")
    return found[0]


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
    number = whole_number(port, 65_535)
    if not separator or number is None:
        raise InvalidSetting(setting, text, "must end in a port from 0 to 65535")
    return Listener(name=name.upper(), host=host.removeprefix("[").removesuffix("]"), port=number)
