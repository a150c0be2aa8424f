"""The host agent's settings.

Penstock's own names, since Kafka has no such agent; `bootstrap.servers` is Kafka's. The
configuration reference is made from these declarations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.host import limits
from penstock.host.credits import Credit
from penstock.security.listeners.settings import ListenerSettings

SINKS: Final = ("null", "memory", "outbox", "log")
DEFAULT_SOCKET: Final = "/var/run/penstock/host.sock"
_MODE: Final = re.compile(r"0?o?[0-7]{3}")

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings of a host agent; a change requires a restart."""

    PREFIX: ClassVar = "host."

    socket_path: str = setting(DEFAULT_SOCKET, "Path of the socket file; at most 107 bytes.")
    socket_mode: str = setting(
        "0660", "Permissions of the socket file, in octal: who may write to it may publish."
    )
    socket_group: str = setting(
        "", "Group of the socket file, by name or number, which the agent must be in; empty is the"
        " agent's own.",
    )  # fmt: skip
    acl_file: str = setting(
        "", "File of rules: which processes, by user and group, and which HTTP clients may publish"
        " to which topics. It is read again when it changes. Empty lets everybody publish who can"
        " connect.",
    )  # fmt: skip
    directory_mode: str = setting(
        "0770", "Permissions of the socket's directory, in octal, where the agent has to create"
        " it.", name="host.socket.directory.mode",
    )  # fmt: skip
    socket_takeover: bool = setting(
        False, "Whether a starting agent replaces another agent at its socket path; connections of"
        " that agent stay open until it is stopped. If false, the agent then does not start. The"
        " HTTP front's port can be shared in the same way, if both agents have this setting.",
    )  # fmt: skip
    socket_buffer_bytes: int = setting(
        256 << 10, "The kernel's buffer for answers to one producer, capped by net.core.wmem_max."
        " The producer's own buffer bounds the bytes that it sends before the agent reads them.",
        4096, INT_MAX // 2,
    )  # fmt: skip
    frame_max_bytes: int = setting(
        8 * _MIB, "Longest frame, header and payload; a longer one ends its connection.", 65_536,
        INT_MAX,
    )  # fmt: skip
    queued_max_bytes: int = setting(
        256 * _MIB, "Received bytes of frames of all connections; above it, reading pauses for all"
        " but the oldest frame under way.", 65_536, LONG_MAX,
    )  # fmt: skip
    credit_chunks: int = setting(
        65_536, "Chunks that one connection may have unanswered.", 1, INT_MAX
    )
    credit_events: int = setting(
        16_777_216, "Events that one connection may have unanswered.", 1, LONG_MAX
    )
    credit_bytes: int = setting(
        16 * _MIB, "Payload bytes that one connection may have unanswered.", 1024, LONG_MAX
    )
    credit_total_bytes: int = setting(
        512 * _MIB, "Payload bytes that all connections together may have unanswered. Each gets at"
        " least one frame's worth, more only out of this total; the log and outbox sinks hold no"
        " more than it, and send back what comes beyond.", 65_536, LONG_MAX,
    )  # fmt: skip
    connections_max: int = setting(
        1024, "Connections at a time; more are refused with a reason.", 1, 65_536
    )
    idle_timeout_ms: int = setting(
        30_000, "A connection that has sent nothing for this time is closed.", 100, INT_MAX
    )
    ping_interval_ms: int = setting(
        10_000, "A connection that was quiet for so long is sent a PING.", 50, INT_MAX
    )
    drain_timeout_ms: int = setting(
        20_000, "Time that a stopping agent gives to what is under way; the supervisor's own limit"
        " must be longer.", 0, 3_600_000,
    )  # fmt: skip
    retry_after_ms: int = setting(
        100, "Pause asked of a producer that went beyond its credit.", 0, INT_MAX
    )
    ring_max_bytes: int = setting(
        64 * _MIB, "Largest ring of shared memory that a producer may bring; 0 turns rings off.", 0,
        INT_MAX,
    )  # fmt: skip
    http_listener: str = setting(
        "", "host:port of the HTTP front; empty turns it off, port 0 picks a free one."
    )
    http_hosts: tuple[str, ...] = setting(
        (), "Names by which the HTTP front may be asked to publish where there is no host.acl.file,"
        " beside addresses, localhost, the machine's name and the host of host.http.listener.",
    )  # fmt: skip
    http_topic: str = setting("", "Topic of HTTP requests that name none.")
    http_body_max_bytes: int = setting(
        8 * _MIB, "Largest body that the HTTP front takes; a larger one is answered 413.", 1,
        INT_MAX,
    )  # fmt: skip
    http_timeout_ms: int = setting(
        10_000, "Time that the sink has for an HTTP request whose body is there; after it the"
        " answer is 503, and what the sink has taken by then may still be accepted.", 100, INT_MAX,
    )  # fmt: skip
    http_max_connections: int = setting(
        256, "Requests that the HTTP front handles at a time; more are answered 503. One address of"
        " another machine has three quarters of them; probes come beside.", 1, 65_536,
    )  # fmt: skip
    sink: str = setting(
        "log", "Where chunks go: `log` appends them to topics, `outbox` writes files and pointers,"
        " `memory` holds them until it is full, `null` drops all.", choices=SINKS,
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name, text in (
            ("host.socket.mode", self.socket_mode),
            ("host.socket.directory.mode", self.directory_mode),
        ):
            if not _MODE.fullmatch(text):
                raise InvalidSetting(name, text, "must be three octal digits, such as 0660")
        if self.ping_interval_ms >= self.idle_timeout_ms:
            raise InvalidSetting(
                "host.ping.interval.ms",
                self.ping_interval_ms,
                f"must be below host.idle.timeout.ms, {self.idle_timeout_ms}",
            )
        if self.credit_bytes > self.credit_total_bytes:
            raise InvalidSetting(
                "host.credit.bytes",
                self.credit_bytes,
                f"must be at most host.credit.total.bytes, {self.credit_total_bytes}",
            )
        if self.credit_chunks < limits.CHUNKS_PER_FRAME_MAX:
            raise InvalidSetting(
                "host.credit.chunks",
                self.credit_chunks,
                f"must be at least {limits.CHUNKS_PER_FRAME_MAX}, the most chunks of one frame",
            )

    @property
    def credit(self) -> Credit:
        """Return the credit of a connection while there is enough for all."""
        return Credit(self.credit_chunks, self.credit_events, self.credit_bytes)

    @property
    def socket_permissions(self) -> int:
        return _octal(self.socket_mode)

    @property
    def directory_permissions(self) -> int:
        return _octal(self.directory_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSecuritySettings(ListenerSettings):
    """TLS of the HTTP front, and the certificates and signed tokens that it accepts."""

    PREFIX: ClassVar = "host.http."

    security_protocol: str = setting(
        "PLAINTEXT", "SSL encrypts the HTTP front. Without it passwords and tokens of host.acl.file"
        " count from this machine alone.", choices=("PLAINTEXT", "SSL"),
    )  # fmt: skip

    @property
    def has_tls(self) -> bool:
        return self.security_protocol == "SSL"

    @property
    def has_tokens(self) -> bool:
        """Return whether signed tokens are accepted."""
        return bool(self.sasl_oauthbearer_jwks_endpoint_url) or (
            self.sasl_oauthbearer_unsecured_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Settings of the agent's sink."""

    PREFIX: ClassVar = "host."

    bootstrap_servers: str = setting(
        "127.0.0.1:9092", "Brokers that the log sink appends to, and that have the outbox sink's"
        " topic.", name="bootstrap.servers",
    )  # fmt: skip
    delivery_timeout_ms: int = setting(
        30_000, "Time that the log sink has for a frame before it is failed as retryable.", 100,
        INT_MAX,
    )  # fmt: skip
    memory_bytes: int = setting(
        64 * _MIB, "Payload bytes that the memory sink holds; above it frames are rejected"
        " permanently.", 1024, LONG_MAX,
    )  # fmt: skip
    outbox_partition: str = setting(
        "", "Outbox partition of all frames; empty: the partition with the name of the topic."
    )


def _octal(text: str) -> int:
    return int(text.replace("o", ""), 8)
