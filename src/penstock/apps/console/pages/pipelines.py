"""Page of pipelines: the exactly-once sinks that commit batches to this cluster.

A broker stores the commits of a pipeline's topic sink, and the offsets that the pipeline commits as
a consumer group. The runner has its other state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.rendering import Pages
from penstock.apps.console.tables import Column, Table
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import OPEN, Needs, caller_of
from penstock.broker.assembly import Assembly

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class ListedSink(Struct, frozen=True, kw_only=True):
    """Newest batch of a streaming query, with its topics that the caller may describe.

    In state `intent`, the batch is not yet committed.
    """

    query: str
    owner: str
    batch: int
    state: str
    updated_ms: int
    topics: Sequence[str]
    partitions: int


SINKS: Final[Table[ListedSink]] = Table(
    Column(name="query", title="Query", key=lambda row: row.query),
    Column(name="topics", title="Topics", key=lambda row: row.topics),
    Column(name="partitions", title="Partitions", key=lambda row: row.partitions, number=True),
    Column(name="batch", title="Newest batch", key=lambda row: row.batch, number=True),
    Column(name="state", title="State", key=lambda row: row.state),
    Column(name="updated", title="Changed at (UTC)", key=lambda row: row.updated_ms),
    sort="query",
    text=lambda row: f"{row.query} {row.owner} {' '.join(row.topics)}",
    search="Search queries and topics",
)


class PipelinePages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/pipelines", OPEN, SINKS.parameters)
    async def pipelines(self, request: Request) -> Response:
        """Show the queries whose transactional id the caller may describe."""
        caller = caller_of(request)
        rows = [
            ListedSink(
                query=commit.query_id,
                owner=commit.owner or "",
                batch=commit.batch_id,
                state=commit.state,
                updated_ms=commit.updated_ms,
                topics=sorted({target.topic for target in seen}),
                partitions=len(seen),
            )
            for commit in await self.broker.control.sink_commits()
            if caller.rights.allows("describe", "transactional_id", commit.query_id)
            for seen in [[target for target in commit.targets if caller.sees(target.topic)]]
        ]
        return self.pages.show(
            request,
            "pipelines.html",
            title="Pipelines",
            table=SINKS.view(request, rows),
            enabled=self.broker.sinks is not None,
        )
