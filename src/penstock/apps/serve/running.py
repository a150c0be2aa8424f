"""Run of one broker in this process, from its start to its stop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.apps.process.daemon import COLLECT_AFTER_OBJECTS
from penstock.apps.process.wiring import Ready, address, opened, start
from penstock.control import StaleBroker

if TYPE_CHECKING:
    from penstock.apps.process.configuration import Configuration
    from penstock.broker.server import BrokerServer
    from penstock.control.drivers.notices import SocketNotices
    from penstock.registry.server import RegistryServer


logger = logging.getLogger(__name__)


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
    starting = loop.create_task(_started(configuration, notices))
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
    logger.info("serving %s from %s", address(ready.kafka), configuration.directory)
    waits = {stopped, loop.create_task(server.superseded.wait())}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    logger.info("stopping")
    if registry is not None:
        await registry.stop()
    await server.stop()
    for wait in waits:
        wait.cancel()
    logger.info("stopped")
    if server.superseded.is_set() and not stop.is_set():
        raise server.ended_by or StaleBroker(server.settings.node_id)


async def _started(
    configuration: Configuration, notices: SocketNotices | None
) -> tuple[BrokerServer, RegistryServer | None, Ready]:
    server, schemas = await opened(configuration, notices)
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
