"""Settings of the schema registry."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.http_listener import parse_address
from penstock.base.settings import INT_MAX, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """Settings of the schema registry that a broker serves."""

    registry_enable: bool = setting(
        False, "Serve the schema registry at registry.listener, with Confluent's HTTP interface."
    )  # fmt: skip
    registry_listener: str = setting(
        "127.0.0.1:8081", "host:port of the schema registry; port 0 picks a free port."
    )  # fmt: skip
    registry_security_protocol: str = setting(
        "", "Protocol of the schema registry: PLAINTEXT, or SSL, which encrypts it."
        " listener.name.registry.… has its certificate. Empty means that of"
        " admin.security.protocol.",
        choices=("", "PLAINTEXT", "SSL"),
    )  # fmt: skip
    registry_max_connections: int = setting(
        512, "Maximum number of concurrent requests of the schema registry. Further ones get"
        " status 503.", 1, INT_MAX,
    )  # fmt: skip

    def __post_init__(self) -> None:
        parse_address(self.registry_listener, setting="registry.listener")
