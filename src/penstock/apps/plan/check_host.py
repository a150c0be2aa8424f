"""Commands `penstock plan check-host` and `penstock plan receive-path`.

The first finds the layer of this host that saturates first. The second sizes the path from a
network interface to an application. `host_reading` reads the host, and `planner.host_check`
evaluates it; this file adds the settings of a broker and of a host agent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from penstock.apps.client.session import State, default_option, path_option
from penstock.apps.plan.output import plan_inputs
from penstock.base.settings import describe
from penstock.broker.configuration.settings import BrokerSettings
from penstock.planner.host_check import BrokerSide, CheckHostInputs, Configured, check_host
from penstock.planner.host_check.check import producer_buffer_bytes
from penstock.planner.receive_path import ReceivePathInputs, plan_receive_path
from penstock.planner.results import Plan

SYNC_ROUNDS: Final = 100
SYNC_ROUNDS_MAX: Final = 1_000


@click.command("check-host")
@path_option(
    "--config file",
    "TOML file with a broker's settings, as for penstock serve; the environment is read too.",
)
@path_option(
    "--agent-config", "TOML file with a host agent's settings, as for penstock host serve."
)
@path_option("--data-dir", "Directory in which syncs are timed. [default: log.dirs]")
@default_option(
    "--sync-rounds", SYNC_ROUNDS,
    "Number of syncs of 4 KiB to time, in a temporary file without a name; 0 writes nothing.",
    click.IntRange(0, SYNC_ROUNDS_MAX),
)  # fmt: skip
@click.option(
    "--interface",
    default="",
    help="Network interface to check. [default: that of the default route]",
)
@click.option(
    "--pid", type=click.IntRange(min=1),
    help="Id of the process whose limits and control group are checked. [default: this command]",
)  # fmt: skip
@click.option(
    "--root", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("/"),
    help="Directory with the host's proc and sys, for a container that mounts them. [default: /]",
)  # fmt: skip
@plan_inputs(CheckHostInputs)
def check_host_command(
    state: State,
    inputs: CheckHostInputs,
    *,
    file: Path | None,
    agent_config: Path | None,
    data_dir: Path | None,
    sync_rounds: int,
    interface: str,
    pid: int | None,
    root: Path,
) -> Plan:
    """Report which layer of this host fails first, and the commands that fix it.

    Nothing is changed: the commands are printed, not run. The settings are those with which a
    broker and a host agent would start. Exits with status 1 if a layer fails.
    """
    from penstock.apps.host.wiring import configure_host
    from penstock.apps.host_reading import Reading, Request, read_host
    from penstock.apps.process.configuration import configure

    broker = configure(file=file, environment=os.environ, flags={})
    configured = Configured(
        broker=broker_side(broker.broker),
        storage=broker.storage,
        diskless=broker.diskless,
        fetching=broker.fetching,
        agent=configure_host(file=agent_config, flags={}).host,
    )
    requests = [
        Request("udp", "SO_RCVBUF", inputs.receive_buffer_bytes),
        Request("tcp", "SO_RCVBUF", configured.broker.receive_buffer_bytes),
        Request("tcp", "SO_SNDBUF", configured.broker.send_buffer_bytes),
        Request("unix", "SO_SNDBUF", configured.agent.socket_buffer_bytes),
        Request("unix", "SO_SNDBUF", producer_buffer_bytes()),
    ]
    facts = read_host(
        Reading(
            data_directory=data_dir or broker.directory,
            root=root,
            process=str(pid or "self"),
            interface=interface,
            socket_path=configured.agent.socket_path,
            sync_rounds=sync_rounds,
            requests=tuple([request for request in requests if request.asked_bytes >= 0]),
        )
    )
    return check_host(facts, configured, inputs)


def broker_side(settings: BrokerSettings) -> BrokerSide:
    """Return the broker's settings that limits of its host must allow, such as buffer sizes."""
    return BrokerSide(
        max_connections=settings.max_connections,
        admin_max_connections=settings.admin_max_connections,
        listen_backlog=settings.socket_listen_backlog_size,
        receive_buffer_bytes=settings.socket_receive_buffer_bytes,
        send_buffer_bytes=settings.socket_send_buffer_bytes,
        queued_request_bytes=settings.queued_max_request_bytes,
        segment_bytes=settings.log_segment_bytes,
    )


_SOCKET_FIELDS: Final = ("socket_receive_buffer_bytes", "socket_send_buffer_bytes")


@click.command("receive-path")
@plan_inputs(ReceivePathInputs)
def receive_path(state: State, inputs: ReceivePathInputs) -> Plan:
    """Size windows, socket buffers, rings and timers of a receive path.

    Sizes that are not given are computed. Given sizes (window, term, so-rcvbuf, so-sndbuf,
    rmem-max, ring-entries) are checked as the driver and the kernel would check them.
    """
    names = {info.attribute: info.name for info in describe(BrokerSettings)}
    receive, send = [names[socket_field] for socket_field in _SOCKET_FIELDS]
    return plan_receive_path(inputs, (receive, send))
