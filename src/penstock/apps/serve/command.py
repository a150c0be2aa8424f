"""Command `penstock serve`: runs a broker until a signal stops it.

This module imports only what a broker needs, because imports take most of the start-up time. When
clients can connect, it writes one line to stdout:

    penstock ready kafka=HOST:PORT admin=HOST:PORT

With registry.enable=true, `registry=HOST:PORT` follows. With several processes the line has the
address of each broker, separated by commas. It ends with
`admin.loopback.trusted=true` if every process on this machine may use the admin interface without
credentials.

A systemd unit of `Type=notify` is started at the same moment (`process/daemon.py`).

SIGTERM and SIGINT stop the broker gracefully with status 0; a second signal ends it at once. The
command fails when another process registers under the same node.id.
"""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

import click

from penstock.apps.client.session import log_options, path_option
from penstock.apps.process.configuration import (
    Configuration,
    Given,
    configure,
    misspelt,
    parse_override,
)
from penstock.apps.process.daemon import notify_ready, set_up, stop_event
from penstock.apps.process.private_files import protect
from penstock.apps.process.wiring import Ready, logs_below
from penstock.apps.serve.running import serve_until

logger = logging.getLogger(__name__)


@click.command("serve", short_help="Run a broker.")
@path_option("--config file", "TOML file with settings, under Kafka's names. Default: none.")
@click.option(
    "--data-dir",
    help="Data directory: the log and, without control.url, the SQLite database (log.dirs)."
    " [default: penstock-data]",
)
@click.option(
    "--listener",
    metavar="HOST:PORT",
    help="Address to listen on for Kafka clients (listeners); port 0 picks a free port."
    " [default: 127.0.0.1:9092]",
)
@click.option(
    "--admin",
    metavar="HOST:PORT",
    help="Address of the admin HTTP interface (admin.listener); empty turns it off. [default:"
    " 127.0.0.1:9644]",
)
@click.option(
    "--processes",
    metavar="N",
    help="Number of broker processes that share the data directory as one cluster (processes)."
    " [default: 1]",
)
@click.option(
    "-X",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any broker setting by name; overrides environment and file. May be repeated.",
)
@log_options
def serve(
    file: Path | None,
    data_dir: str | None,
    listener: str | None,
    admin: str | None,
    processes: str | None,
    overrides: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Settings are given by options, environment variables (PENSTOCK_LOG_RETENTION_MS or
    KAFKA_LOG_RETENTION_MS for log.retention.ms) and the file of --config. An option overrides the
    environment, and the environment overrides the file.
    """
    set_up(log_format, log_level)
    flags = dict(parse_override(text) for text in overrides)
    if data_dir is not None:
        flags["log.dirs"] = Given(data_dir, "flag --data-dir")
    if listener is not None:
        flags["listeners"] = Given(_with_protocol(listener), "flag --listener")
    if admin is not None:
        flags["admin.listener"] = Given(admin, "flag --admin")
    if processes is not None:
        flags["processes"] = Given(processes, "flag --processes")
    for sentence in misspelt(os.environ):
        logger.warning("%s", sentence)
    configuration = configure(file=file, environment=os.environ, flags=flags)
    for sentence in configuration.notes:
        logger.warning("%s", sentence)
    run(configuration)


def _with_protocol(text: str) -> str:
    return text if "://" in text else f"PLAINTEXT://{text}"


def run(configuration: Configuration) -> None:
    """Run the configured broker or brokers until a signal arrives.

    Raises:
        PenstockError: the broker cannot start.
    """
    # Modules and their definitions are never freed: collecting garbage among them costs a little
    # of the start-up, and at each full collection again.
    gc.disable()
    protect(configuration.directory, configuration.directory_access)
    if configuration.processes > 1:
        from penstock.apps.serve.parent import run_all

        run_all(configuration)
        return
    _check_alone(configuration)
    import uvloop

    uvloop.run(_serve(configuration))


def _check_alone(configuration: Configuration) -> None:
    """Check that no replicas belong to other brokers that have shared this data directory.

    `serve --processes` starts such brokers; one broker alone cannot serve their replicas.
    """
    if configuration.locations.control_url or len(logs_below(configuration.directory)) <= 1:
        return
    from penstock.apps.serve.plan import check_held

    check_held([configuration.broker.node_id], configuration.directory)


async def _serve(configuration: Configuration) -> None:
    def announce(ready: Ready) -> None:
        click.echo(ready.line(configuration.broker.admin_loopback_trusted))
        notify_ready()

    await serve_until(stop_event(), configuration, announce)
