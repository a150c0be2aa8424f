"""What is wanted of a host. Where 0 stands, Penstock's own settings decide.

The defaults of the receive path are Aeron's: a window of 128 KiB, a term of 16 MiB, datagrams of
1408 bytes. Stall and packet rate together are what rings and backlogs must hold: a scheduler may
keep a receiver off its CPU for about 10 ms.

Source: receive-path sizing (Aeron's constraints A, B and C); Aeron: Configuration.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.planner.errors import ImpossiblePlan
from penstock.planner.receive_path.chain import SOCKET_HEADROOM, B, C
from penstock.planner.receive_path.limits import (
    MTU_DEFAULT_BYTES,
    MTU_MAX_BYTES,
    SOCKET_BUFFER_MAX_BYTES,
    TERM_DEFAULT_BYTES,
    TERM_MAX_BYTES,
    TERM_MIN_BYTES,
    WINDOW_DEFAULT_BYTES,
    WINDOW_MAX_BYTES,
)
from penstock.planner.results import changed_rows

CHAIN_WORDS: Final = ("receive-path", "broker", "agent")
_OWN_CHAINS: Final = ("broker", "agent")
_RECEIVE_INPUTS: Final = ("window", "term", "mtu", "so-rcvbuf", "stall", "packet-rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHostInputs:
    """What the layers of a host are measured against.

    Raises:
        ImpossiblePlan: no host can serve these: a window below the MTU, or above the buffer.
    """

    chains: tuple[str, ...] = setting(
        (),
        name="chains",
        doc="What of the host counts: the receive path of Aeron's datagrams, a broker, a host"
        " agent. Without it broker and agent, and the receive path where one of its inputs is"
        " given.",
        choices=CHAIN_WORDS,
    )
    window_bytes: int = setting(
        WINDOW_DEFAULT_BYTES,
        name="window",
        doc="Bytes that a sender may have in flight.",
        unit="bytes",
        minimum=1,
        maximum=WINDOW_MAX_BYTES,
    )
    term_bytes: int = setting(
        TERM_DEFAULT_BYTES,
        name="term",
        doc="Length of a term buffer; the window is at most half of it.",
        unit="bytes",
        minimum=TERM_MIN_BYTES,
        maximum=TERM_MAX_BYTES,
    )
    mtu_bytes: int = setting(
        MTU_DEFAULT_BYTES,
        name="mtu",
        doc="Longest datagram, without the headers of UDP and IP.",
        unit="bytes",
        minimum=32,
        maximum=MTU_MAX_BYTES,
    )
    so_rcvbuf_bytes: int = setting(
        0,
        name="so-rcvbuf",
        doc=f"SO_RCVBUF that the receiver asks for; 0 is {SOCKET_HEADROOM} windows.",
        unit="bytes",
        minimum=0,
        maximum=SOCKET_BUFFER_MAX_BYTES,
    )
    stall_ms: float = setting(
        10.0,
        name="stall",
        doc="Longest time that the receiver's CPU is away.",
        unit="ms",
        minimum=0,
        maximum=60_000,
    )
    packets_per_second: float = setting(
        100_000.0,
        name="packet-rate",
        doc="Packets that come in, at worst.",
        unit="packets/s",
        minimum=0,
        maximum=1e9,
    )
    connections: int = setting(
        0,
        name="connections",
        doc="Kafka connections at a time; 0 is the broker's max.connections.",
        minimum=0,
        maximum=INT_MAX,
    )
    producers: int = setting(
        0,
        name="producers",
        doc="Connections of the host agent at a time; 0 is its host.connections.max.",
        minimum=0,
        maximum=65_536,
    )
    sync_ms: float = setting(
        0.0,
        name="sync-latency",
        doc=(
            "Longest median of a sync of the data directory; 0 follows log.flush.policy: the"
            " interval in which an object of a local store gathers for `group`,"
            " log.flush.interval.ms for `interval`, log.checkpoint.interval.ms for `os`."
        ),
        unit="ms",
        minimum=0,
        maximum=3_600_000,
    )
    broker_memory_bytes: int = setting(
        0,
        name="broker-memory",
        doc="Memory that the broker needs; 0 is the sum of its configured buffers.",
        unit="bytes",
        minimum=0,
        maximum=LONG_MAX,
    )
    agent_memory_bytes: int = setting(
        0,
        name="agent-memory",
        doc="Memory that the host agent needs; 0 is the sum of its configured buffers.",
        unit="bytes",
        minimum=0,
        maximum=LONG_MAX,
    )
    clock_error_ms: float = setting(
        2_000.0,
        name="clock-error",
        doc="Largest error of the clock, as its discipline estimates it.",
        unit="ms",
        minimum=0,
        maximum=86_400_000,
    )

    def __post_init__(self) -> None:
        if self.window_bytes < self.mtu_bytes:
            raise ImpossiblePlan(
                B,
                f"the window of {self.window_bytes} bytes is below the MTU of {self.mtu_bytes}",
                f"give --window {self.mtu_bytes} or more, or a smaller --mtu",
            )
        if self.receive_buffer_bytes < self.window_bytes:
            raise ImpossiblePlan(
                C,
                f"SO_RCVBUF of {self.so_rcvbuf_bytes} bytes is below the window of"
                f" {self.window_bytes}",
                f"give --so-rcvbuf {self.window_bytes} or more, or a smaller --window",
            )

    @property
    def counted(self) -> tuple[str, ...]:
        """The chains that count."""
        given = {name for name, *_ in changed_rows(self)}
        asked = ("receive-path",) if given.intersection(_RECEIVE_INPUTS) else ()
        return self.chains or (*asked, *_OWN_CHAINS)

    @property
    def receive_buffer_bytes(self) -> int:
        """SO_RCVBUF that is asked for."""
        return self.so_rcvbuf_bytes or SOCKET_HEADROOM * self.window_bytes

    @property
    def stalled_packets(self) -> float:
        """Packets that come in during a stall."""
        return self.packets_per_second * self.stall_ms / 1000
