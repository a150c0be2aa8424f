"""Pinned schemas: the reader's schema of each registry source, and the ids of framed sources.

They are chosen when a pipeline starts, and become part of its definition (`journal.py`). So a
replayed batch is read with the same schema. They are also stored in the state directory:

    <state>/schemas/<source>.reader    schema of the reader, for the comparison with a later version
    <state>/schemas/<source>.ids       id of the first record, which later records must have

A running pipeline keeps its schema. With `reader = "latest"` a restart follows the newest version
if it only adds columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import pyarrow as pa

from penstock.base.errors import CorruptError, InvalidError, RetriableError, UnavailableError
from penstock.base.files import write_durably
from penstock.client import Client
from penstock.client.errors import BrokerRefused
from penstock.client.registered import ReaderSchema, reader_from_json
from penstock.formats.framing import by_schema
from penstock.formats.value_format import NEWEST, InvalidFormat, ValueFormat
from penstock.formats.values import Values
from penstock.records.extents import READ_COMMITTED
from penstock.spark.formats.registry import pinned_schema, value_reader, with_pinned_reader
from penstock.spark.pipeline.broker_check import asking
from penstock.spark.pipeline.frames import start_millisecond
from penstock.spark.pipeline.spec import PipelineSpec, Source
from penstock.spark.pipeline.state import PipelinePaths

T = TypeVar("T")

PARTITIONS_MAX: Final = 100
"""Most partitions whose records are read to pin the id of a topic."""
SAMPLE_RECORDS: Final = 100
"""Most records of a partition that are read to find one with an id."""


class NothingToPin(InvalidError):
    """Topic without a record whose schema id a source could pin."""

    code: ClassVar[str] = "invalid_config"


def pinned(spec: PipelineSpec, *, stored: bool = False) -> PipelineSpec:
    """Return a pipeline whose sources have pinned schemas and ids.

    Args:
        stored: use the schemas of the last run if there are any, instead of newer versions.

    Raises:
        InvalidFormat: a schema does not exist, is not supported, or changes columns.
        NothingToPin: a topic has no record with an id yet.
        AdminUnavailable: the registry does not answer.
        PenstockError: no broker responds.
    """
    sources = {
        name: replace(source, value_format=pinned_format(spec, source, stored=stored))
        for name, source in spec.sources.items()
    }
    return replace(spec, sources=sources)


def pinned_format(spec: PipelineSpec, source: Source, *, stored: bool = False) -> ValueFormat:
    """Return the value format of one source as `pinned` does."""
    given = source.value_format
    if given.kind == "registry" and given.schema is None:
        known = _kept_reader(spec, source)
        if known is not None and stored:
            return replace(given, schema=known.to_json())
        made = with_pinned_reader(given, source.topics)
        if known is not None and given.reader == NEWEST:
            check_growth(known, made)
        return made
    if given.framing == "confluent" and not given.ids:
        return replace(given, ids=_kept_ids(spec, source) or (_first_id(spec, source),))
    return given


def keep(spec: PipelineSpec) -> None:
    """Store the pinned schemas and ids of a pipeline that starts."""
    paths = PipelinePaths(spec)
    for name, source in spec.sources.items():
        given = source.value_format
        if given.kind == "registry" and given.schema is not None:
            write_durably(paths.reader(name), given.schema.encode())
        if given.framing == "confluent" and given.ids:
            write_durably(paths.ids(name), json.dumps(given.ids).encode())


def with_addresses(old: PipelineSpec, now: PipelineSpec) -> PipelineSpec:
    """Return an old definition with the current addresses of registries, which may have moved."""
    sources: dict[str, Source] = dict(old.sources)
    for name, source in old.sources.items():
        present = now.sources.get(name)
        if present is not None and present.value_format.kind == "registry":
            chosen = replace(
                source.value_format,
                registry=present.value_format.registry,
                registry_config=present.value_format.registry_config,
            )
            sources[name] = replace(source, value_format=chosen)
    return replace(old, sources=sources)


def origins(spec: PipelineSpec, names: Sequence[str]) -> str:
    """Return the versions that sources are read with, for errors of tables; empty without any."""
    found = [
        f"{name} is read with {pinned_schema(source.value_format).origin}"
        for name in names
        if (source := spec.sources[name]).value_format.kind == "registry"
        and source.value_format.schema is not None
    ]
    return "; ".join(found)


def check_growth(known: ReaderSchema, made: ValueFormat) -> None:
    """Check that a newer schema of a reader only adds columns to those of the last run.

    Raises:
        InvalidFormat: a column is gone, or has another type; the error names version and path.
    """
    now = pinned_schema(made)
    if now.subject != known.subject or now.version == known.version:
        return
    before = replace(made, schema=known.to_json())
    types = [value_reader(each).arrow_type() for each in (before, made)]
    changes = list(_changes(*types))
    if changes:
        more = f", and {len(changes) - 1} more changes" if len(changes) > 1 else ""
        raise InvalidFormat(
            "reader", NEWEST,
            f"{now.origin} {changes[0]}{more}, compared with version {known.version} of the last"
            f" run; a table follows only added fields. Set reader = {known.version} to keep the"
            f" columns, or reader = {now.version} with another table",
        )  # fmt: skip


def _changes(before: pa.StructType, now: pa.StructType) -> Iterator[str]:
    there = {field.name: field.type for field in now}
    for field in before:
        if field.name not in there:
            yield f"lacks field {field.name}"
        else:
            yield from _differences(field.name, field.type, there[field.name])


def _differences(path: str, before: pa.DataType, now: pa.DataType) -> Iterator[str]:
    if before == now:
        return
    if pa.types.is_struct(before) and pa.types.is_struct(now):
        theirs = {field.name: field.type for field in now}
        ours = {field.name: field.type for field in before}
        yield from (f"lacks field {path}.{name}" for name in ours if name not in theirs)
        yield from (f"adds field {path}.{name}" for name in theirs if name not in ours)
        for name in ours:
            if name in theirs:
                yield from _differences(f"{path}.{name}", ours[name], theirs[name])
        if list(ours) != list(theirs) and ours.keys() == theirs.keys():
            yield f"changes the order of the fields of {path}"
    elif pa.types.is_list(before) and pa.types.is_list(now):
        yield from _differences(f"{path}[]", before.value_type, now.value_type)
    elif pa.types.is_map(before) and pa.types.is_map(now):
        yield from _differences(f"{path}{{}}", before.item_type, now.item_type)
    else:
        yield f"changes field {path} from {before} to {now}"


def _kept_reader(spec: PipelineSpec, source: Source) -> ReaderSchema | None:
    return _kept(PipelinePaths(spec).reader(source.name), reader_from_json)


def _kept_ids(spec: PipelineSpec, source: Source) -> tuple[int, ...] | None:
    return _kept(
        PipelinePaths(spec).ids(source.name),
        lambda content: tuple(int(number) for number in json.loads(content)),
    )


def _kept(path: Path, parse: Callable[[str], T]) -> T | None:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, InvalidFormat) as error:
        raise CorruptError(f"{path} cannot be read: {error}") from error


# The id of the first record.
#
# Of the first records of all partitions from the source's start on, the one with the lowest
# timestamp has the id. If no partition has records there, it is the newest record before.


def _first_id(spec: PipelineSpec, source: Source) -> int:
    with asking(spec) as client:
        topics = source.topics
        if source.pattern is not None:
            whole = re.compile(source.pattern)
            topics = tuple(
                topic.name for topic in client.list_topics() if whole.fullmatch(topic.name)
            )
        ahead: list[tuple[int, int]] = []
        behind: list[tuple[int, int]] = []
        for topic in sorted(topics):
            found = islice(_ranges(client, topic, source.start), PARTITIONS_MAX)
            for partition, first, low, high in found:
                ahead += _identified(client, topic, partition, first, high)
                if not ahead:
                    newest = max(low, high - SAMPLE_RECORDS)
                    behind += _identified(client, topic, partition, newest, high)
    if ahead:
        return min(ahead)[1]
    if behind:
        return max(behind)[1]
    raise NothingToPin(
        f"source {source.name}: framing = confluent reads values of one schema id, but"
        f" {', '.join(topics) or source.pattern} has no record yet to take it from; set ids ="
        ' [...], or use format = "registry", which reads each value with its own schema'
    )


def _ranges(client: Client, topic: str, start: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, first offset from the start on, earliest offset and end of each partition."""
    position: Any = start
    if start not in ("earliest", "latest"):
        position = max(0, start_millisecond(start))
    firsts, lows, highs = (
        client.list_offsets(topic, at, isolation=READ_COMMITTED)
        for at in (position, "earliest", "latest")
    )
    for partition, high in highs.items():
        first = firsts[partition] if firsts[partition] >= 0 else high
        yield partition, first, lows[partition], high


def _identified(
    client: Client, topic: str, partition: int, start: int, end: int
) -> list[tuple[int, int]]:
    """Return the timestamp and the id of the records with an id, of the first ones in a range."""
    if start == end:
        return []
    batches = client.iter_arrow(
        topic, partitions=[partition], start={partition: start}, end={partition: end},
        columns=("timestamp", "value"), max_records=SAMPLE_RECORDS, isolation="read_committed",
    )  # fmt: skip
    found: list[tuple[int, int]] = []
    for batch in batches:
        times = batch.column("timestamp").to_pylist()
        for key, rows in by_schema(Values.of(batch.column("value"))):
            if key.isdecimal():
                found += [(times[row], int(key)) for row in rows.tolist()]
    return found


def analysed_format(spec: PipelineSpec, source: Source) -> ValueFormat:
    """Return the pinned format of a source for an analysis, which needs no broker.

    Raises:
        InvalidFormat, NothingToPin, AdminUnavailable: as `pinned` does.
    """
    try:
        return pinned_format(spec, source)
    except (RetriableError, UnavailableError, BrokerRefused):
        if source.value_format.kind == "registry":
            raise
        return source.value_format
