"""Pages of outboxes: payload files on this machine, and the pointers that groups have yet to read.

The directories are walked in a thread, within a limit. Nothing is changed; `penstock outbox sweep`
removes old payloads.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.pages.groups import call_all
from penstock.apps.console.pages.resetting import leader_offsets
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests
from penstock.apps.console.sources import Sources
from penstock.apps.console.tables import Column, Table
from penstock.base.errors import PenstockError
from penstock.base.extras import check_installed
from penstock.base.http_routes import Routes
from penstock.base.ids import TopicPartition
from penstock.broker.admin.access import DESCRIBE, Caller, Needs, caller_of
from penstock.broker.assembly import Assembly
from penstock.broker.configuration.settings import CONSOLE_SOURCES_MAX
from penstock.records.extents import EARLIEST, LATEST

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.apps.console.outboxes import Payloads, Survey

SHARED_SECONDS: Final = 10.0
"""Age up to which a survey is shown again."""
GROUPS_READ_MAX: Final = 200
"""Groups whose offsets one page reads."""


class Reader(Struct, frozen=True, kw_only=True):
    """Group with offsets of an outbox's topic, and the number of pointers it has yet to read."""

    group: str
    waiting: int


class Pointers(Struct, frozen=True, kw_only=True):
    """Records of an outbox's topic, which are pointers and inline payloads, and its readers.

    `left_out` is the number of groups that were not looked at.
    """

    topic: str
    records: int
    readers: Sequence[Reader]
    left_out: int


PARTITIONS: Final[Table[Payloads]] = Table(
    Column(name="id", title="Partition id", key=lambda row: row.partition_id),
    Column(name="payloads", title="Payloads", key=lambda row: row.payloads, number=True),
    Column(name="size", title="Size", key=lambda row: row.size_bytes, number=True),
    Column(name="oldest", title="Oldest (UTC)", key=lambda row: row.oldest_ms),
    Column(name="newest", title="Newest (UTC)", key=lambda row: row.newest_ms),
    Column(name="old", title="Older than 24 h", key=lambda row: row.old, number=True),
    Column(name="temporary", title="Temporary", key=lambda row: row.temporaries, number=True),
    sort="-size",
    text=lambda row: row.partition_id,
    search="Search partition ids",
)


def outbox_sources(broker: Assembly) -> Sources[Survey]:
    """Return the outboxes of `console.outboxes`.

    Each has a thread of its own while it is surveyed. A survey that hangs, as on a file system that
    does not answer, is not repeated.
    """
    threads = ThreadPoolExecutor(CONSOLE_SOURCES_MAX, "console-outboxes")
    running: dict[str, asyncio.Future[Survey]] = {}

    def look(root: str) -> Survey:
        check_installed("client")
        from penstock.apps.console.outboxes import survey

        return survey(root, broker.clock)

    async def ask(address: str) -> Survey:
        current = running.get(address)
        if current is None or current.done():
            _, root = parts_of(address)
            current = asyncio.get_running_loop().run_in_executor(threads, look, root)
            current.add_done_callback(lambda done: done.cancelled() or done.exception())
            running[address] = current
        return await asyncio.shield(current)

    addresses = broker.settings.console_outboxes
    return Sources(addresses, ask, broker.clock, shared_seconds=SHARED_SECONDS)


def parts_of(address: str) -> tuple[str, str]:
    """Return topic and root of an entry of `console.outboxes`; the topic is empty without one."""
    topic, _, root = ("", "", address) if address.startswith("/") else address.partition("=")
    return topic, root


class OutboxPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests
    sources: Sources[Survey]

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/outboxes", DESCRIBE)
    async def outboxes(self, request: Request) -> Response:
        """Show all outboxes."""
        found = await self.sources.look()
        return self.pages.show(
            request,
            "outboxes.html",
            title="Outboxes",
            sources=found.sources,
            parts=[parts_of(source.address) for source in found.sources],
            now_ms=self.broker.clock.now_ms(),
        )

    @routes.add("GET /console/outboxes/{number:int}", DESCRIBE, PARTITIONS.parameters)
    async def outbox(self, request: Request) -> Response:
        """Show one outbox by its number in the setting, with its partition ids and readers."""
        source = (await self.sources.look()).get(request.path_params["number"])
        topic, root = parts_of(source.address)
        caller, pointers, problem = caller_of(request), None, ""
        if topic and caller.sees(topic):
            try:
                pointers = await self._pointers(caller, topic)
            except PenstockError as error:
                problem = str(error)
        options = ["--root", root, *(["-t", topic, "-b", self._bootstrap()] if topic else [])]
        return self.pages.show(
            request,
            "outbox.html",
            title=f"Outbox {root}",
            source=source,
            root=root,
            topic=topic,
            survey=source.answer,
            table=None
            if source.answer is None
            else PARTITIONS.view(request, source.answer.partitions),
            now_ms=self.broker.clock.now_ms(),
            pointers=pointers,
            problem=problem,
            sweep=shlex.join(["penstock", "outbox", "sweep", *options]),
            audit=shlex.join(["penstock", "outbox", "audit", *options]) if topic else "",
        )

    def _bootstrap(self) -> str:
        """Return the address at which this broker accepts clients."""
        rows = self.broker.cluster.image.brokers
        own = [row for row in rows if row.broker_id == self.broker.node_id]
        return ",".join(f"{row.host}:{row.port}" for row in own)

    async def _pointers(self, caller: Caller, topic: str) -> Pointers | None:
        """Return the records of a topic and its readers; None if there is no such topic.

        Raises:
            PenstockError: a leader does not answer.
        """
        await self.broker.cluster.look()
        served = self.broker.cluster.image.topics.get(topic)
        if served is None:
            return None
        places = [TopicPartition(topic, row.index) for row in served.partitions]
        first, ends = await asyncio.gather(
            *(
                leader_offsets(self.requests, caller, self.broker, places, timestamp)
                for timestamp in (EARLIEST, LATEST)
            )
        )
        body = {"states_filter": (), "types_filter": ("classic", "consumer")}
        answers, _ = await call_all(self.broker, self.requests, caller, "ListGroups", body)
        names = sorted(
            row.group_id
            for answer in answers.values()
            for row in answer.groups
            if caller.rights.allows("describe", "group", row.group_id)
        )
        readers = []
        for name in names[:GROUPS_READ_MAX]:
            stored = await self.broker.control.committed_offsets(name, None)
            reached = {
                TopicPartition(row.topic, row.partition): row.offset
                for row in stored
                if row.topic == topic
            }
            if reached:
                waiting = sum(
                    max(0, ends[place] - max(first[place], reached.get(place, 0)))
                    for place in places
                )
                readers.append(Reader(group=name, waiting=waiting))
        return Pointers(
            topic=topic,
            records=sum(ends[place] - first[place] for place in places),
            readers=sorted(readers, key=lambda reader: (-reader.waiting, reader.group)),
            left_out=max(0, len(names) - GROUPS_READ_MAX),
        )
