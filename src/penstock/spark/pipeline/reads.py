"""Columns and fields that a query reads of its records, and where their values are decoded.

The source decodes values in its Python workers if all topics of the query have one format that has
a reader. Otherwise Spark decodes the column `value`. Columns and fields that no step, rule or sink
names are not read, but the source checks every field of a value.

A column or field counts as named if its name is a word of the SQL. If SQL has `*`, or Python reads
the view, all are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.formats import ValueFormat
from penstock.formats.json.debezium import CHANGE
from penstock.spark.formats.decoders import Decoder, JsonDecoder, ReaderDecoder
from penstock.spark.options import value_options
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.spec import (
    KEEPING,
    RECORD,
    RECORD_FIELDS,
    PipelineSpec,
    Sink,
    Source,
    Step,
    TableSink,
    TopicSink,
)
from penstock.spark.pipeline.sql_views import words_of
from penstock.spark.schema import HEADERS

_PLACE: Final = ("topic", "partition", "offset")
_LEAST: Final = ("partition",)
"""Column to read if no column is needed: it costs nothing."""

Words = frozenset[str] | None
"""Names that SQL may mean, in lower case; None for any name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Columns that a query's source returns, and the fields of values that it decodes.

    If `value_format` is None, Spark decodes the values, and `why` is the reason. `fields` is None
    for all fields.
    """

    columns: tuple[str, ...] = RECORD_FIELDS
    value_format: ValueFormat | None = None
    fields: tuple[str, ...] | None = None
    why: str = ""

    def options(self) -> dict[str, str]:
        found = {"columns": ",".join(self.columns)}
        if self.value_format is None:
            return found
        return found | value_options(self.value_format, self.fields)

    def __str__(self) -> str:
        """Return a line for the plan: where values are decoded, and which columns are read."""
        fields = "" if self.fields is None else f" ({', '.join(self.fields)})"
        opened = f"Spark: {self.why}" if self.why else f"the source's workers{fields}"
        return f"{opened}; columns of the record: {', '.join(self.columns)}"


def read_of(
    spec: PipelineSpec,
    plan: QueryPlan,
    decoders: Mapping[str, Decoder],
    names: Sequence[str],
    *,
    whole: bool,
) -> Read:
    """Return the columns and fields that a query reads from the topics of some of its sources.

    Args:
        whole: read all columns, as for records that may be held.
    """
    found = _opened(spec, decoders, names)
    if whole or any(spec.sources[name].outbox is not None for name in names):
        return found
    needed = _columns(spec, plan, names)
    if found.value_format is None:
        needed.add("value")
        if any(spec.sources[name].value_format.kind == "registry" for name in names):
            needed.add(HEADERS)
    else:
        fields = _fields(spec, plan, names, decoders[names[0]].schema.names)
        found = replace(found, fields=fields)
    columns = tuple(name for name in RECORD_FIELDS if name in needed)
    return replace(found, columns=columns or _LEAST)


def _opened(spec: PipelineSpec, decoders: Mapping[str, Decoder], names: Sequence[str]) -> Read:
    sources = [spec.sources[name] for name in names]
    made = [decoders[name] for name in names]
    formats = [decoder.value_format for decoder in made if isinstance(decoder, ReaderDecoder)]
    if any(source.outbox is not None for source in sources):
        return Read(why="the values are in files of an outbox")
    if all(source.value_format.kind in {"raw", "text"} for source in sources):
        return Read(why="raw values and text need no reader")
    if len(formats) < len(made):
        return Read(why=f"only Spark decodes {_why_spark(made)}")
    if any(value_format != formats[0] for value_format in formats):
        return Read(why="the query's topics have values of several formats")
    return Read(value_format=formats[0])


def _why_spark(decoders: Sequence[Decoder]) -> str:
    parts = [
        part for decoder in decoders if isinstance(decoder, JsonDecoder) for part in decoder.reasons
    ]
    return "; ".join(parts) or "raw values or text together with other formats"


def _fields(
    spec: PipelineSpec, plan: QueryPlan, names: Sequence[str], known: Sequence[str]
) -> tuple[str, ...] | None:
    """Return the fields of values that the query's steps, rules or sinks may name; None for all."""
    found: set[str] = set()
    for name in names:
        for words in _words(spec, plan, name):
            if words is None:
                return None
            found |= words
        if spec.sources[name].value_format.has_changes:
            found.add(CHANGE)
    fields = tuple(name for name in known if name.lower() in found) or tuple(known[:1])
    return None if len(fields) == len(known) else fields


def _words(spec: PipelineSpec, plan: QueryPlan, name: str) -> Iterator[Words]:
    source = spec.sources[name]
    yield frozenset(word.lower() for word in (*source.deduplicate, source.time or ""))
    yield from (words_of(rule.condition) for rule in source.rules)
    for protection in source.protections:
        yield frozenset({protection.column.lower()})
        yield words_of(protection.subject) if protection.subject else frozenset()
    for step in _steps(spec, plan):
        if name in step.inputs:
            yield None if step.sql is None else words_of(step.sql)
    for sink in _sinks(spec, plan):
        if sink.view == name:
            yield from _sink_words(sink)


def _sink_words(sink: Sink) -> Iterator[Words]:
    if not isinstance(sink.to, TopicSink) or sink.to.value is None:
        yield None
    yield from map(words_of, _expressions(sink))


def _columns(spec: PipelineSpec, plan: QueryPlan, names: Sequence[str]) -> set[str]:
    steps, sinks = _steps(spec, plan), _sinks(spec, plan)
    sources = [spec.sources[name] for name in names]
    parts: list[Source | Step] = [*sources, *steps]
    texts = [step.sql or "" for step in steps]
    texts += [rule.condition for part in parts for rule in part.rules]
    texts += [
        protection.subject
        for part in parts
        for protection in part.protections
        if protection.subject
    ]
    texts += [text for sink in sinks for text in _expressions(sink)]
    named = any(words is None or RECORD in words for words in map(words_of, texts))
    # A query with a stateful root drops rejected rows, which a record query handles.
    fates = {rule.otherwise for part in parts for rule in part.rules if plan.root is None}
    if plan.root is None and any(source.can_fail for source in sources):
        fates.add(spec.errors.on_invalid)
    if named or fates & KEEPING or any(step.python for step in steps):
        return set(RECORD_FIELDS)
    ordered = any(isinstance(sink.to, TopicSink) and sink.to.ordered for sink in sinks)
    changes = any(source.value_format.has_changes for source in sources)
    if ordered or changes or "fail" in fates:
        return set(_PLACE)
    return {"topic"} if len(names) > 1 else set()


def _expressions(sink: Sink) -> list[str]:
    if isinstance(sink.to, TableSink) and sink.to.delete_when is not None:
        return [sink.to.delete_when]
    if not isinstance(sink.to, TopicSink):
        return []
    given = (sink.to.value, sink.to.key, sink.to.partition, sink.to.headers)
    return [text for text in given if text is not None]


def _steps(spec: PipelineSpec, plan: QueryPlan) -> list[Step]:
    return [spec.steps[name] for name in (*plan.streamed, *plan.batched)]


def _sinks(spec: PipelineSpec, plan: QueryPlan) -> list[Sink]:
    return [spec.sinks[name] for name in plan.sinks]
