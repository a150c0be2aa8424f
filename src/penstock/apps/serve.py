"""`penstock serve`: run a broker until it is told to stop.

Nothing is imported here that a broker does not need: the time from the command to the ready line
is mostly imports. One line goes to stdout, when clients can connect:

    penstock ready kafka=HOST:PORT admin=HOST:PORT

SIGTERM and SIGINT end it in good order with status 0; a second one ends it at once. It ends on its
own, with an error, when another process has registered under its node.id.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from pathlib import Path

import click

from penstock.apps.configuration import Configuration, Given, configure, misspelt, parse_override
from penstock.apps.daemon import COLLECT_AFTER_OBJECTS, FORMATS, LEVELS, set_up, stop_event
from penstock.apps.wiring import address, build, start
from penstock.control import StaleBroker

logger = logging.getLogger(__name__)


@click.command("serve", short_help="Run a broker.")
@click.option(
    "--config", "file", type=click.Path(path_type=Path), help="TOML file with Kafka's names."
)
@click.option("--data-dir", help="Directory of the log and its database (log.dirs).")
@click.option("--listener", metavar="HOST:PORT", help="Where Kafka clients connect; port 0: any.")
@click.option("--admin", metavar="HOST:PORT", help="Where the admin HTTP interface listens.")
@click.option("-X", "overrides", multiple=True, metavar="KEY=VALUE", help="Any setting by name.")
@click.option("--log-format", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True)
def serve(
    file: Path | None,
    data_dir: str | None,
    listener: str | None,
    admin: str | None,
    overrides: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    A flag wins over the environment (PENSTOCK_LOG_RETENTION_MS, KAFKA_LOG_RETENTION_MS), the
    environment over the file, the file over the default.
    """
    set_up(log_format, log_level)
    flags = dict(parse_override(text) for text in overrides)
    if data_dir is not None:
        flags["log.dirs"] = Given(data_dir, "flag --data-dir")
    if listener is not None:
        flags["listeners"] = Given(_with_protocol(listener), "flag --listener")
    if admin is not None:
        flags["admin.listener"] = Given(admin, "flag --admin")
    for sentence in misspelt(os.environ):
        logger.warning("%s", sentence)
    configuration = configure(file=file, environment=os.environ, flags=flags)
    for sentence in configuration.notes:
        logger.warning("%s", sentence)
    run(configuration)


def _with_protocol(text: str) -> str:
    return text if "://" in text else f"PLAINTEXT://{text}"


def run(configuration: Configuration) -> None:
    """Serve until a signal comes.

    Raises:
        PenstockError: the broker cannot start.
    """
    # Modules and what they define stay for good: looking through them for garbage costs a little
    # of the start-up, and at each full collection again.
    gc.disable()
    import uvloop

    uvloop.run(_serve(configuration))


async def _serve(configuration: Configuration) -> None:
    stop, loop = stop_event(), asyncio.get_running_loop()
    server = build(configuration)
    ready = await start(server)
    click.echo(f"penstock ready kafka={address(ready.kafka)} admin={address(ready.admin)}")
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS)
    gc.enable()
    logger.info("serving %s from %s", address(ready.kafka), configuration.directory)
    waits = {loop.create_task(event.wait()) for event in (stop, server.superseded)}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    logger.info("stopping")
    await server.stop()
    for wait in waits:
        wait.cancel()
    logger.info("stopped")
    if server.superseded.is_set() and not stop.is_set():
        raise StaleBroker(server.settings.node_id)
