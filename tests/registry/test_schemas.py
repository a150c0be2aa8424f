"""Schemas that are parsed and compared in a separate process, or refused before that."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from penstock.base.helper_process import HelperProcess
from penstock.registry import schemas as module
from penstock.registry.formats import parse
from penstock.registry.formats.schema import Dependency, InvalidSchema, SchemaType
from penstock.registry.schemas import (
    INLINE_CHARS_MAX,
    HelperFailed,
    SchemaParser,
    Schemas,
    Source,
    Terms,
)
from penstock.registry.values import Schema

FIELDS = 300
BACKWARD = Terms(numbers=[1], level="BACKWARD", policy="STRICT")


def avro(kind: str = "int", fields: int = FIELDS, *, last: str = "") -> Source:
    listed = [{"name": f"f{number}", "type": kind} for number in range(fields)]
    if last:
        listed.append({"name": last, "type": "string"})
    return source_of("AVRO", json.dumps({"type": "record", "name": "R", "fields": listed}))


def protobuf(kind: str = "int32") -> Source:
    fields = "".join(f"{kind} f{number} = {number}; " for number in range(1, FIELDS))
    return source_of("PROTOBUF", f'syntax = "proto3"; message R {{ {fields} }}')


def json_schema(kind: str = "integer") -> Source:
    properties = {f"f{number}": {"type": kind} for number in range(FIELDS)}
    return source_of("JSON", json.dumps({"type": "object", "properties": properties}))


def source_of(kind: SchemaType, text: str) -> Source:
    return Source(schema=Schema(schema=text, schema_type=kind))


@pytest.fixture
def schemas() -> Iterator[Schemas]:
    made = Schemas()
    yield made
    made.close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process fail to parse anything."""

    def refused(*_: object) -> None:
        raise AssertionError("parsed in the event loop")

    monkeypatch.setattr(module, "parse", refused)


LARGE = [
    pytest.param(avro(), avro("string"), id="avro"),
    pytest.param(protobuf(), protobuf("string"), id="protobuf"),
    pytest.param(json_schema(), json_schema("string"), id="json"),
]


@pytest.mark.parametrize(("old", "new"), LARGE)
async def test_the_process_returns_what_the_parser_does(
    schemas: Schemas, old: Source, new: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert new.chars > INLINE_CHARS_MAX[new.schema.schema_type]
    parser = SchemaParser()
    prepared = parser.prepare(new, normalize=True)
    verdict = parser.compare(prepared.source, old, terms=BACKWARD, proposes=True)
    assert verdict.proposal
    text = parser.format(new, name="")
    monkeypatch.setattr(module, "parse", None)
    assert await schemas.prepare(new, normalize=True) == prepared
    assert await schemas.compare(prepared.source, [old], BACKWARD) == verdict
    assert await schemas.format(new, "") == text


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF", "JSON"])
async def test_errors_of_the_process_are_those_of_the_parser(
    schemas: Schemas, kind: SchemaType
) -> None:
    broken = source_of(kind, "{" * (INLINE_CHARS_MAX[kind] + 1))
    made = await schemas.prepare(broken, normalize=False)
    assert made.error
    assert made.source == broken
    with pytest.raises(InvalidSchema):
        await schemas.format(broken, "")


@pytest.mark.usefixtures("elsewhere")
async def test_references_count_for_the_size(schemas: Schemas) -> None:
    whole = avro()
    small = Source(
        schema=Schema(schema='{"type": "array", "items": "R"}'),
        dependencies=[Dependency(name="R", text=whole.schema.schema)],
    )
    assert not (await schemas.prepare(small, normalize=False)).error


async def test_a_refusal_of_small_schemas_is_explained_by_the_process(schemas: Schemas) -> None:
    old, new = avro(fields=1), avro("string", fields=1)
    verdict = await schemas.compare(new, [old], BACKWARD)
    assert not verdict.compatible
    assert verdict.proposal


async def test_many_large_versions_are_not_compared(
    schemas: Schemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPARED_CHARS_MAX", 50_000)
    new, old = avro(), avro()
    terms = Terms(numbers=range(1, 11), level="BACKWARD_TRANSITIVE", policy="STRICT")
    with pytest.raises(InvalidSchema, match=r"the 10 versions to compare have .* limit is 50000"):
        await schemas.compare(new, [old] * 10, terms)


@pytest.mark.usefixtures("elsewhere")
async def test_a_killed_process_is_replaced(schemas: Schemas) -> None:
    await schemas.prepare(avro(), normalize=False)
    pid = schemas.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert not (await schemas.prepare(avro("long"), normalize=False)).error
    assert schemas.process.pid not in (pid, None)


async def test_a_schema_that_ends_the_process_is_refused(schemas: Schemas) -> None:
    schemas.process = HelperProcess("tests.registry.dying")
    with pytest.raises(HelperFailed, match="divide the schema"):
        await schemas.prepare(avro(), normalize=False)


async def test_a_request_without_an_answer_in_time_is_refused(
    schemas: Schemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS_MAX", 0.0)
    with pytest.raises(HelperFailed, match=r"no response within 0.0 s"):
        await schemas.prepare(avro(), normalize=False)


async def test_parsed_schemas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARSED_CHARS_MAX", 1_000)
    calls: list[str] = []

    def counted(*key: object) -> object:
        calls.append(str(key[1]))
        return parse(*key)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "parse", counted)
    parser, given = SchemaParser(), [avro(fields=count) for count in range(1, 40)]
    for source in [given[0], given[0], *given, given[0]]:
        parser.format(source, name="")
    assert calls == [source.schema.schema for source in [*given, given[0]]]
