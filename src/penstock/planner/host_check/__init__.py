"""Host check: finds the first layer of a host that is too small for its load.

    HostFacts (read by the caller) + settings + inputs ──> layers, outermost first ──> Plan

A layer is one resource on a packet's or request's path through the host, such as a socket buffer or
a disk. A chain is the sequence of layers of one path. The caller reads the facts; this package only
has values and rules. It changes nothing on the host: a fix is a command line or a sentence.
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
