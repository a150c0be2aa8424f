"""Parsing, normal forms and comparisons of schemas, large ones in a separate process.

A parser that works on a large schema holds the interpreter's lock, so that the event loop would
wait even if it ran on a thread. Schemas with more than `INLINE_CHARS_MAX` characters therefore go
to a process of lower priority (`HelperProcess`), which answers one request at a time. So do refused
schemas, for which a compatible edit is looked for. The process gets the texts of the schemas, and
returns texts; both sides cache parsed schemas.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import RetriableError
from penstock.base.helper_process import HelperProcess
from penstock.registry.compatibility import Earlier, Verdict, check
from penstock.registry.formats import parse
from penstock.registry.formats.schema import (
    Dependency,
    InvalidSchema,
    ParsedSchema,
    Policy,
    SchemaType,
)
from penstock.registry.values import Level, Schema

INLINE_CHARS_MAX: Final = {"AVRO": 4_096, "JSON": 2_048, "PROTOBUF": 512}
"""Longest texts, by type, that are parsed in the event loop; references count too."""
PARSED_CHARS_MAX: Final = 16 << 20
"""Most characters of schema text whose parsed form is cached."""
COMPARED_CHARS_MAX: Final = 16 << 20
"""Most characters of all schemas that one check compares."""
SECONDS_MAX: Final = 60.0
"""Time limit of a request to the other process."""

R = TypeVar("R")
_Key: TypeAlias = tuple[SchemaType, str, tuple[Dependency, ...]]


class Source(Struct, frozen=True, kw_only=True):
    """A schema with all schemas to which it refers, each before those that refer to it."""

    schema: Schema
    dependencies: Sequence[Dependency] = ()

    @property
    def chars(self) -> int:
        return len(self.schema.schema) + sum(len(item.text) for item in self.dependencies)


class Prepared(Struct, frozen=True, kw_only=True):
    """A schema in its stored form. If it is malformed, `error` has the reason."""

    source: Source
    guid: UUID
    error: str = ""


class Terms(Struct, frozen=True, kw_only=True):
    """Terms of a comparison: the numbers of the earlier versions, level and policy."""

    numbers: Sequence[int]
    level: Level
    policy: Policy


class HelperFailed(RetriableError):
    """Failure of the process that parses large schemas."""


class SchemaParser:
    """The computations, with a cache of the schemas that were used last."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[_Key, ParsedSchema] = OrderedDict()
        self._chars = 0

    def prepare(self, source: Source, *, normalize: bool) -> Prepared:
        """Return a schema in its stored form.

        Raises:
            InvalidSchema: it cannot be normalized.
        """
        given = source.schema
        try:
            made = self._made(source)
        except InvalidSchema as error:
            return Prepared(source=source, guid=given.guid(given.schema), error=str(error))
        if normalize:
            made = made.normalized()
        stored = replace(source, schema=replace(given, schema=made.text))
        self._remember(stored, made)
        return Prepared(source=stored, guid=given.guid(made.identity))

    def compare(self, new: Source, *earlier: Source, terms: Terms, proposes: bool) -> Verdict:
        """Compare a valid schema with earlier versions.

        Raises:
            InvalidSchema: an earlier version is malformed, or a comparison exceeds its limit.
        """
        versions = [
            Earlier(number, self._earlier(number, source))
            for number, source in zip(terms.numbers, earlier, strict=True)
        ]
        return check(self._made(new), versions, terms.level, terms.policy, proposes=proposes)

    def _earlier(self, number: int, source: Source) -> ParsedSchema:
        try:
            return self._made(source)
        except InvalidSchema as error:
            raise InvalidSchema(
                f"version {number} was imported and is malformed: {str(error).rstrip('.')}. Set the"
                " subject's compatibility to NONE, or delete the version"
            ) from None

    def format(self, source: Source, *, name: str) -> str:
        """Return a schema's text in an output format.

        Raises:
            InvalidSchema: the schema is malformed, or its type does not have the format.
        """
        return self._made(source).formatted(name)

    def _made(self, source: Source) -> ParsedSchema:
        key = _key(source)
        known = self._parsed.get(key)
        if known is not None:
            self._parsed.move_to_end(key)
            return known
        made = parse(*key)
        self._remember(source, made)
        return made

    def _remember(self, source: Source, made: ParsedSchema) -> None:
        key = _key(source)
        if key not in self._parsed:
            self._parsed[key] = made
            self._chars += source.chars
        while self._chars > PARSED_CHARS_MAX:
            (_, text, dependencies), _ = self._parsed.popitem(last=False)
            self._chars -= len(text) + sum(len(item.text) for item in dependencies)


def _key(source: Source) -> _Key:
    return source.schema.schema_type, source.schema.schema, tuple(source.dependencies)


class Schemas:
    """Prepares and compares schemas for requests, in this process or in the other one."""

    def __init__(self) -> None:
        self._parser = SchemaParser()
        self.process = HelperProcess(__name__)
        self._thread: ThreadPoolExecutor | None = None

    async def prepare(self, source: Source, *, normalize: bool) -> Prepared:
        """Call `SchemaParser.prepare`.

        Raises:
            InvalidSchema: as there.
            HelperFailed: the other process failed.
        """
        if _is_small(source, source.chars):
            return self._parser.prepare(source, normalize=normalize)
        return await self._asked(SchemaParser.prepare, source, normalize=normalize)

    async def compare(self, new: Source, earlier: Sequence[Source], terms: Terms) -> Verdict:
        """Call `SchemaParser.compare`; a refusal has a proposal if one is found.

        Raises:
            InvalidSchema: as there, or the schemas have more than `COMPARED_CHARS_MAX` characters.
            HelperFailed: the other process failed.
        """
        chars = new.chars + sum(source.chars for source in earlier)
        if chars > COMPARED_CHARS_MAX:
            raise InvalidSchema(
                f"the new schema and the {len(earlier)} versions to compare have {chars}"
                f" characters with their references; the limit is {COMPARED_CHARS_MAX}. Delete old"
                " versions, or set a compatibility that is not transitive"
            )
        if _is_small(new, chars):
            verdict = self._parser.compare(new, *earlier, terms=terms, proposes=False)
            if verdict.compatible:
                return verdict
        return await self._asked(SchemaParser.compare, new, *earlier, terms=terms, proposes=True)

    async def format(self, source: Source, name: str) -> str:
        """Call `SchemaParser.format`.

        Raises:
            InvalidSchema: as there.
            HelperFailed: the other process failed.
        """
        if _is_small(source, source.chars):
            return self._parser.format(source, name=name)
        return await self._asked(SchemaParser.format, source, name=name)

    async def _asked(self, function: Callable[..., R], *sources: Source, **options: object) -> R:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "schemas")
        job = partial(self.process.ask, partial(_exchange, function, sources, options))
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._thread, job)
        except (OSError, EOFError) as error:
            raise HelperFailed(
                f"The process that parses large schemas failed: {error!r}. Try again; if it fails"
                " again, divide the schema into smaller ones that refer to each other"
            ) from None
        if isinstance(answer, InvalidSchema):
            raise answer
        return answer

    def close(self) -> None:
        """End the process; requests in progress fail."""
        if self._thread is not None:
            self.process.close()
            self._thread.submit(self.process.end)
            self._thread.shutdown(wait=False)
            self._thread = None


def _is_small(source: Source, chars: int) -> bool:
    return chars <= INLINE_CHARS_MAX[source.schema.schema_type]


def _exchange(
    function: Callable[..., R],
    sources: Sequence[Source],
    options: dict[str, object],
    connection: Connection,
) -> R | InvalidSchema:
    connection.send((function, len(sources), options))
    for source in sources:  # one message each: pickling holds the interpreter's lock
        connection.send(source)
    if not connection.poll(SECONDS_MAX):
        raise TimeoutError(f"no response within {SECONDS_MAX} s")
    answer: R | InvalidSchema = connection.recv()
    return answer


@cache
def _parser() -> SchemaParser:
    return SchemaParser()


def serve(connection: Connection) -> None:
    """Answer one request in the other process."""
    function, count, options = connection.recv()
    sources = [connection.recv() for _ in range(count)]
    try:
        connection.send(function(_parser(), *sources, **options))
    except InvalidSchema as error:
        connection.send(error)
