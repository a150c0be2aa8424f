"""Settings of each of several brokers that share a data directory.

| of broker *i* (0, 1, …)    | is                                                              |
|----------------------------|-----------------------------------------------------------------|
| node.id                    | that of the settings, + *i*                                     |
| ports of (advertised) listeners | those of the settings, + *i*; for port 0 a free one         |
| replication.listener       | the same; 127.0.0.1 and a free port where none is set           |
| admin.listener             | 127.0.0.1 and a free port without TLS, which the front asks     |
| directory of its log       | `log` of the first one, as of a process alone; `log-<node.id>`  |
| sink.staging.directory     | that of the settings; with `-<node.id>` but for the first one   |

Metadata and the objects of diskless topics are everybody's. So a directory of one process serves
several, and goes back to fewer as soon as those that go hold nothing: partitions of which a broker
would be missing are named, and nothing is started.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.apps.configuration import InvalidConfiguration
from penstock.apps.wiring import CONTROL, LOG, address, trusted_note
from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.http_listener import parse_address
from penstock.base.settings import INT_MAX, whole_number
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.control import DatabaseLocked
from penstock.control.epochs.rules import is_diskless
from penstock.control.sqlite_shared import prepare
from penstock.security.forwarding import SECRET_BITS

if TYPE_CHECKING:
    from penstock.apps.configuration import Configuration
    from penstock.broker.listeners import Address
    from penstock.broker.settings import BrokerSettings

LOCAL: Final = "127.0.0.1"
PORT_MAX: Final = 65_535


class BrokersMissing(InvalidError):
    """Partitions have replicas on brokers that would not run."""

    code: ClassVar[str] = "invalid_config"


class Plan:
    """Configurations of the brokers."""

    def __init__(self, configuration: Configuration, keep: ExitStack) -> None:
        """Plan `configuration.processes` brokers; `keep` holds the found free ports.

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
        """By which brokers know what comes from the front."""
        self.brokers = tuple(
            [self._broker(configuration, place) for place in range(configuration.processes)]
        )
        admin = configuration.broker.admin_listener
        self.admin = _address(self._bound("admin.listener", admin, 0)) if admin else None
        """Where the front listens, if it does."""
        self.admins = {
            entry.broker.node_id: _address(entry.broker.admin_listener)
            for entry in self.brokers
            if admin
        }
        """Where the brokers answer it."""
        _check_ports([item.broker for item in self.brokers], admin)

    def _broker(self, configuration: Configuration, place: int) -> Configuration:
        settings = configuration.broker
        node_id = settings.node_id + place
        if node_id > INT_MAX:
            raise InvalidSetting("node.id", settings.node_id, f"must leave room for {node_id}")
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
            front_secret=self.secret,
        )

    def _bound(self, setting: str, text: str, place: int) -> str:
        """Return an address; a port 0 becomes a reserved free one."""
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
        """Return the line that reports readiness: the first listener of each broker."""
        kafka = [settings.broker.listeners[0].rpartition("://")[2] for settings in self.brokers]
        note = trusted_note(self._trusted and self.admin is not None)
        return f"penstock ready kafka={','.join(kafka)} admin={address(self.admin)}{note}"


def _address(text: str) -> Address:
    return parse_address(text, setting="admin.listener")


def _up(setting: str, text: str, place: int) -> str:
    """Return an address with an incremented port; 0 stays."""
    head, _, port = text.rpartition(":")
    number = whole_number(port, PORT_MAX)
    if not number:
        return text
    if number + place > PORT_MAX:
        raise InvalidSetting(setting, text, f"must leave room for port {number + place}")
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
                    f"is the address of {taken[thing]} and of {user}: leave room for one port"
                    " per process",
                )
            taken[thing] = user


def check_held(brokers: Collection[int], directory: Path) -> None:
    """Migrate the metadata, and check that no partition needs another broker's log.

    Raises:
        ControlUnavailable, IncompatibleDatabase: the database cannot be opened, as when another
            process holds it.
        BrokersMissing: partitions need brokers; names them and the required number of processes.
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
        return f"start it with node.id = {min(missing)}, as before"
    return (
        f"start it with --processes {max(missing) - first + 1}, or move them to other brokers"
        " while these run"
    )
