"""Dead letters of a pipeline: counts by rule and topic, from its dead-letter topic.

The headers of a dead letter name its pipeline, its rule and the topic that it came from. Records
are read by requests of the caller and selected by columns, within the limits of a messages page.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import Struct
from starlette.datastructures import QueryParams

from penstock.apps.console.messages.columns import as_texts, header_column
from penstock.apps.console.messages.expressions import moment_of
from penstock.apps.console.messages.list_views import PAGE_LIMITS
from penstock.apps.console.messages.queries import InvalidQuery, Lists, parse_query

if TYPE_CHECKING:
    from penstock.broker.admin.access import Caller

PREFIX: Final = "penstock.error."
"""Beginning of the names of the headers that pipelines add to dead letters."""
COUNTED_MAX: Final = 100_000
"""Largest number of dead letters that one page counts."""


class Selection(Struct, frozen=True, kw_only=True):
    """Selection of dead letters, as by the options of `penstock pipeline replay`.

    Empty values select all. `topic` is the topic that they came from, `since` a time in ISO 8601.
    """

    pipeline: str
    rule: str = ""
    topic: str = ""
    since: str = ""

    @property
    def filter(self) -> str:
        """Expression of the messages pages that selects these dead letters."""
        return " and ".join(self._terms())

    def _terms(self) -> Iterator[str]:
        for name in ("pipeline", "rule", "topic"):
            if value := getattr(self, name):
                yield f".headers[{_text(PREFIX + name)}] == {_text(value)}"
        if self.since:
            yield f".timestamp >= {_text(self.since)}"


class DeadLetterGroup(Struct, frozen=True, kw_only=True):
    """Dead letters of one rule and topic: their number, and the times of the first and the last."""

    rule: str
    topic: str
    count: int
    first_ms: int
    last_ms: int
    filter: str


class DeadLetters(Struct, frozen=True, kw_only=True):
    """Selected dead letters. Unless `whole`, a limit ended the search, and there may be more."""

    topic: str
    filter: str
    groups: Sequence[DeadLetterGroup]
    whole: bool

    @property
    def count(self) -> int:
        return sum(group.count for group in self.groups)


async def read_dead_letters(
    lists: Lists, caller: Caller, topic: str, chosen: Selection
) -> DeadLetters:
    """Return the dead letters of a selection, counted from the newest on, or from `since` on.

    Raises:
        InvalidQuery: `since` is not a time.
        PenstockError: the caller may not read the topic, or it cannot be read.
    """
    if chosen.since and moment_of(chosen.since) is None:
        raise InvalidQuery(f"since {chosen.since!r} is not a time, such as 2026-01-31T12:00:00")
    order = "oldest" if chosen.since else "newest"
    query = parse_query(
        QueryParams({"filter": chosen.filter, "order": order, "at": chosen.since, "vf": "hex"})
    )
    reader = await lists.reader(caller, topic, committed=True)
    decoder = await lists.decoder(caller, topic, query)
    scan, failures = await lists.scan(
        reader, decoder, query, wanted=COUNTED_MAX, limits=PAGE_LIMITS
    )
    if failures:
        raise InvalidQuery("; ".join(failures.values()))
    tables = []
    async for table in scan.tables():
        async with lists.turn:
            tables.append(await asyncio.to_thread(_columns, table))
    return DeadLetters(
        topic=topic,
        filter=chosen.filter,
        groups=_groups(tables, chosen),
        whole=scan.progress.stopped == "end",
    )


def _columns(table: Any) -> Any:
    """Return rule, topic and time of the dead letters in a table."""
    headers = table.column("headers").combine_chunks()
    columns = {
        name: as_texts(header_column(headers, PREFIX + name, len(headers))).fill_null("")
        for name in ("rule", "topic")
    }
    return pa.table({**columns, "time": table.column("timestamp")})


def _groups(tables: Sequence[Any], chosen: Selection) -> list[DeadLetterGroup]:
    if not tables:
        return []
    counted = pa.concat_tables(tables).group_by(["rule", "topic"])
    found = counted.aggregate([("time", "count"), ("time", "min"), ("time", "max")])
    return [
        DeadLetterGroup(
            rule=row["rule"],
            topic=row["topic"],
            count=row["time_count"],
            first_ms=row["time_min"],
            last_ms=row["time_max"],
            filter=Selection(
                pipeline=chosen.pipeline, rule=row["rule"], topic=row["topic"], since=chosen.since
            ).filter,
        )
        for row in found.sort_by([("time_count", "descending")]).to_pylist()
    ]


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
