"""Command group `penstock host`: runs, checks and queries the agent of a host.

`serve` runs the agent, and writes one line to stdout when producers can connect:

    penstock host ready socket=PATH http=HOST:PORT sink=log

On SIGTERM or SIGINT the agent drains and then ends with status 0; a second signal ends it at once.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import (
    LazyGroup,
    State,
    counted,
    current,
    output_option,
    path_option,
    show_facts,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    from penstock.apps.host.probe import Probed
    from penstock.apps.host.wiring import HostConfiguration

logger = logging.getLogger(__name__)

DEFAULT_SOCKET: Final = "/var/run/penstock/host.sock"
HTTP_SECONDS: Final = 2.0

_HEALTH: Final = "Check that an agent and its sink accept data."
_COMMANDS: Final = {
    "health": ("host.command", "health", _HEALTH),
    "serve": ("host.command", "serve", "Run an agent."),
    "status": ("host.command", "status", "Show the state of an agent."),
    "send": ("host.send", "send", "Send lines to an agent."),
    "bench": ("host.bench", "bench", "Measure an agent."),
}


@click.group(
    "host", cls=LazyGroup, entries=_COMMANDS,
    short_help="Run or query the agent for producers of this host.",
)  # fmt: skip
def host() -> None:
    """Run or query the host agent, which receives chunks from producers over a Unix socket."""


def socket_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--socket` to a command, as argument `path`."""
    return click.option(
        "--socket", "path", metavar="PATH", envvar="PENSTOCK_HOST_SOCKET_PATH",
        default=DEFAULT_SOCKET, show_default=True,
        help="Path of the agent's socket file (PENSTOCK_HOST_SOCKET_PATH).",
    )(command)  # fmt: skip


# serve


@click.command("serve", short_help="Run an agent.")
@path_option("--config file", "TOML file with settings of the agent. Default: none.")
@click.option(
    "--socket",
    "path",
    metavar="PATH",
    help="Path of the socket file for producers (host.socket.path). [default:"
    " /var/run/penstock/host.sock]",
)
@click.option(
    "--sink", type=click.Choice(("null", "memory", "outbox", "log")),
    help="Destination of chunks: log appends them to topics, outbox writes files and pointers,"
    " memory holds them until it is full, null drops them (host.sink). [default: log]",
)  # fmt: skip
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT,…",
    help="Brokers for the sinks log and outbox (bootstrap.servers). [default: 127.0.0.1:9092]",
)
@click.option(
    "--outbox-root",
    metavar="PATH",
    help="Root directory of the outbox; required for the outbox sink (outbox.root).",
)
@click.option(
    "--outbox-topic",
    metavar="TOPIC",
    help="Topic of the outbox's pointers; required for the outbox sink (outbox.topic).",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Address of the HTTP front (host.http.listener); port 0 picks a free port. Default: no"
    " HTTP front.",
)
@click.option(
    "--takeover", is_flag=True,
    help="Replace another agent that serves this socket (host.socket.takeover). Otherwise the"
    " command fails if there is one.",
)  # fmt: skip
@click.option(
    "-X",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any agent setting by name; overrides environment and file. May be repeated.",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    help="Format of the log lines on stderr: text, or one JSON object per line. [default: text]",
)
@click.option(
    "--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="warning",
    show_default=True, help="Lowest level of the log lines that are written.",
)  # fmt: skip
def serve(
    file: Path | None,
    overrides: tuple[str, ...],
    takeover: bool,
    log_format: str,
    log_level: str,
    **given: str | None,
) -> None:
    """Run an agent until SIGTERM or SIGINT, then drain it.

    Settings are given by options, environment variables (PENSTOCK_HOST_DRAIN_TIMEOUT_MS for
    host.drain.timeout.ms) and the file of --config. An option overrides the environment, and the
    environment overrides the file.
    """
    from penstock.apps.host.wiring import KINDS, configure_host
    from penstock.apps.process.configuration import Given, misspelt, parse_override
    from penstock.apps.process.daemon import set_up

    set_up(log_format, log_level)
    flags = {}
    common = os.environ.get("PENSTOCK_BOOTSTRAP")
    if common and "PENSTOCK_BOOTSTRAP_SERVERS" not in os.environ:
        flags["bootstrap.servers"] = Given(common, "environment variable PENSTOCK_BOOTSTRAP")
    flags |= dict(parse_override(text) for text in overrides)
    given["bootstrap"] = given["bootstrap"] or current().bootstrap
    for option, name in _FLAGS.items():
        if (value := given[option]) is not None:
            flags[name] = Given(value, f"flag --{option.replace('_', '-')}")
    if takeover:
        flags["host.socket.takeover"] = Given("true", "flag --takeover")
    for sentence in misspelt(os.environ, KINDS):
        logger.warning("%s", sentence)
    run(configure_host(file=file, environment=os.environ, flags=flags))


_FLAGS: Final = {
    "path": "host.socket.path",
    "sink": "host.sink",
    "bootstrap": "bootstrap.servers",
    "outbox_root": "outbox.root",
    "outbox_topic": "outbox.topic",
    "http": "host.http.listener",
}


def run(configuration: HostConfiguration) -> None:
    """Run the configured agent until a signal arrives.

    Raises:
        PenstockError: the agent cannot start.
    """
    import uvloop

    uvloop.run(_serve(configuration))


async def _serve(configuration: HostConfiguration) -> None:
    from penstock.apps.host.wiring import build_agent
    from penstock.apps.process.daemon import (
        COLLECT_AFTER_OBJECTS,
        notify_ready,
        notify_stopping,
        stop_event,
    )
    from penstock.apps.process.wiring import PortUnavailable, address

    stop = stop_event()
    agent = build_agent(configuration)
    settings = configuration.host
    try:
        await agent.start()
    except OSError as error:
        raise PortUnavailable(
            f"cannot listen on {settings.http_listener}: {error.strerror or error}; choose another"
            " address with --http HOST:PORT (port 0 picks a free port)"
        ) from None
    http = address(agent.http.address if agent.http is not None else None)
    click.echo(
        f"penstock host ready socket={settings.socket_path} http={http} sink={settings.sink}"
    )
    notify_ready()
    # Imported modules are never freed; frames make almost no cycles.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS)
    logger.info("serving %s", settings.socket_path)
    await stop.wait()
    logger.info("draining")
    notify_stopping(settings.drain_timeout_ms + STOP_MARGIN_MS)
    await agent.stop()
    logger.info("stopped")


STOP_MARGIN_MS: Final = 5_000
"""Time that a stop may take besides the drain: for the last result of the sink, and the last
answers to producers.
"""


# health and status


@click.command("health", short_help=_HEALTH)
@socket_option
@click.option(
    "--live", is_flag=True,
    help="Ignore the sink's state. For liveness probes: a restart of the agent does not repair"
    " what its sink depends on.",
)  # fmt: skip
def health(path: str, live: bool) -> None:
    """Check that an agent accepts producers and that its sink accepts data; the exit status is 0 or
    1.

    The command connects to the agent and sends a PING, which takes less than a second. The state of
    the sink is at most a few seconds old.
    """
    from penstock.apps.host.probe import BLOCKED, NotHealthy, probe

    probed = probe(path)
    if probed.state == BLOCKED and not live:
        raise NotHealthy(f"socket {path}: the agent's sink does not accept data: {probed.reason}")
    if probed.state not in ("serving", BLOCKED):
        raise NotHealthy(f"socket {path}: the agent is {probed.state}: {probed.reason}")
    if current().json:
        write_json(_facts(probed))
    else:
        click.echo(f"healthy, answered in {probed.answer_ms:.1f} ms")


@click.command("status", short_help="Show the state of an agent.")
@socket_option
@click.option(
    "--http", metavar="HOST:PORT", envvar="PENSTOCK_HOST_HTTP_LISTENER",
    help="Query the agent's HTTP front, which reports more than its socket"
    " (PENSTOCK_HOST_HTTP_LISTENER); https://HOST:PORT if it has TLS. Default: query the"
    " socket.",
)  # fmt: skip
@output_option
def status(state: State, path: str, http: str | None) -> None:
    """Show an agent's state, and with --http its connections, credit and producers.

    The credentials of PENSTOCK_CLIENT_CONFIG are sent to an HTTP front with TLS; without TLS they
    are sent only to this machine.
    """
    if http:
        found = _ask(state, http)
        if state.json:
            write_json(found)
        else:
            _show(found)
        return
    from penstock.apps.host.probe import probe

    show_facts(state, _facts(probe(path)), ("fact", "value"))


def _facts(probed: Probed) -> dict[str, object]:
    return {
        "socket": probed.path,
        "state": probed.state,
        "reason": probed.reason,
        "connect_ms": round(probed.connect_ms, 3),
        "answer_ms": round(probed.answer_ms, 3),
    }


def _ask(state: State, address: str) -> dict[str, Any]:
    from penstock.apps.client.admin import admin_url, ask_admin
    from penstock.apps.host.probe import NotHealthy
    from penstock.client.errors import AdminUnavailable, InvalidArgument

    url = f"{admin_url(address)}/v1/status"
    try:
        answer = ask_admin(state, address, "/v1/status", timeout_seconds=HTTP_SECONDS)
    except (InvalidArgument, AdminUnavailable) as error:
        raise NotHealthy(f"{url}: {error.__cause__ or error}") from None
    if answer.status != HTTPStatus.OK or not answer.body:
        said = f": {answer.message}" if answer.error else ""
        raise NotHealthy(f"{url}: {answer.status} {answer.reason}{said}")
    return dict(answer.body)


def _bytes_and_chunks(sizes: dict[str, int]) -> str:
    return f"{counted(sizes['bytes'], 'byte')}, {counted(sizes['chunks'], 'chunk')}"


def _show(found: dict[str, Any]) -> None:
    connections, credit = found["connections"], found["credit"]
    rows = [
        ("state", found["state"]),
        ("socket", found["socket"]),
        ("sink", f"{found['sink']['name']}, holds {found['sink']['retained_bytes']} bytes"),
        ("sink accepts", found["sink"]["trouble"] or "yes"),
        ("connections", f"{connections['open']} of {connections['max']}"),
        ("credit", f"{credit['granted_bytes']} of {credit['total_bytes']} bytes granted"),
        ("in use", _bytes_and_chunks(credit["in_use"])),
        ("accepted", _bytes_and_chunks(found["accepted"])),
        ("failed frames", found["failed_frames"]),
        ("overdrafts", found["overdrafts"]),
        ("violations", found["violations"]),
        ("lost frames", found["lost_frames"]),
    ]
    if found["drain_left_ms"] is not None:
        rows.insert(1, ("drain ends in", f"{found['drain_left_ms']} ms"))
    write_table(("fact", "value"), rows)
    columns = ("producer_id", "name", "state", "frames_in_flight", "accepted_chunks")
    write_table(
        columns,
        [[item[name] for name in columns] for item in found["producers"]],
        title="Producers",
    )
