"""What the layers of the receive path are: names, formulas, sources.

Source: The Four Receive-Path Buffers; Aeron: Configuration.java; ENA driver best practices;
socket(7), udp(7); the kernel's `net_sysctl` and networking/scaling.
"""

from __future__ import annotations

from typing import Final

from penstock.planner.host_check.layers import RECEIVE, Rule
from penstock.planner.receive_path.sources import ARTICLE, CONFIGURATION

SIZING: Final = f"{ARTICLE} (receive-path sizing)"

LINK: Final = Rule(
    name="mtu_bytes", label="link MTU", chain=RECEIVE, unit="bytes", setting="ip link mtu",
    formula="mtu + 28 bytes of IP and UDP headers", short="warn",
    source=f"{SIZING}, MTU; RFC 791, fragmentation",
)  # fmt: skip
SPEED: Final = Rule(
    name="link_bits_per_second", label="link speed", chain=RECEIVE, unit="bit/s", short="warn",
    formula="packet-rate × (mtu + 28 + 38 bytes on the wire) × 8", source="IEEE 802.3 framing",
)  # fmt: skip
ALLOWANCE: Final = Rule(
    name="allowance_exceeded_packets", label="instance allowance", chain=RECEIVE, unit="packets",
    formula="…_allowance_exceeded of ethtool -S", source=f"{SIZING}, PPS; ENA driver", short="warn",
)  # fmt: skip
RING: Final = Rule(
    name="rx_ring_entries", label="NIC receive ring", chain=RECEIVE, unit="entries",
    setting="ethtool -G rx", formula="packet-rate × stall",
    reading="descriptors of the ring",
    source=f"{SIZING}, stall survival ≈ ring entries ÷ packet rate",
)  # fmt: skip
SURVIVAL: Final = Rule(
    name="ring_survival_ms", label="stall that the ring bridges", chain=RECEIVE, unit="ms",
    formula="entries ÷ packet-rate", source=f"{SIZING}, stall survival",
)  # fmt: skip
OVERRUNS: Final = Rule(
    name="nic_dropped_packets", label="NIC drops", chain=RECEIVE, unit="packets", short="warn",
    formula="rx_overruns, rx_missed_errors, rx_fifo_errors and the like",
    source=f"{SIZING}, rx_overruns; sysfs statistics",
)  # fmt: skip
QUEUES: Final = Rule(
    name="rx_queues", label="receive queues", chain=RECEIVE, setting="ethtool -L combined",
    formula="min(queues of the NIC, CPUs)", short="note",
    source=f"{SIZING}: RSS hashes each flow to one queue",
)  # fmt: skip
BACKLOG: Final = Rule(
    name="softirq_backlog_packets", label="softirq backlog", chain=RECEIVE, unit="packets",
    setting="net.core.netdev_max_backlog", short="warn", formula="packet-rate × stall",
    source="Linux: net_sysctl, netdev_max_backlog; networking/scaling",
)  # fmt: skip
SOFTIRQ: Final = Rule(
    name="softirq_dropped_packets", label="softirq drops", chain=RECEIVE, unit="packets",
    formula="second column of /proc/net/softnet_stat, all CPUs", source="Linux: softnet_stat",
    short="warn",
)  # fmt: skip
SQUEEZED: Final = Rule(
    name="softirq_squeezed_ratio", label="softirq turns cut short", chain=RECEIVE, short="note",
    formula="a thousandth", most=True,
    reading="third column of /proc/net/softnet_stat ÷ the first",
    source="Linux: softnet_stat, net_sysctl, netdev_budget",
)  # fmt: skip
UDP_MEMORY: Final = Rule(
    name="udp_memory_bytes", label="memory of UDP sockets", chain=RECEIVE, unit="bytes",
    setting="net.ipv4.udp_mem", formula="2 × SO_RCVBUF",
    reading="third number of udp_mem × page size",
    source="Linux: ip-sysctl, udp_mem",
)  # fmt: skip
SEND: Final = Rule(
    name="udp_send_buffer_bytes", label="ceiling of send buffers", chain=RECEIVE, unit="bytes",
    setting="net.core.wmem_max", formula="mtu", source=f"{SIZING}, SO_SNDBUF ≥ MTU",
)  # fmt: skip
CAP: Final = Rule(
    name="rmem_max_bytes", label="ceiling of socket buffers", chain=RECEIVE, unit="bytes",
    setting="net.core.rmem_max", formula="SO_RCVBUF",
    reading="a ceiling; a larger request is cut to it without an error",
    source=f"{SIZING}, the one gap that a driver cannot close; socket(7)",
)  # fmt: skip
BUFFER: Final = Rule(
    name="udp_receive_buffer_bytes", label="socket buffer as granted", chain=RECEIVE, unit="bytes",
    setting="aeron.socket.so_rcvbuf",
    formula="window", reading="min(SO_RCVBUF, rmem_max), what the kernel reports ÷ 2",
    source=f"{SIZING}, constraint C; socket(7): the kernel doubles the value",
)  # fmt: skip
DEFAULT: Final = Rule(
    name="default_receive_buffer_bytes", label="buffer of a socket that does not ask",
    chain=RECEIVE, unit="bytes", setting="net.core.rmem_default", formula="window", short="note",
    reading="rmem_default ÷ 2: it counts the kernel's bookkeeping along",
    source=f"{SIZING}, constraint C with the default of the system; socket(7)",
)  # fmt: skip
ERRORS: Final = Rule(
    name="udp_buffer_errors_packets", label="full socket buffers", chain=RECEIVE, unit="packets",
    formula="RcvbufErrors + MemErrors of /proc/net/snmp", short="warn",
    source=f"{SIZING}, RcvbufErrors; udp(7)",
)  # fmt: skip
TERM: Final = Rule(
    name="term_bytes", label="term buffer", chain=RECEIVE, unit="bytes", short="warn",
    setting="aeron.term.buffer.length", formula="2 × window",
    reading="the window is min(window, term ÷ 2)",
    source=f"{SIZING}, constraint A; {CONFIGURATION}, receiverWindowLength()",
)  # fmt: skip
CACHE: Final = Rule(
    name="cache_bytes", label="last-level cache", chain=RECEIVE, unit="bytes", short="note",
    formula="SO_RCVBUF + window: what lies between kernel and reader",
    source=f"{SIZING}, cache fit",
)  # fmt: skip
