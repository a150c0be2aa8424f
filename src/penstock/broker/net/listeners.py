"""Listeners in Kafka's notation: `NAME://host:port`, IPv6 hosts in brackets.

`listener.security.protocol.map` maps listener names to protocols. Clients receive the brokers'
addresses for the listener to which they connected. `advertised.listeners` overrides the address of
a listener.

Source: KIP-103 (several listeners), KIP-291; Kafka's `SocketServerConfigs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import InvalidSetting
from penstock.base.http_listener import parse_address
from penstock.base.settings import whole_number
from penstock.client.security import NO_SECURITY, ClientSecurity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.control import Broker, MetadataImage
    from penstock.wire.kafka.framing import Endpoint


PLAINTEXT: Final = "PLAINTEXT"
SERVED: Final = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOLS: Final = "listener.security.protocol.map"

Address = tuple[str, int]
REPLICATION: Final = "REPLICATION"
"""Listener name under which a broker's replication address is registered."""
ADMIN: Final = "ADMIN"
"""Listener name of the admin interface, as in the settings `listener.name.admin.…`."""
ADMIN_LISTENER: Final = "admin.listener"


class Listener(Struct, frozen=True, kw_only=True):
    """Address and protocol of a listener.

    Port 0 means a free port that the system chooses. An empty host means all network interfaces.
    """

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
        """Whether the listener encrypts or authenticates."""
        return self.protocol != PLAINTEXT


def parse_listeners(texts: Iterable[str], protocols: Iterable[str]) -> list[Listener]:
    """Return the listeners at `texts`, with protocols from NAME:PROTOCOL; raises InvalidSetting."""
    known = _parse_protocols(protocols)
    found = []
    for text in texts:
        listener = _parse(LISTENERS, text)
        protocol = known.get(listener.name)
        if protocol not in SERVED:
            fault = f"has protocol {protocol}" if protocol else f"has no entry in {PROTOCOLS}"
            raise InvalidSetting(
                LISTENERS, listener.name, f"{fault}; supported are {', '.join(SERVED)}"
            )
        found.append(replace(listener, protocol=protocol))
    return found


def admin_listener(text: str, protocol: str) -> Listener:
    """Return the admin interface's address as a listener with SASL; raises InvalidSetting."""
    return http_listener(ADMIN, ADMIN_LISTENER, text, protocol)


def http_listener(name: str, setting: str, text: str, protocol: str) -> Listener:
    """Return the address of an HTTP interface as a listener with SASL.

    Raises:
        InvalidSetting: the address is malformed; the error names `setting`.
    """
    host, port = parse_address(text, setting=setting)
    secured = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"
    return Listener(name=name, host=host, port=port, protocol=secured)


def between_brokers(listeners: Sequence[Listener], name: str, protocol: str) -> Listener:
    """Return the listener to which other brokers connect.

    It is the listener with `name`. If `name` is empty, it is the first one with `protocol`, or the
    first one of all if that is empty too.

    Raises:
        InvalidSetting: no listener has this name or protocol.
    """
    found = [
        listener
        for listener in listeners
        if (listener.name == name.upper() if name else protocol in ("", listener.protocol))
    ]
    if not found:
        setting = "inter.broker.listener.name" if name else "security.inter.broker.protocol"
        known = ", ".join([f"{listener.name} ({listener.protocol})" for listener in listeners])
        raise InvalidSetting(setting, name or protocol, f"no such listener; listeners are {known}")
    return found[0]


def advertised(
    texts: Iterable[str], listeners: Iterable[Listener], bound: Mapping[str, Address]
) -> dict[str, Address]:
    """Return the advertised addresses by listener name; raises InvalidSetting.

    `texts` override the addresses of `listeners`. Port 0 is advertised as the bound port, a
    wildcard host as localhost.
    """
    addresses: dict[str, Address] = {}
    for listener in listeners:
        host = "localhost" if listener.host in ("", "0.0.0.0", "::") else listener.host  # noqa: S104  (compared, not bound)
        addresses.setdefault(listener.name, (host, bound[listener.name][1]))
    named: dict[str, Address] = {}
    for text in texts:
        entry = _parse(ADVERTISED, text)
        if entry.name not in addresses:
            raise InvalidSetting(
                ADVERTISED, text, f"no listener {entry.name}; listeners are {', '.join(addresses)}"
            )
        named.setdefault(entry.name, (entry.host, entry.port or bound[entry.name][1]))
    return addresses | named


def shown(name: str, address: Address) -> str:
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


class Identity:
    """Broker id and advertised addresses of this broker; complete once its listeners are bound."""

    __slots__ = ("admin_port", "as_client", "endpoints", "listener", "node_id")

    def __init__(
        self, node_id: int, as_client: Callable[[], ClientSecurity] = lambda: NO_SECURITY
    ) -> None:
        """`as_client` returns the client security settings for `listener`."""
        self.node_id = node_id
        self.as_client = as_client
        self.endpoints: dict[str, tuple[str, int]] = {}
        """Advertised host and port by listener name."""
        self.admin_port: int | None = None
        """Bound port of the admin interface; None without one."""
        self.listener = ""
        """Listener that brokers use to connect to each other, and to themselves."""


def endpoints_of(image: MetadataImage, broker_ids: Iterable[int], listener: str) -> list[Endpoint]:
    """Return the addresses of registered brokers for clients of a listener."""
    found = [image.broker(broker_id) for broker_id in sorted(set(broker_ids))]
    return [
        (broker.broker_id, *broker.endpoint(listener), broker.rack)
        for broker in found
        if broker is not None
    ]


def replication_address(broker: Broker) -> tuple[str, int] | None:
    """Return the address of a broker's replication listener; None if it has none."""
    for name, host, port in broker.endpoints:
        if name == REPLICATION:
            return host, port
    return None


def address_of(broker: Broker, listener: str) -> dict[str, Any]:
    """Return the response fields `host` and `port` of a broker, for clients of a listener."""
    host, port = broker.endpoint(listener)
    return {"host": host, "port": port}


def own_address(identity: Identity) -> str:
    """Return the `host:port` by which this broker connects to itself."""
    host, port = identity.endpoints[identity.listener]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
