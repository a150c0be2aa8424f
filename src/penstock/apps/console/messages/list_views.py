"""Views of lists of messages: the page, its continuation, the live list and the export."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct
from starlette.responses import Response

from penstock.apps.console.formats import path, query
from penstock.apps.console.live import EVENTS, Streams
from penstock.apps.console.messages.decoding import Decoder
from penstock.apps.console.messages.parameters import (
    FORMATS,
    ISOLATIONS,
    MATCHES,
    ORDERS,
    PARAMETERS,
)
from penstock.apps.console.messages.queries import (
    InvalidQuery,
    Lists,
    Query,
    cursor_text,
    parse_cursor,
    parse_query,
)
from penstock.apps.console.messages.reading import TopicReader, served_topic
from penstock.apps.console.messages.rows import ParquetExport, Row, json_lines, rows_of
from penstock.apps.console.messages.scanning import Limits, Progress, Scan, matches
from penstock.apps.console.rendering import Pages
from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.base.settings import whole_number
from penstock.broker.admin.access import caller_of
from penstock.broker.admin_app import status_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.partitions.registry import ServedTopic

PAGE_ROWS: Final = 50
PAGE_LIMITS: Final = Limits(records=2_000_000, size_bytes=256 << 20, seconds=1.0)
"""Limits of the search that a page waits for; its script continues the search."""
STREAM_ROWS: Final = 1000
STREAM_LIMITS: Final = Limits(records=50_000_000, size_bytes=8 << 30, seconds=60.0)
"""Limits of one continuation."""
EXPORT_ROWS: Final = 10_000
EXPORT_ROWS_MAX: Final = 1_000_000
EXPORT_LIMITS: Final = Limits(records=100_000_000, size_bytes=16 << 30, seconds=600.0)
EXPORTED_BYTES_MAX: Final = 4 << 30
STREAMS_MAX: Final = 16
"""Most searches, live lists and exports at a time."""
LIVE_SECONDS: Final = 0.25
"""Shortest time between two events of a live list."""
LIVE_WAIT_MS: Final = 1000
LIVE_BYTES: Final = 1 << 20
"""Bytes that a live list reads for one event."""
LIVE_ROWS: Final = 50
"""Records of one event. Further ones are counted as left out."""
LIVE_BEHIND_MAX: Final = 5000
"""Offsets after which a live list that cannot follow continues at the end of the log."""
STOPPED: Final = {
    "records": "the limit of records",
    "bytes": "the limit of bytes",
    "seconds": "the time limit",
}
_TYPES: Final = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}


class ListViews(Struct, frozen=True, kw_only=True):
    pages: Pages
    lists: Lists
    streams: Streams

    async def messages(self, request: Request) -> Response:
        """Show the first records of a list."""
        topic = request.path_params["topic"]
        rows: list[Row] = []
        progress, failures = Progress(), dict[int, str]()
        cursor, error = "", None
        try:
            scan, decoder, failures = await self._scan(request, PAGE_ROWS, PAGE_LIMITS)
            async for table in scan.tables():
                rows += await self._rows(table, decoder)
            progress, cursor = scan.progress, cursor_text(scan.positions)
        except PenstockError as failed:
            error = failed
        except ExceptionGroup as group:
            error = cause_of(group)
        served = served_topic(self.lists.broker, topic)
        rules = await self.lists.rules(caller_of(request), topic)
        return self.pages.show(
            request,
            "messages.html",
            title=f"Messages of {topic}",
            status=200 if error is None else status_of(error),
            topic=topic,
            partitions=len(served.partitions),
            leaders=_elsewhere(served),
            given={name: request.query_params.get(name, "") for name in PARAMETERS},
            rows=rows,
            progress=progress,
            stopped=STOPPED.get(progress.stopped, ""),
            more=self._url(request, "", cursor=cursor) if progress.stopped != "end" else "",
            urls={
                name: self._url(request, name, cursor="" if name == "live" else cursor)
                for name in ("stream", "live")
            },
            failures=failures,
            error=error,
            formats=FORMATS,
            orders=ORDERS,
            matches=MATCHES,
            isolations=ISOLATIONS,
            may_write=caller_of(request).rights.allows("write", "topic", topic),
            export_rows=(EXPORT_ROWS, EXPORT_ROWS_MAX),
            rules=rules,
        )

    async def stream(self, request: Request) -> Response:
        """Return further records of a list as JSON Lines, with the progress of the search.

        A line is `{"rows": […]}`, `{"progress": …}`, and at last `{"done": …, "cursor": …}` or
        `{"error": …}`. The search stops when the client closes the connection.
        """
        wanted = _rows(request, STREAM_ROWS, STREAM_ROWS)
        scan, decoder, failures = await self._scan(request, wanted, STREAM_LIMITS)

        async def lines() -> AsyncIterator[bytes]:
            try:
                async for table in scan.tables():
                    rows = await self._rows(table, decoder)
                    yield _line({"rows": rows, "progress": scan.progress})
                cursor = cursor_text(scan.positions)
                yield _line({"done": scan.progress, "cursor": cursor, "failures": failures})
            except (PenstockError, ExceptionGroup) as error:
                yield _line({"error": str(cause_of(error))})

        return self.streams.response(lines(), _TYPES["jsonl"])

    async def export(self, request: Request) -> Response:
        """Return the records of a list as a file, JSON Lines or Parquet."""
        kind = request.query_params.get("format", "jsonl")
        if kind not in _TYPES:
            raise InvalidQuery(f"format {kind!r} must be one of {', '.join(_TYPES)}")
        wanted = _rows(request, EXPORT_ROWS, EXPORT_ROWS_MAX)
        scan, decoder, _ = await self._scan(request, wanted, EXPORT_LIMITS)
        disposition = f'attachment; filename="{request.path_params["topic"]}.{kind}"'
        content = self._file(scan, decoder, kind)
        return self.streams.response(content, _TYPES[kind], **{"content-disposition": disposition})

    async def _file(self, scan: Scan, decoder: Decoder, kind: str) -> AsyncIterator[bytes]:
        parquet = ParquetExport(decoder) if kind == "parquet" else None

        def encoded(table: Any) -> bytes:
            return json_lines(table, decoder) if parquet is None else parquet.write(table)

        written = 0
        async for table in scan.tables():
            for at in range(0, table.num_rows, EXPORT_ROWS):
                async with self.lists.turn:
                    content = await asyncio.to_thread(encoded, table.slice(at, EXPORT_ROWS))
                written += len(content)
                if content:
                    yield content
            if written > EXPORTED_BYTES_MAX:
                break
        if parquet is not None:
            yield await asyncio.to_thread(parquet.close)

    async def live(self, request: Request) -> Response:
        """Return new records as server-sent events.

        An event `records` has the rows, and how many further ones were left out; its id is the
        cursor with which a connection continues. The response ends when the rules of masking
        change.
        """
        given = request.headers.get("last-event-id") or request.query_params.get("cursor", "")
        known = parse_cursor(given)
        caller, topic = caller_of(request), request.path_params["topic"]
        rules = await self.lists.rules(caller, topic)
        chosen, reader, decoder = await self._parts(request)
        bounds, _ = await self.lists.bounds(reader, chosen)
        positions = {
            index: max(known.get(index, end), end - LIVE_BEHIND_MAX)
            for index, (_, end) in bounds.items()
        }
        tail = Tail(self.lists, reader, decoder, chosen, positions)

        async def events() -> AsyncIterator[bytes]:
            yield b": connected\n\n"
            try:
                while not self.lists.broker.stopping.is_set():
                    body = await tail.event()
                    yield b"id: %b\nevent: records\ndata: %b\n\n" % (
                        cursor_text(tail.positions).encode(),
                        msgspec.json.encode(body),
                    )
                    await pause(LIVE_SECONDS)
                    if await self.lists.rules(caller, topic) != rules:
                        break
            except (PenstockError, ExceptionGroup) as error:
                reason = msgspec.json.encode(str(cause_of(error)))
                yield b"event: failed\ndata: %b\n\n" % reason

        return self.streams.response(events(), EVENTS)

    # -- parts ----------------------------------------------------------------------------------

    async def _scan(
        self, request: Request, wanted: int, limits: Limits
    ) -> tuple[Scan, Decoder, dict[int, str]]:
        chosen, reader, decoder = await self._parts(request)
        scan, failures = await self.lists.scan(
            reader, decoder, chosen, wanted=wanted, limits=limits
        )
        return scan, decoder, failures

    async def _parts(self, request: Request) -> tuple[Query, TopicReader, Decoder]:
        caller, topic = caller_of(request), request.path_params["topic"]
        chosen = parse_query(request.query_params)
        reader = await self.lists.reader(caller, topic, committed=chosen.committed)
        return chosen, reader, await self.lists.decoder(caller, topic, chosen)

    async def _rows(self, table: Any, decoder: Decoder) -> list[Row]:
        if not table.num_rows:
            return []
        async with self.lists.turn:
            return await asyncio.to_thread(rows_of, table, decoder)

    def _url(self, request: Request, below: str, **changes: str) -> str:
        values = {name: request.query_params.get(name, "") for name in PARAMETERS} | changes
        parts = ("topics", request.path_params["topic"], "messages", *([below] if below else []))
        return path(*parts) + query(values)


class Tail:
    """Reader of new records, with a limit of rate."""

    def __init__(
        self,
        lists: Lists,
        reader: TopicReader,
        decoder: Decoder,
        query: Query,
        positions: dict[int, int],
    ) -> None:
        self._lists = lists
        self._reader = reader
        self._decoder = decoder
        self._query = query
        self.positions = positions

    async def event(self) -> dict[str, Any]:
        """Wait for records; return the newest rows, and the number of those left out."""
        by_leader: dict[int, dict[int, int]] = {}
        for partition, offset in self.positions.items():
            leader = self._reader.leader(partition)
            by_leader.setdefault(leader, {})[partition] = offset
        wait_ms = LIVE_WAIT_MS if len(by_leader) == 1 else 0
        tables, left_out = [], 0
        for leader, asked in by_leader.items():
            chunks = await self._reader.fetch_many(leader, asked, LIVE_BYTES, wait_ms=wait_ms)
            for partition, chunk in chunks.items():
                self.positions[partition] = chunk.following
                behind = chunk.end - chunk.following
                if behind > LIVE_BEHIND_MAX:
                    left_out += behind
                    self.positions[partition] = chunk.end
                if chunk.data:
                    async with self._lists.turn:
                        table, _ = await asyncio.to_thread(
                            matches, self._query.filter, self._decoder, chunk, None
                        )
                    tables.append(table)
        return await self._body(tables, left_out)

    async def _body(self, tables: list[Any], left_out: int) -> dict[str, Any]:
        if not tables:
            return {"rows": [], "left_out": left_out}
        table = pa.concat_tables(tables).sort_by([("timestamp", "descending")])
        shown = table.slice(0, LIVE_ROWS)
        async with self._lists.turn:
            rows = await asyncio.to_thread(rows_of, shown, self._decoder)
        return {"rows": rows, "left_out": left_out + table.num_rows - shown.num_rows}


def _elsewhere(served: ServedTopic) -> Mapping[int, int]:
    """Return the number of partitions that are read from each other broker."""
    return Counter(
        row.leader
        for row, log in zip(served.topic.partitions, served.partitions, strict=True)
        if log is None and row.leader >= 0 and not served.diskless
    )


def _rows(request: Request, default: int, maximum: int) -> int:
    text = request.query_params.get("rows", "")
    found = whole_number(text, maximum) if text else default
    if not found:
        raise InvalidQuery(f"rows {text!r} must be a whole number from 1 to {maximum:,}")
    return found


def _line(body: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(body) + b"\n"


def cause_of(error: PenstockError | ExceptionGroup[Exception]) -> PenstockError:
    """Return the first error of a group, in which partitions are read at the same time."""
    if isinstance(error, PenstockError):
        return error
    for inner in error.exceptions:
        if isinstance(inner, PenstockError):
            return inner
    raise error
