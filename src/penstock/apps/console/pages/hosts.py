"""Pages of host agents: their state, credit, producers and rejected frames.

The HTTP front of an agent reports all of it. A socket on this machine reports only the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct, field

from penstock.apps.console.rendering import Pages
from penstock.apps.console.sources import Round, Source, Sources, bearer, get_json
from penstock.apps.console.tables import Column, Table
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import DESCRIBE, Needs
from penstock.broker.assembly import Assembly

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

STATES: Final = {"serving": "ok", "draining": "warn"}
"""Classes of the states of agents; of others, `bad`."""


class Amount(Struct, frozen=True, kw_only=True):
    chunks: int
    events: int
    bytes: int


class SinkStatus(Struct, frozen=True, kw_only=True):
    """Sink of an agent. `frames` are the frames that it has answered, by verdict."""

    name: str
    retained_bytes: int
    trouble: str
    frames: Mapping[str, int] = field(default_factory=dict)


class ConnectionsStatus(Struct, frozen=True, kw_only=True):
    open: int
    max: int
    refused: int
    with_ring: int
    denied: int = 0


class CreditStatus(Struct, frozen=True, kw_only=True):
    granted_bytes: int
    total_bytes: int
    in_use: Amount


class Producer(Struct, frozen=True, kw_only=True):
    producer_id: int | None
    name: str
    state: str
    frames_in_flight: int
    credit_left: Amount
    credit: Amount
    accepted_chunks: int
    accepted_bytes: int


class AgentReport(Struct, frozen=True, kw_only=True):
    """Answer of an agent's HTTP front to `/v1/status`. Counters are totals since its start.

    `ingest_requests` are the responses to ingest requests over HTTP, by status.
    """

    state: str
    drain_left_ms: int | None
    socket: str
    sink: SinkStatus
    connections: ConnectionsStatus
    credit: CreditStatus
    accepted: Amount
    failed_frames: int
    overdrafts: int
    violations: int
    lost_frames: int
    producers: Sequence[Producer]
    frames: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    ingest_requests: Mapping[str, int] = field(default_factory=dict)


class Agent(Struct, frozen=True, kw_only=True):
    """State of an agent, with the reason if it is not `serving`. A socket has no `report`."""

    state: str
    reason: str
    report: AgentReport | None


class Rates(Struct, frozen=True, kw_only=True):
    """Chunks and payload bytes that an agent accepts per second, over the last `seconds`."""

    chunks: float
    bytes: float
    seconds: float


PRODUCERS: Final[Table[Producer]] = Table(
    Column(name="name", title="Producer", key=lambda row: row.name),
    Column(name="state", title="State", key=lambda row: row.state),
    Column(
        name="in_flight",
        title="Frames in flight",
        key=lambda row: row.frames_in_flight,
        number=True,
    ),
    Column(name="left", title="Credit left", key=lambda row: row.credit_left.bytes, number=True),
    Column(name="credit", title="Credit", key=lambda row: row.credit.bytes, number=True),
    Column(name="chunks", title="Chunks", key=lambda row: row.accepted_chunks, number=True),
    Column(name="bytes", title="Bytes", key=lambda row: row.accepted_bytes, number=True),
    sort="-bytes",
    text=lambda row: f"{row.name} {row.state}",
    search="Search producers",
)


def agent_sources(broker: Assembly) -> Sources[Agent]:
    """Return the agents of `console.host.agents`."""
    settings = broker.settings

    async def ask(address: str) -> Agent:
        if address.startswith("/"):
            from penstock.apps.host.probe import probe

            probed = await asyncio.to_thread(probe, address)
            return Agent(state=probed.state, reason=probed.reason, report=None)
        token = await bearer(settings.console_host_agents_token_file)
        found = await get_json(address, "/v1/status", AgentReport, authorization=token)
        return Agent(state=found.state, reason=found.sink.trouble, report=found)

    return Sources(settings.console_host_agents, ask, broker.clock)


class HostPages(Struct, frozen=True, kw_only=True):
    pages: Pages
    sources: Sources[Agent]

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/hosts", DESCRIBE)
    async def hosts(self, request: Request) -> Response:
        """Show all agents."""
        found = await self.sources.look()
        return self.pages.show(
            request,
            "hosts.html",
            title="Host agents",
            sources=found.sources,
            rates=[_rates(found, self.sources.before, source) for source in found.sources],
            states=STATES,
        )

    @routes.add("GET /console/hosts/{number:int}", DESCRIBE, PRODUCERS.parameters)
    async def host(self, request: Request) -> Response:
        """Show one agent by its number in the setting, with its producers."""
        found = await self.sources.look()
        source = found.get(request.path_params["number"])
        agent = source.answer
        report = None if agent is None else agent.report
        return self.pages.show(
            request,
            "host.html",
            title=f"Host agent {source.address}",
            source=source,
            agent=agent,
            report=report,
            rates=_rates(found, self.sources.before, source),
            table=None if report is None else PRODUCERS.view(request, report.producers),
            states=STATES,
        )


def _rates(found: Round[Agent], before: Round[Agent] | None, source: Source[Agent]) -> Rates | None:
    """Return the rates of an agent; None if they are unknown, or if it was restarted."""
    if before is None:
        return None
    now, then = _accepted(source), _accepted(before.get(source.number))
    seconds = found.at - before.at
    if now is None or then is None or seconds <= 0 or now.bytes < then.bytes:
        return None
    return Rates(
        chunks=(now.chunks - then.chunks) / seconds,
        bytes=(now.bytes - then.bytes) / seconds,
        seconds=seconds,
    )


def _accepted(source: Source[Agent]) -> Amount | None:
    report = None if source.answer is None else source.answer.report
    return None if report is None else report.accepted
