"""Settings of each of several brokers that share a data directory.

| of broker *i* (0, 1, …)  | value                                                             |
|--------------------------|-------------------------------------------------------------------|
| node.id                  | configured value + *i*                                            |
| listeners                | configured ports + *i*; a free port for port 0                    |
| advertised.listeners     | configured ports + *i*                                            |
| replication.listener     | configured port + *i*; by default 127.0.0.1 and a free port       |
| admin.listener           | 127.0.0.1 and a free port without TLS, for requests of the front  |
| registry.listener        | configured port + *i*; a free port for port 0                     |
| directory of its log     | `log` for the first broker; `log-<node.id>` for the others        |
| sink.staging.directory   | configured value; with `-<node.id>` except for the first broker   |
| audit.log.file           | configured value; with `-<node.id>` except for the first broker   |

All brokers share the metadata and the objects of diskless topics. A directory of one broker can
therefore be served by several. It can be served by fewer again when the removed brokers hold no
replicas. If a partition has a replica on a broker that would not run, nothing is started, and the
error names such partitions.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.apps.process.configuration import Configuration, InvalidConfiguration
from penstock.apps.process.wiring import CONTROL, LOG, address, trusted_note
from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.http_listener import parse_address
from penstock.base.settings import INT_MAX, whole_number
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.control import DatabaseLocked
from penstock.control.rules.epochs import is_diskless
from penstock.control.sqlite import prepare
from penstock.security.listeners.forwarding import SECRET_BITS

if TYPE_CHECKING:
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.net.listeners import Address
    from penstock.registry.settings import RegistrySettings


LOCAL: Final = "127.0.0.1"
PORT_MAX: Final = 65_535


class BrokersMissing(InvalidError):
    """Partitions have replicas on brokers that the command would not start."""

    code: ClassVar[str] = "invalid_config"


class Plan:
    """Configurations of several brokers, and the addresses of their admin interfaces."""

    def __init__(self, configuration: Configuration, keep: ExitStack) -> None:
        """Compute the configurations of `configuration.processes` brokers.

        `keep` reserves the chosen free ports until it is closed.

        Raises:
            InvalidConfiguration, InvalidSetting: a setting cannot be shared or incremented.
        """
        if configuration.locations.control_url:
            raise InvalidConfiguration(
                f"processes = {configuration.processes}: several processes require SQLite below"
                " log.dirs. Remove control.url, or start each broker with a command of its own"
            )
        self._keep = keep
        self._trusted = configuration.broker.admin_loopback_trusted
        self.secret = SYSTEM_RANDOMNESS.bits(SECRET_BITS).to_bytes(SECRET_BITS // 8, "big")
        """Secret that shows the brokers which requests the front has forwarded."""
        self.brokers = tuple(
            [self._broker(configuration, place) for place in range(configuration.processes)]
        )
        admin = configuration.broker.admin_listener
        self.admin = _address(self._bound("admin.listener", admin, 0)) if admin else None
        """Address of the front; None if the admin interface is off."""
        self.admins = {
            entry.broker.node_id: _address(entry.broker.admin_listener)
            for entry in self.brokers
            if admin
        }
        """Addresses of the brokers' admin interfaces, by node.id."""
        _check_ports([item.broker for item in self.brokers], admin)

    def _broker(self, configuration: Configuration, place: int) -> Configuration:
        settings = configuration.broker
        node_id = settings.node_id + place
        if node_id > INT_MAX:
            raise InvalidSetting(
                "node.id",
                settings.node_id,
                f"must leave room for {node_id}, the id of a later process",
            )
        suffix = f"-{node_id}" if place else ""
        staging = settings.sink_staging_directory or str(configuration.directory / "staging")
        broker = replace(
            settings,
            node_id=node_id,
            listeners=tuple(
                [self._bound("listeners", listener, place) for listener in settings.listeners]
            ),
            advertised_listeners=tuple(
                [
                    _up("advertised.listeners", advertised_listener, place)
                    for advertised_listener in settings.advertised_listeners
                ]
            ),
            replication_listener=_up(
                "replication.listener", settings.replication_listener or f"{LOCAL}:0", place
            ),
            admin_listener=settings.admin_listener
            and self._bound("admin.listener", f"{LOCAL}:0", place),
            admin_security_protocol="PLAINTEXT",
            sink_staging_directory=f"{staging}{suffix}",
        )
        file = configuration.audit.log_file
        audit = replace(configuration.audit, log_file=file and f"{file}{suffix}")
        return replace(
            configuration,
            broker=broker,
            log=f"{LOG}{suffix}",
            audit=audit,
            schemas=self._schemas(configuration, place),
            front_secret=self.secret,
        )

    def _schemas(self, configuration: Configuration, place: int) -> RegistrySettings:
        settings, broker = configuration.schemas, configuration.broker
        if not settings.registry_enable:
            return settings
        return replace(
            settings,
            registry_listener=self._bound("registry.listener", settings.registry_listener, place),
            registry_security_protocol=settings.registry_security_protocol
            or broker.admin_security_protocol,
        )

    def _bound(self, setting: str, text: str, place: int) -> str:
        """Return a listener's address for broker `place`; port 0 becomes a reserved free port."""
        name, separator, place_text = text.rpartition("://")
        host, port = parse_address(place_text, setting=setting)
        if port:
            return _up(setting, text, place)
        kept = self._keep.enter_context(
            socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        )
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the listener sets it, too
        kept.bind((host, 0))
        return f"{name}{separator}{place_text.rpartition(':')[0]}:{kept.getsockname()[1]}"

    def ready_line(self) -> str:
        """Return the ready line, with the first listener of each broker and the front's address."""
        kafka = [settings.broker.listeners[0].rpartition("://")[2] for settings in self.brokers]
        schemas = [
            settings.schemas.registry_listener
            for settings in self.brokers
            if settings.schemas.registry_enable
        ]
        registry = f" registry={','.join(schemas)}" if schemas else ""
        note = trusted_note(self._trusted and self.admin is not None)
        return f"penstock ready kafka={','.join(kafka)} admin={address(self.admin)}{registry}{note}"


def _address(text: str) -> Address:
    return parse_address(text, setting="admin.listener")


def _up(setting: str, text: str, place: int) -> str:
    """Return an address whose port is increased by `place`; port 0 stays."""
    head, _, port = text.rpartition(":")
    number = whole_number(port, PORT_MAX)
    if not number:
        return text
    if number + place > PORT_MAX:
        raise InvalidSetting(
            setting, text, f"must leave room for port {number + place} of a later process"
        )
    return f"{head}:{number + place}"


def _check_ports(brokers: Iterable[BrokerSettings], admin: str) -> None:
    taken = {admin: "admin.listener"}
    for settings in brokers:
        own = (*settings.listeners, settings.replication_listener)
        for thing in [text.rpartition("://")[2] for text in own if not text.endswith(":0")]:
            user = f"broker {settings.node_id}"
            if thing in taken:
                raise InvalidSetting(
                    "listeners",
                    thing,
                    f"is the address of {taken[thing]} and of {user}: leave as many ports between"
                    " two listeners as there are processes",
                )
            taken[thing] = user


def check_held(brokers: Collection[int], directory: Path) -> None:
    """Migrate the database of metadata, and check that all replicas are on the brokers that will
    run.

    Raises:
        ControlUnavailable, IncompatibleDatabase: the database cannot be opened, for example because
            another process uses it.
        BrokersMissing: replicas are on other brokers; names them and the required number of
            processes.
    """
    try:
        image = asyncio.run(prepare(directory / CONTROL))
    except DatabaseLocked as error:
        error.add_note("stop the broker that uses it, or choose another directory with --data-dir")
        raise
    held = [
        (f"{topic.name}-{partition.index}", missing)
        for topic in image.topics.values()
        if not is_diskless(topic)
        for partition in topic.partitions
        if (missing := set(partition.replicas).difference(brokers))
    ]
    if not held:
        return
    missing = set[int]().union(*[ids for _, ids in held])
    raise BrokersMissing(
        f"data directory {directory}: {len(held)} partitions, first {held[0][0]}, have replicas on"
        f" brokers {', '.join(map(str, sorted(missing)))}, which this command does not start:"
        f" {_fix(missing, min(brokers))}"
    )


def _fix(missing: Collection[int], first: int) -> str:
    if min(missing) < first:
        return f"start it with node.id = {min(missing)}"
    return (
        f"start it with --processes {max(missing) - first + 1}, or move the replicas to other"
        " brokers with `penstock broker drain` while all of them run"
    )
