"""Assembly of a host agent: its configuration, its sink and its server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.apps.process.configuration import Given, Kinds, load_all
from penstock.apps.process.wiring import audit_log
from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.metrics import Registry
from penstock.base.otlp_settings import OtlpSettings
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.host.server.settings import HostSettings, HttpSecuritySettings, SinkSettings
from penstock.outbox.settings import OutboxSettings
from penstock.security.audit import AuditSettings

if TYPE_CHECKING:
    from penstock.host.port import ChunkSink
    from penstock.host.server.agent import HostAgent
    from penstock.host.server.tracing import AgentTraces

KINDS: Final[Kinds] = (
    HostSettings,
    HttpSecuritySettings,
    SinkSettings,
    OutboxSettings,
    AuditSettings,
    OtlpSettings,
)


class SinkIncomplete(InvalidError):
    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfiguration:
    """Configuration of an agent process."""

    host: HostSettings
    http_security: HttpSecuritySettings
    sink: SinkSettings
    outbox: OutboxSettings
    audit: AuditSettings
    otlp: OtlpSettings


def configure_host(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, Given],
) -> HostConfiguration:
    """Build the configuration of an agent from all sources.

    Raises:
        InvalidConfiguration: the file cannot be read, a name is unknown, or a value is not allowed.
    """
    loaded, _ = load_all(KINDS, file=file, environment=environment, flags=flags)
    return HostConfiguration(
        host=loaded[HostSettings],
        http_security=loaded[HttpSecuritySettings],
        sink=loaded[SinkSettings],
        outbox=loaded[OutboxSettings],
        audit=loaded[AuditSettings],
        otlp=loaded[OtlpSettings],
    )


def build_agent(configuration: HostConfiguration) -> HostAgent:
    """Create an agent with the configured sink, without starting it.

    Raises:
        SinkIncomplete: a setting that the sink requires is missing.
        RulesUnusable, AuditFileUnusable: a configured file cannot be used.
        InvalidError: the brokers' addresses are invalid.
    """
    from penstock.host.server.agent import HostAgent

    if configuration.audit.topic:
        raise InvalidSetting(
            "audit.topic",
            configuration.audit.topic,
            "must be empty, since only brokers write audit lines to a topic",
        )
    registry = Registry()
    sink = _SINKS[configuration.host.sink](configuration)
    audit = audit_log(configuration.audit, registry, {"agent": configuration.host.socket_path})
    return HostAgent(
        configuration.host,
        sink,
        http_security=configuration.http_security,
        registry=registry,
        audit=audit,
        traces=_traces(configuration, registry),
    )


def _traces(configuration: HostConfiguration, registry: Registry) -> AgentTraces | None:
    """Return the export by OTLP; None if `otlp.endpoint` is empty."""
    if not configuration.otlp.endpoint:
        return None
    from penstock.base.otlp import OtlpExport
    from penstock.host.server.tracing import AgentTraces

    export = OtlpExport(
        configuration.otlp,
        {
            "service.name": "penstock-host-agent",
            "service.instance.id": configuration.host.socket_path,
        },
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
        registry=registry,
    )
    return AgentTraces(export, SYSTEM_CLOCK)


def _null(configuration: HostConfiguration) -> ChunkSink:
    from penstock.host.sinks.memory import NullSink

    return NullSink()


def _memory(configuration: HostConfiguration) -> ChunkSink:
    from penstock.host.sinks.memory import MemorySink

    return MemorySink(bytes_max=configuration.sink.memory_bytes, drained=False)


def _log(configuration: HostConfiguration) -> ChunkSink:
    # Imported before the socket exists: no producer waits for it, and an error appears at start.
    import penstock.kernels.record_writing  # noqa: F401
    from penstock.host.sinks.log import LogSink, LogSinkOptions

    return LogSink(
        LogSinkOptions(
            bootstrap=configuration.sink.bootstrap_servers,
            retained_bytes_max=_retained_bytes(configuration.host),
            retry_after_ms=configuration.host.retry_after_ms,
            delivery_timeout_ms=configuration.sink.delivery_timeout_ms,
        )
    )


def _outbox(configuration: HostConfiguration) -> ChunkSink:
    from penstock.apps.host.outbox import OwnedOutboxSink

    outbox = configuration.outbox
    for name, value, flag in (
        ("outbox.root", outbox.root, "--outbox-root DIRECTORY"),
        ("outbox.topic", outbox.topic, "--outbox-topic TOPIC"),
    ):
        if not value:
            raise SinkIncomplete(
                f"setting {name} is not set, and the outbox sink requires it; give {flag}"
            )
    return OwnedOutboxSink(
        outbox,
        bootstrap=configuration.sink.bootstrap_servers,
        partition_id=configuration.sink.outbox_partition or None,
        retained_bytes_max=_retained_bytes(configuration.host),
        retry_after_ms=configuration.host.retry_after_ms,
    )


def _retained_bytes(host: HostSettings) -> int:
    """Return the bytes that producers may have unacknowledged: over connections and over HTTP."""
    return host.credit_total_bytes + host.credit_bytes


_SINKS: Final = {"null": _null, "memory": _memory, "outbox": _outbox, "log": _log}
