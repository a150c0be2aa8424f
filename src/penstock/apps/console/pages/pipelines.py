"""Pages of pipelines: running pipelines by their status pages, and the commits of topic sinks.

A broker stores the commits of a pipeline's topic sink, and the offsets that the pipeline commits as
a consumer group. The status pages of `console.pipelines` report the rest. Dead letters are read
from the pipeline's dead-letter topic, by requests of the caller.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.pages.messages import MessageViews
from penstock.apps.console.rendering import Pages
from penstock.apps.console.sources import Sources, UnknownSource, get_json
from penstock.apps.console.tables import Column, Table
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import DESCRIBE, OPEN, Caller, Needs, caller_of
from penstock.broker.assembly import Assembly
from penstock.security import CLUSTER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.apps.console.messages.dead_letters import DeadLetters

PHASES: Final = {"running": "ok", "idle": "ok", "ended": "idle", "failed": "bad"}
"""Classes of the phases of queries; of others, `warn`."""
SELECTORS: Final = ("rule", "topic", "since")
"""Parameters that select dead letters, as the options of `penstock pipeline replay`."""


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


class QueryStatus(Struct, frozen=True, kw_only=True):
    """Query on a status page. Counts are totals since the run began; `batch_…` is the last batch.

    `lag_records` and `watermark` are None if unknown, `batch_id` before the first batch.
    """

    query: str
    group: str
    phase: str
    batch_id: int | None
    batch_rows: int
    batch_ms: float
    rows_per_second: float
    lag_records: int | None
    state_rows: int
    state_bytes: int
    watermark: str | None
    held_records: int
    restarts: int
    error: str | None
    batches: int
    rows: int
    rejected: Mapping[str, int]
    warned: Mapping[str, int]
    dead_letters: int
    late: int
    shredded: int
    written: Mapping[str, int]


class PipelineStatus(Struct, frozen=True, kw_only=True):
    """Answer of a pipeline's status page."""

    pipeline: str
    file: str
    bootstrap: str
    state_directory: str
    version: str
    pid: int
    started_ms: int
    master: str
    queries: Sequence[QueryStatus]
    broker_admin: str | None = None
    dead_letter_topic: str | None = None

    @property
    def held_records(self) -> int:
        return sum(listed.held_records for listed in self.queries)


def pipeline_sources(broker: Assembly) -> Sources[PipelineStatus]:
    """Return the pipelines of `console.pipelines`."""

    async def ask(address: str) -> PipelineStatus:
        return await get_json(address, "/status", PipelineStatus)

    return Sources(broker.settings.console_pipelines, ask, broker.clock)


class PipelinePages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    messages: MessageViews
    sources: Sources[PipelineStatus]

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/pipelines", OPEN, SINKS.parameters)
    async def pipelines(self, request: Request) -> Response:
        """Show the pipelines, and the queries whose transactional id the caller may describe.

        Pipelines are shown to callers that may describe the cluster.
        """
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
        operator = caller.rights.allows("describe", "cluster", CLUSTER)
        return self.pages.show(
            request,
            "pipelines.html",
            title="Pipelines",
            table=SINKS.view(request, rows),
            enabled=self.broker.sinks is not None,
            operator=operator,
            sources=(await self.sources.look()).sources if operator else (),
            phases=PHASES,
        )

    @routes.add("GET /console/pipelines/{pipeline:path}", DESCRIBE, SELECTORS)
    async def pipeline(self, request: Request) -> Response:
        """Show one pipeline: its queries, its dead letters, and the command that replays them."""
        address, found = await self._find(request.path_params["pipeline"])
        given = {name: request.query_params.get(name, "").strip() for name in SELECTORS}
        letters, problem = None, ""
        if found.dead_letter_topic:
            try:
                letters = await self._dead_letters(caller_of(request), found, given)
            except PenstockError as error:
                problem = str(error)
        return self.pages.show(
            request,
            "pipeline.html",
            title=f"Pipeline {found.pipeline}",
            found=found,
            address=address,
            phases=PHASES,
            given=given,
            letters=letters,
            problem=problem,
            replay=replay_command(found, "--dead-letters", given),
            parked=replay_command(found, "--parked", {}),
        )

    async def _find(self, name: str) -> tuple[str, PipelineStatus]:
        """Return the address and the status of a pipeline; raises UnknownSource."""
        for source in (await self.sources.look()).sources:
            if source.answer is not None and source.answer.pipeline == name:
                return source.address, source.answer
        raise UnknownSource(
            f"no address of console.pipelines answers as the status page of pipeline {name[:200]}"
        )

    async def _dead_letters(
        self, caller: Caller, found: PipelineStatus, given: Mapping[str, str]
    ) -> DeadLetters:
        """Return the selected dead letters; raises PenstockError if they cannot be read."""
        lists = (await self.messages.lists()).lists
        from penstock.apps.console.messages.dead_letters import Selection, read_dead_letters
        from penstock.apps.console.messages.list_views import cause_of

        chosen = Selection(pipeline=found.pipeline, **given)
        try:
            return await read_dead_letters(lists, caller, found.dead_letter_topic or "", chosen)
        except ExceptionGroup as group:
            raise cause_of(group) from group


def replay_command(found: PipelineStatus, mode: str, given: Mapping[str, str]) -> str:
    """Return the command that shows what a replay does; with --execute it replays."""
    where = {
        "bootstrap": found.bootstrap,
        "admin": found.broker_admin,
        "state": found.state_directory,
    }
    places, chosen = (
        [f"--{name}={value}" for name, value in options.items() if value]
        for options in (where, given)
    )
    return shlex.join(["penstock", "pipeline", "replay", found.file, *places, mode, *chosen])
