"""`penstock plan receive-path`: sizes the path from a network interface to an application."""

from __future__ import annotations

from typing import Final

import click

from penstock.apps.plan.output import plan_inputs
from penstock.apps.session import State
from penstock.base.settings import describe
from penstock.broker.settings import BrokerSettings
from penstock.planner.receive_path import ReceivePathInputs, plan_receive_path
from penstock.planner.results import Plan

_SOCKET_FIELDS: Final = ("socket_receive_buffer_bytes", "socket_send_buffer_bytes")


@click.command("receive-path")
@plan_inputs(ReceivePathInputs)
def receive_path(state: State, inputs: ReceivePathInputs) -> Plan:
    """Size windows, socket buffers, rings and timers of a receive path.

    Omitted sizes are planned; given sizes (window, term, so-rcvbuf, so-sndbuf, rmem-max,
    ring-entries) are judged as the driver and the kernel would judge them.
    """
    names = {info.attribute: info.name for info in describe(BrokerSettings)}
    receive, send = [names[socket_field] for socket_field in _SOCKET_FIELDS]
    return plan_receive_path(inputs, (receive, send))
