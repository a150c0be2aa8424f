"""A broker made of its concrete parts: SQLite control plane, log store, server.

What one directory holds:

    <log.dirs>/control.sqlite    topics, groups, offsets, producer ids
    <log.dirs>/log/              journal, partitions, checkpoints, lock file
    <log.dirs>/staging/          blobs of exactly-once sinks, unless sink.staging.directory says
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from penstock.base.errors import UnavailableError
from penstock.base.metrics import Registry
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS

if TYPE_CHECKING:
    from penstock.apps.configuration import Configuration
    from penstock.broker.server import BrokerServer
    from penstock.broker.settings import BrokerSettings


class DirectoryUnusable(UnavailableError):
    """The data directory cannot be created or written."""

    code: ClassVar[str] = "kafka_storage_error"


class PortUnavailable(UnavailableError):
    """A listener's address cannot be bound."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The addresses of a running broker, as bound."""

    kafka: tuple[str, int]
    admin: tuple[str, int] | None


def build(configuration: Configuration) -> BrokerServer:
    """Open the directory and make a broker of it, not yet started.

    Raises:
        DirectoryUnusable: it cannot be created or written.
        UnavailableError: another broker holds it, or what it holds cannot be read.
    """
    from penstock.broker.server import BrokerServer
    from penstock.broker.topic_configs import TopicConfigs
    from penstock.control import SqliteControlPlane
    from penstock.storage import LogStore, StoreLocked

    directory = configuration.directory
    _prepare(directory)
    topics = TopicConfigs(configuration.broker)
    try:
        store = LogStore.open(
            directory / "log", configuration.storage, clock=SYSTEM_CLOCK, config_of=topics.config_of
        )
    except StoreLocked as error:
        error.add_note("stop that broker, or choose another directory with --data-dir")
        raise
    server = BrokerServer(
        _with_staging(configuration.broker, directory),
        control=SqliteControlPlane(directory / "control.sqlite"),
        store=store,
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
        registry=Registry(),
    )
    topics.bind(lambda: server.state.image)
    return server


def _with_staging(settings: BrokerSettings, directory: Path) -> BrokerSettings:
    if settings.sink_staging_directory:
        return settings
    return replace(settings, sink_staging_directory=str(directory / "staging"))


def _prepare(directory: Path) -> None:
    try:
        (directory / "log").mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise DirectoryUnusable(
            f"data directory {directory} (log.dirs): {error.strerror};"
            " choose another with --data-dir, or change its owner"
        ) from None


async def start(server: BrokerServer) -> Ready:
    """Start a broker; on failure what it has opened is closed again.

    Raises:
        PortUnavailable: a listener's address is taken or not this machine's.
    """
    try:
        await server.start()
    except OSError as error:
        await server.stop()
        raise PortUnavailable(_unbound(server.settings, error)) from None
    except BaseException:
        await server.stop()
        raise
    return Ready(kafka=server.kafka_address, admin=server.admin_address)


def _unbound(settings: BrokerSettings, error: OSError) -> str:
    """Which address could not be bound, why, and the flag that names another."""
    said = error.strerror or str(error)
    pairs = re.findall(r"\('([^']*)', (\d+)", said)
    cause = os.strerror(error.errno) if pairs and error.errno else said
    tried = ", ".join(f"{host}:{port}" for host, port in pairs) or ", ".join(
        [*settings.listeners, settings.admin_listener]
    )
    flag = "--admin" if tried == settings.admin_listener else "--listener"
    return f"cannot listen on {tried}: {cause}; choose another with {flag} HOST:PORT (port 0: any)"


def address(pair: tuple[str, int] | None) -> str:
    """`host:port`, brackets around IPv6; a dash for none."""
    if pair is None:
        return "-"
    host, port = pair
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
