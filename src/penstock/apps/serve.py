"""`penstock serve`: run a broker until a signal stops it.

Only modules that a broker needs are imported here: the time from the command to the ready line
is mostly imports. One line goes to stdout when clients can connect:

    penstock ready kafka=HOST:PORT admin=HOST:PORT

With several processes it has an address of each broker, separated by commas. The line ends with a
note if every caller on this machine may do everything over the admin interface, ACLs or not.

SIGTERM and SIGINT stop it in good order with status 0; a second one ends it at once. It ends
with an error when another process has registered under its node.id.
"""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

import click

from penstock.apps.configuration import Configuration, Given, configure, misspelt, parse_override
from penstock.apps.daemon import FORMATS, LEVELS, set_up, stop_event
from penstock.apps.private_files import protect
from penstock.apps.running import serve_until
from penstock.apps.wiring import Ready, address, logs_below, trusted_note

logger = logging.getLogger(__name__)


@click.command("serve", short_help="Run a broker.")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="TOML file of settings, by Kafka's names.",
)
@click.option("--data-dir", help="Directory of the log and its database (log.dirs).")
@click.option(
    "--listener", metavar="HOST:PORT", help="Address for Kafka clients; port 0: any free port."
)
@click.option("--admin", metavar="HOST:PORT", help="Address of the admin HTTP interface.")
@click.option("--processes", metavar="N", help="Brokers that share the directory (processes).")
@click.option("-X", "overrides", multiple=True, metavar="KEY=VALUE", help="Any setting by name.")
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Format of log lines.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="warning",
    show_default=True,
    help="Lowest level of log lines.",
)
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

    A flag overrides the environment (PENSTOCK_LOG_RETENTION_MS, KAFKA_LOG_RETENTION_MS), which
    overrides the file, which overrides the default.
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
    """Serve until a signal arrives.

    Raises:
        PenstockError: the broker cannot start.
    """
    # Modules and their definitions are never freed: collecting garbage among them costs a little
    # of the start-up, and at each full collection again.
    gc.disable()
    protect(configuration.directory, configuration.directory_access)
    if configuration.processes > 1:
        from penstock.apps.processes.parent import run_all

        run_all(configuration)
        return
    _check_alone(configuration)
    import uvloop

    uvloop.run(_serve(configuration))


def _check_alone(configuration: Configuration) -> None:
    """Check that one process has the whole directory, after several have shared it."""
    if configuration.locations.control_url or len(logs_below(configuration.directory)) <= 1:
        return
    from penstock.apps.processes.plan import check_held

    check_held([configuration.broker.node_id], configuration.directory)


async def _serve(configuration: Configuration) -> None:
    def announce(ready: Ready) -> None:
        trusted = configuration.broker.admin_loopback_trusted
        note = trusted_note(trusted and ready.admin is not None)
        click.echo(
            f"penstock ready kafka={address(ready.kafka)} admin={address(ready.admin)}{note}"
        )

    await serve_until(stop_event(), configuration, announce)
