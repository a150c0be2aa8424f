"""Settings of the host agent.

The names are Penstock's own, because Kafka has no such agent; only `bootstrap.servers` is Kafka's.
The configuration reference is generated from these declarations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.host import errors
from penstock.host.credits import Credit
from penstock.security.listeners.files import ListenerSettings

SINKS: Final = ("null", "memory", "outbox", "log")
DEFAULT_SOCKET: Final = "/var/run/penstock/host.sock"
_MODE: Final = re.compile(r"0?o?[0-7]{3}")

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings of a host agent; a change requires a restart."""

    PREFIX: ClassVar = "host."

    socket_path: str = setting(DEFAULT_SOCKET, "Path of the socket file, at most 107 bytes.")
    socket_mode: str = setting(
        "0660", "Permissions of the socket file, in octal. Users with write permission may connect."
    )
    socket_group: str = setting(
        "", "Group of the socket file, by name or number; the agent must be in it. Empty means"
        " the agent's own group.",
    )  # fmt: skip
    acl_file: str = setting(
        "", "File of access rules: which processes, by user and group, and which HTTP clients"
        " may publish to which topics. It is read again when it changes. Empty lets every"
        " process that can connect publish to all topics.",
    )  # fmt: skip
    directory_mode: str = setting(
        "0770", "Permissions of the socket's directory, in octal, if the agent creates it.",
        name="host.socket.directory.mode",
    )  # fmt: skip
    socket_takeover: bool = setting(
        False, "Whether a starting agent replaces another agent at its socket path. Connections"
        " of the replaced agent stay open until it is stopped. If false, an agent does not"
        " start while another one listens. With true on both agents, they can also share"
        " the port of the HTTP front.",
    )  # fmt: skip
    socket_buffer_bytes: int = setting(
        256 << 10, "Size of the kernel's buffer for answers to one producer, capped by"
        " net.core.wmem_max. The producer's own buffer bounds the bytes that it sends"
        " before the agent reads them.",
        4096, INT_MAX // 2,
    )  # fmt: skip
    frame_max_bytes: int = setting(
        8 * _MIB, "Maximum size of a frame with header and payload. A longer frame ends its"
        " connection.", 65_536,
        INT_MAX,
    )  # fmt: skip
    queued_max_bytes: int = setting(
        256 * _MIB, "Maximum received bytes of unfinished frames of all connections. Above it,"
        " the agent reads only the oldest unfinished frame.", 65_536, LONG_MAX,
    )  # fmt: skip
    credit_chunks: int = setting(
        65_536, "Maximum number of unanswered chunks of one connection.", 1, INT_MAX
    )
    credit_events: int = setting(
        16_777_216, "Maximum number of unanswered events of one connection.", 1, LONG_MAX
    )
    credit_bytes: int = setting(
        16 * _MIB, "Maximum unanswered payload bytes of one connection.", 1024, LONG_MAX
    )
    credit_total_bytes: int = setting(
        512 * _MIB, "Maximum unanswered payload bytes of all connections together. Each"
        " connection gets credit for at least one frame; more is granted only out of this"
        " total. The log and outbox sinks hold at most this total, and fail further frames"
        " as retryable.", 65_536, LONG_MAX,
    )  # fmt: skip
    connections_max: int = setting(
        1024, "Maximum number of connections. Further ones are rejected with a reason.", 1, 65_536
    )
    idle_timeout_ms: int = setting(
        30_000, "Time after which a connection that has sent nothing is closed.", 100, INT_MAX
    )
    ping_interval_ms: int = setting(
        10_000, "Time after which a quiet connection is sent a PING.", 50, INT_MAX
    )
    drain_timeout_ms: int = setting(
        20_000, "Time that a stopping agent waits for unanswered frames. The supervisor's own"
        " limit must be longer.", 0, 3_600_000,
    )  # fmt: skip
    retry_after_ms: int = setting(
        100, "Pause that the agent requests from a producer that exceeded its credit.", 0, INT_MAX
    )
    ring_max_bytes: int = setting(
        64 * _MIB, "Maximum size of a producer's ring of shared memory. 0 disables rings.", 0,
        INT_MAX,
    )  # fmt: skip
    http_listener: str = setting(
        "", "Address of the HTTP front as host:port. Empty disables it; port 0 chooses a free port."
    )
    http_hosts: tuple[str, ...] = setting(
        (), "Host names by which clients may address the HTTP front if there is no"
        " host.acl.file. IP addresses, localhost, the host's own name and the host of"
        " host.http.listener are always allowed.",
    )  # fmt: skip
    http_topic: str = setting("", "Topic of HTTP requests that name no topic.")
    http_body_max_bytes: int = setting(
        8 * _MIB, "Maximum size of a body of the HTTP front. A larger one is answered with 413.", 1,
        INT_MAX,
    )  # fmt: skip
    http_timeout_ms: int = setting(
        10_000, "Maximum time that the sink has for a complete HTTP request. After it the answer"
        " is 503, but the sink may still accept the body.", 100, INT_MAX,
    )  # fmt: skip
    http_max_connections: int = setting(
        256, "Maximum number of requests that the HTTP front handles at the same time. Further"
        " ones are answered with 503. One address of another host may have three quarters"
        " of them. Health checks are not counted.", 1, 65_536,
    )  # fmt: skip
    sink: str = setting(
        "log", "Sink of the chunks: `log` appends them to topics, `outbox` writes files and"
        " pointers, `memory` holds them until it is full, `null` drops them.", choices=SINKS,
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
        if self.credit_chunks < errors.CHUNKS_PER_FRAME_MAX:
            raise InvalidSetting(
                "host.credit.chunks",
                self.credit_chunks,
                f"must be at least {errors.CHUNKS_PER_FRAME_MAX}, the maximum chunks of one frame",
            )

    @property
    def credit(self) -> Credit:
        """Full credit of a connection; less is granted if `credit_total_bytes` is nearly used."""
        return Credit(self.credit_chunks, self.credit_events, self.credit_bytes)

    @property
    def socket_permissions(self) -> int:
        return _octal(self.socket_mode)

    @property
    def directory_permissions(self) -> int:
        return _octal(self.directory_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSecuritySettings(ListenerSettings):
    """Settings of the HTTP front's TLS, and of accepted certificates and signed tokens."""

    PREFIX: ClassVar = "host.http."

    security_protocol: str = setting(
        "PLAINTEXT", "Protocol of the HTTP front; SSL encrypts it. Without SSL, passwords and"
        " tokens of host.acl.file are accepted only from this host.", choices=("PLAINTEXT", "SSL"),
    )  # fmt: skip

    @property
    def has_tls(self) -> bool:
        return self.security_protocol == "SSL"

    @property
    def has_tokens(self) -> bool:
        """Whether signed tokens are accepted."""
        return bool(self.sasl_oauthbearer_jwks_endpoint_url) or (
            self.sasl_oauthbearer_unsecured_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Settings of the agent's sink."""

    PREFIX: ClassVar = "host."

    bootstrap_servers: str = setting(
        "127.0.0.1:9092", "Brokers to which the log sink appends, and which have the outbox"
        " sink's topic.", name="bootstrap.servers",
    )  # fmt: skip
    delivery_timeout_ms: int = setting(
        30_000, "Maximum time of the log sink for a frame. After it the frame is failed as"
        " retryable.", 100,
        INT_MAX,
    )  # fmt: skip
    memory_bytes: int = setting(
        64 * _MIB, "Maximum payload bytes that the memory sink holds. Above it frames are"
        " rejected permanently.", 1024, LONG_MAX,
    )  # fmt: skip
    outbox_partition: str = setting(
        "", "Outbox partition of all frames. Empty uses the partition with the topic's name."
    )


def _octal(text: str) -> int:
    return int(text.replace("o", ""), 8)
