"""Queries: the parsed parameters of a messages page, and the scans that they describe."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.messages.columns import Filter
from penstock.apps.console.messages.decoding import Decoder, Side
from penstock.apps.console.messages.expressions import (
    SIDES,
    Comparison,
    Expression,
    Joined,
    Match,
    Path,
    moment_of,
    parse,
)
from penstock.apps.console.messages.masking import RecordMasks, sides_of
from penstock.apps.console.messages.parameters import FORMATS, ISOLATIONS, ORDERS
from penstock.apps.console.messages.reading import TopicReader
from penstock.apps.console.messages.scanning import Limits, Scan, Search
from penstock.apps.console.messages.schemas import (
    SUFFIXES,
    BrokerSchemas,
    file_reader,
    schema_file,
)
from penstock.apps.console.requests import CallerRequests
from penstock.base.errors import InvalidError
from penstock.base.settings import INT_MAX, LONG_MAX, whole_number
from penstock.formats.value_format import InvalidFormat

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

    from penstock.apps.console.messages.rules import Masking, Rule
    from penstock.broker.admin.access import Caller
    from penstock.broker.assembly import Assembly
    from penstock.client.schemas import SchemaClient
    from penstock.registry.service import SchemaRegistry

PARTITIONS_MAX: Final = 128
"""Most partitions that one list shows together."""
CURSOR_CHARS_MAX: Final = 8000
_CURSOR: Final = re.compile(r"([0-9]{1,10})\.([0-9]{1,19})")
OFFSET_MAX: Final = LONG_MAX - 1


class InvalidQuery(InvalidError):
    """Parameter of a messages page that is not allowed."""

    code: ClassVar[str] = "invalid_request"


class Query(Struct, frozen=True, kw_only=True):
    """Parameters of a list of messages; each has an allowed value."""

    partition: int | None
    newest_first: bool
    at: str
    cursor: Mapping[int, int]
    filter: Filter | None
    formats: tuple[str, str]
    message: str
    committed: bool


def parse_query(given: QueryParams) -> Query:
    """Parse the parameters of a request.

    Raises:
        InvalidQuery, InvalidFilter: a parameter has a value that is not allowed.
    """
    partition = given.get("partition", "")
    number = whole_number(partition, INT_MAX) if partition else None
    if partition and number is None:
        raise InvalidQuery(f"partition {partition!r} is not a number")
    return Query(
        partition=number,
        newest_first=_one_of(given, "order", ORDERS) == "newest",
        at=given.get("at", "").strip(),
        cursor=parse_cursor(given.get("cursor", "")),
        filter=_filter(given),
        formats=(_one_of(given, "kf", FORMATS), _one_of(given, "vf", FORMATS)),
        message=given.get("message", "").strip(),
        committed=_one_of(given, "isolation", ISOLATIONS) == "committed",
    )


def _one_of(given: QueryParams, name: str, choices: Mapping[str, str]) -> str:
    value = given.get(name) or next(iter(choices))
    if value not in choices:
        raise InvalidQuery(f"{name} {value!r} must be one of {', '.join(choices)}")
    return value


def parse_cursor(text: str) -> dict[int, int]:
    """Return the positions of a `cursor`; raises InvalidQuery."""
    if not text:
        return {}
    pairs = [_CURSOR.fullmatch(part) for part in text[:CURSOR_CHARS_MAX].split("-")]
    if len(text) > CURSOR_CHARS_MAX or not all(pairs):
        raise InvalidQuery(f"cursor {text[:50]!r} must have the form PARTITION.OFFSET-…")
    return {int(pair[1]): min(int(pair[2]), OFFSET_MAX) for pair in pairs if pair is not None}


def cursor_text(positions: Mapping[int, int]) -> str:
    """Return positions as the value of `cursor`."""
    return "-".join(f"{partition}.{offset}" for partition, offset in sorted(positions.items()))


def _filter(given: QueryParams) -> Filter | None:
    terms: list[Expression] = []
    if key := given.get("key", ""):
        path = Path("key")
        contains = given.get("match", "") == "contains"
        terms.append(Match(path, "contains", key) if contains else Comparison(path, "==", key))
    if text := given.get("filter", "").strip():
        terms.append(parse(text))
    if not terms:
        return None
    return Filter(terms[0] if len(terms) == 1 else Joined("and", tuple(terms)))


class Lists:
    """Lists of messages: creates the reader, decoder and scan of a request."""

    def __init__(
        self,
        broker: Assembly,
        requests: CallerRequests,
        registry: SchemaRegistry | None,
        masking: Masking | None,
    ) -> None:
        """`registry` is the broker's schema registry; None without one. So is `masking`."""
        self.broker = broker
        self._masking = masking
        self._requests = requests
        self._registry = registry
        self.turn = asyncio.Semaphore(1)
        """Semaphore that leaves the other cores to the broker while scans decode and filter."""

    async def reader(self, caller: Caller, topic: str, *, committed: bool) -> TopicReader:
        """Return the reader of a topic; raises PenstockError as `TopicReader` does."""
        await self.broker.cluster.look()
        return TopicReader(self.broker, self._requests, caller, topic, committed=committed)

    async def rules(self, caller: Caller, topic: str) -> tuple[Rule, ...]:
        """Return the rules that mask fields of a topic for the caller."""
        if self._masking is None:
            return ()
        return await asyncio.to_thread(self._masking.rules, topic, caller.known.principal)

    async def decoder(self, caller: Caller, topic: str, query: Query) -> Decoder:
        """Return the decoder of a topic's records, which masks them for the caller.

        Raises:
            InvalidQuery: a format needs a registry or a schema file, and there is none.
            InvalidFormat: the schema file is invalid.
        """
        schemas = None
        if self._registry is not None:
            schemas = BrokerSchemas(self._registry, caller.rights)
        elif "registry" in query.formats:
            raise InvalidQuery("this broker has no schema registry: set registry.enable to true")
        directory = self.broker.settings.console_schema_directory
        rules = await self.rules(caller, topic)
        return await asyncio.to_thread(_decoder, directory, topic, query, schemas, rules)

    async def bounds(
        self, reader: TopicReader, query: Query
    ) -> tuple[dict[int, tuple[int, int]], dict[int, str]]:
        """Return start and end of each partition of a query, and the errors of unreadable ones.

        Raises:
            InvalidQuery: the topic has too many partitions for one list.
        """
        count = len(reader.served.partitions)
        if query.partition is not None:
            return await reader.bounds([query.partition])
        if count > PARTITIONS_MAX:
            raise InvalidQuery(
                f"topic {reader.topic} has {count:,} partitions; choose one, because a list shows"
                f" at most {PARTITIONS_MAX} together"
            )
        return await reader.bounds(range(count))

    async def scan(
        self,
        reader: TopicReader,
        decoder: Decoder,
        query: Query,
        *,
        wanted: int,
        limits: Limits,
    ) -> tuple[Scan, dict[int, str]]:
        """Return the scan of a query, and the errors of partitions that cannot be read.

        Raises:
            InvalidQuery: the topic has too many partitions for one list, or `at` is invalid.
        """
        bounds, failures = await self.bounds(reader, query)
        positions = await _positions(reader, query, bounds)
        search = Search(newest_first=query.newest_first, wanted=wanted, filter=query.filter)
        scan = Scan(
            reader,
            decoder,
            search,
            bounds,
            positions,
            limits=limits,
            turn=self.turn,
            now=self.broker.clock.monotonic,
        )
        return scan, failures


async def _positions(
    reader: TopicReader, query: Query, bounds: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    back = query.newest_first
    beginning = {index: end if back else start for index, (start, end) in bounds.items()}
    if query.cursor:
        return beginning | {index: query.cursor[index] for index in bounds if index in query.cursor}
    if not query.at:
        return beginning
    offset = whole_number(query.at, OFFSET_MAX)
    if offset is not None:
        return dict.fromkeys(bounds, offset + back)
    moment = moment_of(query.at)
    if moment is None:
        raise InvalidQuery(
            f"{query.at!r} is neither an offset nor a time, such as 2026-01-31T12:00:00"
        )
    found = await reader.offsets(bounds, moment + back)
    return {index: bounds[index][1] if at < 0 else at for index, at in found.items()}


def _decoder(
    directory: str,
    topic: str,
    query: Query,
    schemas: SchemaClient | None,
    rules: Sequence[Rule],
) -> Decoder:
    """Return the decoder of a query. Blocks."""
    masked = sides_of(rules)
    masks = None
    if rules:
        decoders = {side: _own_decoder(directory, topic, side, schemas, rules) for side in masked}
        masks = RecordMasks(rules, decoders)
    sides = {
        side: Side() if side in masked else _side(directory, topic, side, chosen, message)
        for side, chosen, message in zip(SIDES, query.formats, ("", query.message), strict=True)
    }
    return Decoder(**sides, schemas=schemas, masks=masks)


def _own_decoder(
    directory: str, topic: str, side: str, schemas: SchemaClient | None, rules: Sequence[Rule]
) -> Decoder | None:
    """Return the decoder of a masked part, which no request can change; None without a format."""
    messages = {rule.message for rule in rules if rule.message} if side == "value" else set()
    if len(messages) > 1:
        return None
    try:
        found = _side(directory, topic, side, "auto", "".join(messages))
    except InvalidFormat:
        return None
    return Decoder(found, found, schemas)


def _side(directory: str, topic: str, side: str, chosen: str, message: str) -> Side:
    """Return the format of keys or values; a schema file of the topic replaces `auto`. Blocks."""
    if chosen not in ("auto", *SUFFIXES):
        return Side(format=chosen)
    for kind in SUFFIXES if chosen == "auto" else (chosen,):
        path = schema_file(directory, topic, side, kind)
        if path is not None:
            return Side(format=kind, reader=file_reader(path, kind, message))
    if chosen == "auto":
        return Side()
    endings = ", ".join(f"{topic}-{side}{suffix}" for suffix in SUFFIXES[chosen])
    raise InvalidQuery(
        f"topic {topic} has no schema file for its {side}s: add one of {endings} to the directory"
        f" console.schema.directory{f' ({directory})' if directory else ', which is not set'}"
    )
