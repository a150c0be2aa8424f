"""`penstock host`: the agent that receives chunks from the producers of its host.

`serve` writes one line to stdout when producers can connect:

    penstock host ready socket=PATH http=HOST:PORT sink=log

SIGTERM and SIGINT begin the drain, which ends with status 0; a second signal ends it at once.
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

from penstock.apps.lazy_group import LazyGroup
from penstock.apps.session import (
    State,
    counted,
    current,
    output_option,
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
    """Give a command `--socket`."""
    return click.option(
        "--socket", "path", metavar="PATH", envvar="PENSTOCK_HOST_SOCKET_PATH",
        default=DEFAULT_SOCKET, show_default=True,
        help="The agent's socket file (PENSTOCK_HOST_SOCKET_PATH).",
    )(command)  # fmt: skip


# serve


@click.command("serve", short_help="Run an agent.")
@click.option(
    "--config", "file", type=click.Path(path_type=Path), help="TOML file with the settings."
)
@click.option("--socket", "path", metavar="PATH", help="The socket file (host.socket.path).")
@click.option(
    "--sink", type=click.Choice(("null", "memory", "outbox", "log")),
    help="Destination of chunks (host.sink).",
)  # fmt: skip
@click.option("-b", "--bootstrap", metavar="HOST:PORT,…", help="Brokers (bootstrap.servers).")
@click.option("--outbox-root", metavar="PATH", help="Directory of the outbox (outbox.root).")
@click.option("--outbox-topic", metavar="TOPIC", help="Topic of its pointers (outbox.topic).")
@click.option("--http", metavar="HOST:PORT", help="HTTP front (host.http.listener); port 0: any.")
@click.option(
    "--takeover", is_flag=True,
    help="Replace an agent that still serves this path (host.socket.takeover).",
)  # fmt: skip
@click.option("-X", "overrides", multiple=True, metavar="KEY=VALUE", help="Any setting by name.")
@click.option(
    "--log-format", type=click.Choice(("text", "json")), default="text", help="Format of log lines."
)
@click.option(
    "--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="warning",
    show_default=True,
)  # fmt: skip
def serve(
    file: Path | None,
    overrides: tuple[str, ...],
    takeover: bool,
    log_format: str,
    log_level: str,
    **given: str | None,
) -> None:
    """Run an agent until SIGTERM or SIGINT, then drain.

    A flag overrides the environment (PENSTOCK_HOST_DRAIN_TIMEOUT_MS), which overrides the file,
    which overrides the default.
    """
    from penstock.apps.configuration import Given, misspelt, parse_override
    from penstock.apps.daemon import set_up
    from penstock.apps.host.wiring import KINDS, configure_host

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
    """Serve until a signal arrives.

    Raises:
        PenstockError: the agent cannot start.
    """
    import uvloop

    uvloop.run(_serve(configuration))


async def _serve(configuration: HostConfiguration) -> None:
    from penstock.apps.daemon import (
        COLLECT_AFTER_OBJECTS,
        notify_ready,
        notify_stopping,
        stop_event,
    )
    from penstock.apps.host.wiring import build_agent
    from penstock.apps.wiring import PortUnavailable, address

    stop = stop_event()
    agent = build_agent(configuration)
    settings = configuration.host
    try:
        await agent.start()
    except OSError as error:
        raise PortUnavailable(
            f"cannot listen on {settings.http_listener}: {error.strerror or error};"
            " choose another with --http HOST:PORT (port 0: any)"
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
"""What a stop may take beyond the drain: the sink's last word, and the last answers."""


# health and status


@click.command("health", short_help=_HEALTH)
@socket_option
@click.option(
    "--live", is_flag=True,
    help="Do not ask for the sink: a restart of the agent does not bring back what that stands on.",
)  # fmt: skip
def health(path: str, live: bool) -> None:
    """Connect to the agent and PING it: status 0 if it accepts producers and its sink accepts.

    Status 1 otherwise, within a second. The sink's state is a few seconds old at most.
    """
    from penstock.apps.host.probe import BLOCKED, NotHealthy, probe

    probed = probe(path)
    if probed.state == BLOCKED and not live:
        raise NotHealthy(f"socket {path}: the agent's sink does not accept: {probed.reason}")
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
    help="Ask the HTTP front, which knows more (PENSTOCK_HOST_HTTP_LISTENER); https://HOST:PORT"
    " where it has TLS.",
)  # fmt: skip
@output_option
def status(state: State, path: str, http: str | None) -> None:
    """Show an agent's state, connections, credit and producers.

    The credentials of PENSTOCK_CLIENT_CONFIG are sent to an HTTP front over TLS, and without TLS on
    this machine alone.
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
    from penstock.apps.admin import admin_url, ask_admin
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
