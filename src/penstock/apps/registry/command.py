"""Command group `penstock registry`: serves the schema registry without a broker.

`penstock registry serve` writes one line to stdout when clients can connect:

    penstock ready registry=HOST:PORT

SIGTERM and SIGINT stop it with status 0; a second signal ends it at once.
"""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.apps.client.session import log_options, path_option

if TYPE_CHECKING:
    from penstock.apps.process.configuration import Configuration

logger = logging.getLogger(__name__)

STOP_MS: Final = 20_000
"""Time that a stop may take."""


@click.group("registry", short_help="Serve the schema registry without a broker.")
def registry() -> None:
    """Serve the schema registry without a broker.

    Brokers serve it themselves with registry.enable=true. A process of its own separates the load
    of schema clients from the brokers. `penstock schema` has the commands for clients.
    """


@registry.command("serve")
@path_option("--config file", "TOML file with settings, as for penstock serve. Default: none.")
@click.option(
    "--control-url",
    metavar="URL",
    help="PostgreSQL database of the cluster's brokers (control.url). The registry shares schemas,"
    " users and ACLs with them.",
)
@click.option(
    "--data-dir",
    help="Without --control-url: directory of the SQLite database (log.dirs), which no other"
    " process may use. [default: penstock-data]",
)
@click.option(
    "--listener",
    metavar="HOST:PORT",
    help="Address to listen on (registry.listener); port 0 picks a free port. [default:"
    " 127.0.0.1:8081]",
)
@click.option(
    "-X",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting of penstock serve by name; overrides environment and file. May be repeated.",
)
@log_options
def serve(
    file: Path | None,
    control_url: str | None,
    data_dir: str | None,
    listener: str | None,
    overrides: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> None:
    """Serve the schema registry until SIGTERM or SIGINT.

    The settings are those of penstock serve, and the same file can be used. TLS, authentication and
    authorisation of registry.listener work as in a broker. Settings of topics, storage and Kafka
    listeners have no effect.
    """
    from penstock.apps.process.configuration import Given, configure, misspelt, parse_override
    from penstock.apps.process.daemon import set_up
    from penstock.apps.process.private_files import protect

    set_up(log_format, log_level)
    flags = dict(parse_override(text) for text in overrides)
    named = {
        "control.url": ("--control-url", control_url),
        "log.dirs": ("--data-dir", data_dir),
        "registry.listener": ("--listener", listener),
    }
    for setting, (option, value) in named.items():
        if value is not None:
            flags[setting] = Given(value, f"flag {option}")
    for sentence in misspelt(os.environ):
        logger.warning("%s", sentence)
    configuration = configure(file=file, environment=os.environ, flags=flags, has_topics=False)
    for sentence in configuration.notes:
        logger.warning("%s", sentence)
    if configuration.audit.topic:
        logger.warning(
            "audit.topic has no effect without a broker. Set audit.log.file to keep an audit log"
        )
    gc.disable()  # modules and their definitions are never freed
    protect(configuration.directory, configuration.directory_access)
    import uvloop

    uvloop.run(_serve(configuration))


async def _serve(configuration: Configuration) -> None:
    import asyncio

    from penstock.apps.process.daemon import (
        COLLECT_AFTER_OBJECTS,
        notify_ready,
        notify_stopping,
        stop_event,
    )
    from penstock.apps.process.wiring import address
    from penstock.apps.registry.standalone import StandaloneRegistry

    stop = stop_event()
    standalone = StandaloneRegistry(configuration)
    loop = asyncio.get_running_loop()
    starting = loop.create_task(standalone.start())
    stopped = loop.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            logger.info("stopping before the registry has started")
            starting.cancel()
            await asyncio.wait({starting})
            return
        bound = starting.result()
        click.echo(f"penstock ready registry={address(bound)}")
        notify_ready()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER_OBJECTS)
        gc.enable()
        await stopped
        notify_stopping(STOP_MS)
    finally:
        stopped.cancel()
        await standalone.stop()
