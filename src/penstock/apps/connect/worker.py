"""Commands of workers and of stored state: `penstock connect worker`, `reset`, and `replay`."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from penstock.apps.client.session import (
    BadInput,
    FilePlace,
    State,
    client_options,
    default_option,
    log_options,
    on_file,
    path_option,
    say,
)
from penstock.apps.connect.command import STATE_DOC, client_of, load, writing

LISTEN: Final = "127.0.0.1:8083"
CONNECTIONS_MAX: Final = 64


@click.command("worker", short_help="Run the connectors of a directory.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@client_options
@default_option("--listen", LISTEN, "Address of the REST interface and of /metrics: HOST:PORT.")
@path_option(
    "--state status_directory", "Directory of the status files. Default: .state in DIRECTORY."
)
@log_options
def worker(
    state: State,
    directory: Path,
    listen: str,
    log_format: str,
    log_level: str,
    **more: Any,
) -> None:
    """Run every connector of a directory in a process of its own, until SIGINT or SIGTERM.

    New files start connectors, changed files restart them, removed files stop them. Brokers that
    are named by -b, PENSTOCK_BOOTSTRAP or the profile override those of the files; workers with
    these brokers share their connectors. The address serves Kafka Connect's REST interface,
    /metrics, /livez and /readyz, without authentication.
    """
    from penstock.apps.process.daemon import set_up
    from penstock.base.http_listener import parse_address
    from penstock.connect.worker import WorkerSettings

    set_up(log_format, log_level)
    place: Path | None = more["status_directory"]
    settings = WorkerSettings(
        directory=directory.resolve(),
        state=(place or directory / ".state").resolve(),
        bootstrap=state.setting("bootstrap", state.bootstrap, "") or None,
        security=state.security(),
    )
    asyncio.run(_serve(settings, parse_address(listen, setting="--listen")))


async def _serve(settings: Any, address: tuple[str, int]) -> None:
    from penstock.apps.process.daemon import notify_ready, stop_event
    from penstock.base.http_listener import HttpListener
    from penstock.client import Client
    from penstock.connect.rest import Rest
    from penstock.connect.sharing import DEAD_SECONDS, Sharing
    from penstock.connect.worker import Worker

    with writing(settings.directory):
        running = Worker(settings)
    stop, listener = stop_event(), HttpListener()
    rest = Rest(running, "")
    try:
        host, port = await listener.start(rest.app(), address, connections_max=CONNECTIONS_MAX)
    except OSError as error:
        raise BadInput(
            f"cannot listen on {address[0]}:{address[1]}: {error.strerror or error}; choose another"
            " address with --listen HOST:PORT (port 0: any)"
        ) from None
    rest.worker_id = f"{socket.gethostname()}:{port}"
    tasks = [running.run(stop)]
    client = None
    if settings.bootstrap is not None:
        client = Client(
            settings.bootstrap, client_id=f"connect-worker-{rest.worker_id}",
            security=settings.security, api_timeout_ms=round(DEAD_SECONDS / 2 * 1000),
        )  # fmt: skip
        rest.sharing = Sharing(running, rest.worker_id, client)
        tasks.append(rest.sharing.run(stop))
    click.echo(f"penstock connect worker ready http={host}:{port}")
    notify_ready()
    try:
        await asyncio.gather(*tasks)
    finally:
        await listener.stop()
        if client is not None:
            client.close()


@click.command("reset", short_help="Remove the stored positions of a connector.")
@on_file(STATE_DOC)
@click.option(
    "--table", "tables", multiple=True, metavar="SCHEMA.TABLE",
    help="Only this table of a source, or this topic of a sink. May be repeated.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask for the connector's name.")
def reset(state: State, where: FilePlace, tables: tuple[str, ...], yes: bool) -> None:
    """Remove the positions of a source, or the offsets of a sink's consumer group.

    The connector must not run. Its next run begins as its first one did: a source reads a new
    snapshot, a sink the topics from their begin. Sinks that store offsets in their target keep
    these.
    """
    from penstock.connect.offsets import reset_offsets

    spec = load(where)
    if not yes:
        typed = click.prompt(f"Name of the connector to reset ({spec.name})", err=True)
        if typed != spec.name:
            raise BadInput(f"{typed!r} is not the connector's name; nothing was removed")
    with client_of(state, spec) as client:
        names = reset_offsets(client, spec.name, spec.direction, tables)
    text = f"{spec.name}: removed {len(names)} positions" + "".join(f"\n{name}" for name in names)
    say(state, text, connector=spec.name, removed=names)


@click.command("replay", short_help="Process the dead letters of a connector again.")
@on_file(STATE_DOC)
def replay(state: State, where: FilePlace) -> None:
    """Send each dead letter of a connector through its transforms and its sink or topics again.

    Each dead letter is replayed once; the group connect-NAME-replay has the progress. Records that
    fail again become new dead letters.
    """
    from penstock.connect import replaying, running
    from penstock.connect.status import StatusFile

    spec = load(where)
    with tempfile.TemporaryDirectory() as name, client_of(state, spec) as client:
        found = replaying.replay(
            running.Run(
                spec=spec,
                client=client,
                status=StatusFile(spec.name, spec.direction, Path(name)),
                stop=running.Stop(),
                once=True,
                report=lambda line: click.echo(f"{spec.name}: {line}", err=True),
            )
        )
    text = f"{spec.name}: replayed {found.records:,} dead letters, {found.rejected:,} failed again"
    say(state, text, connector=spec.name, replayed=found.records, rejected=found.rejected)
