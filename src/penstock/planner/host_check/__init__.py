"""`plan check-host`: which layer of a host breaks the chain first.

    HostFacts (read elsewhere) + settings + what is wanted ──> layers, outermost first ──> Plan

The reading is done by the caller; here are only values and rules. Nothing is ever changed: a fix
is a text.
"""

from penstock.planner.host_check.check import check_host, host_layers
from penstock.planner.host_check.facts import (
    UNLIMITED,
    BufferOption,
    ClockState,
    ControlGroup,
    Datagrams,
    Disk,
    Grant,
    HostFacts,
    Interface,
    Memory,
    ProcessLimits,
    Processors,
    SocketKind,
    Softirq,
)
from penstock.planner.host_check.inputs import CHAIN_WORDS, BrokerSide, CheckHostInputs, Configured
from penstock.planner.host_check.layers import AGENT, BROKER, CHAINS, RECEIVE, Layer, first_broken

__all__ = [
    "AGENT",
    "BROKER",
    "CHAINS",
    "CHAIN_WORDS",
    "RECEIVE",
    "UNLIMITED",
    "BrokerSide",
    "BufferOption",
    "CheckHostInputs",
    "ClockState",
    "Configured",
    "ControlGroup",
    "Datagrams",
    "Disk",
    "Grant",
    "HostFacts",
    "Interface",
    "Layer",
    "Memory",
    "ProcessLimits",
    "Processors",
    "SocketKind",
    "Softirq",
    "check_host",
    "first_broken",
    "host_layers",
]
