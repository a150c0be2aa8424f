"""Run of one broker in this process, from its start to its stop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

from penstock.apps.process.daemon import COLLECT_AFTER_OBJECTS, notify_stopping
from penstock.apps.process.wiring import Ready, address, opened, start
from penstock.base.system import keep_memory
from penstock.control import StaleBroker

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp

    from penstock.apps.console.messages.rules import Masking
    from penstock.apps.process.configuration import Configuration
    from penstock.apps.process.wiring import NewConsole
    from penstock.broker.admin.access import AdminAccess
    from penstock.broker.admin_app import ConsoleFactory
    from penstock.broker.assembly import Assembly
    from penstock.broker.server import BrokerServer
    from penstock.control.drivers.notices import SocketNotices
    from penstock.registry.server import RegistryServer
    from penstock.registry.service import SchemaRegistry


logger = logging.getLogger(__name__)

STOP_MARGIN_MS: Final = 20_000
"""Time that a stop may take besides its timeouts, to sync files and close them."""
KEPT_BYTES: Final = 128 << 20
"""Freed memory that a broker keeps for the next responses. A response has at most
`fetch.max.bytes`, 55 MB by default."""


async def serve_until(
    stop: asyncio.Event,
    configuration: Configuration,
    announce: Callable[[Ready], None],
    notices: SocketNotices | None = None,
) -> None:
    """Run one broker until `stop` is set; call `announce` when clients can connect.

    `notices` connects a broker to others that share its data directory.

    Raises:
        PenstockError: the broker cannot start, another process has registered its node.id, or its
            database was restored from an older state.
    """
    loop = asyncio.get_running_loop()
    starting = loop.create_task(started(configuration, notices))
    stopped = loop.create_task(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        logger.info("stopping before the broker has started")
        starting.cancel()
        await asyncio.wait({starting})
        return
    server, registry, ready = starting.result()
    announce(ready)
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS)
    gc.enable()
    keep_memory(KEPT_BYTES)
    logger.info("serving %s from %s", address(ready.kafka), configuration.directory)
    waits = {stopped, loop.create_task(server.superseded.wait())}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    logger.info("stopping")
    notify_stopping(stop_ms(configuration))
    if registry is not None:
        await registry.stop()
    await server.stop()
    for wait in waits:
        wait.cancel()
    logger.info("stopped")
    if server.superseded.is_set() and not stop.is_set():
        raise server.ended_by or StaleBroker(server.settings.node_id)


def stop_ms(configuration: Configuration) -> int:
    """Return the longest time, in ms, that a broker with these settings takes to stop."""
    shutdown_ms = 2 * configuration.broker.shutdown_timeout_ms
    return shutdown_ms + configuration.diskless.drain_timeout_ms + STOP_MARGIN_MS


def console_of(
    masking: Masking | None, schemas: SchemaRegistry | None, directory: Path
) -> ConsoleFactory:
    """Return the function that creates the console; it imports the modules in a thread.

    `schemas` is the broker's schema registry, `directory` has what the console stores.
    """

    async def create(broker: Assembly, access: AdminAccess) -> ASGIApp:
        await asyncio.to_thread(import_module, "penstock.apps.console.pages.application")
        from penstock.apps.console.pages.application import build_console

        return await build_console(broker, access, schemas, directory, masking)

    return create


def _masking(file: str) -> Masking | None:
    """Return the masking rules of a file, None without a file. Blocks."""
    if not file:
        return None
    from penstock.apps.console.messages.rules import Masking

    return Masking(file)


async def started(
    configuration: Configuration, notices: SocketNotices | None = None
) -> tuple[BrokerServer, RegistryServer | None, Ready]:
    """Start a broker and its schema registry, which is None if it serves none.

    Raises:
        PenstockError: one of them cannot start.
    """
    console: NewConsole | None = None
    if configuration.broker.console_enable:
        file = configuration.broker.console_masking_file
        console = partial(console_of, await asyncio.to_thread(_masking, file))
    server, schemas = await opened(configuration, notices, console)
    ready = await start(server)
    if schemas is None:
        return server, None, ready
    from penstock.apps.process.registry import start_registry

    try:
        registry, address = await start_registry(
            configuration, server.assembly, server.control, schemas
        )
    except BaseException:
        await server.stop()
        raise
    return server, registry, replace(ready, schemas=address)
