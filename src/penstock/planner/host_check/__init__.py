"""Host check: finds the layer of a host that breaks the chain first.

    HostFacts (read elsewhere) + settings + inputs ──> layers, outermost first ──> Plan

The caller reads the facts; this package has only values and rules. It changes nothing: a fix is
a text.
"""

from penstock.planner.host_check.check import check_host, host_layers
from penstock.planner.host_check.inputs import (
    CHAIN_WORDS,
    UNLIMITED,
    BrokerSide,
    BufferOption,
    CheckHostInputs,
    ClockState,
    Configured,
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
from penstock.planner.host_check.layers import AGENT, BROKER, CHAINS, RECEIVE, Layer, first_broken

__all__ = [
    "AGENT", "BROKER", "CHAINS", "CHAIN_WORDS", "RECEIVE", "UNLIMITED", "BrokerSide",
    "BufferOption", "CheckHostInputs", "ClockState", "Configured", "ControlGroup", "Datagrams",
    "Disk", "Grant", "HostFacts", "Interface", "Layer", "Memory", "ProcessLimits", "Processors",
    "SocketKind", "Softirq", "check_host", "first_broken", "host_layers",
]  # fmt: skip
