"""Choice of the query that writes the dead letter of a record that several sources read.

Sources of one topic in different queries judge the same records. The earliest source that rejects a
record to the dead letters writes its dead letter; later sources leave it out.

A source is earlier if it is certain to read the record: it starts at the beginning of the log, or
both start at the same fixed place. If each reads what the other does, it is the first in the file.
Of its rules those count whose verdict depends only on the record, up to the first other one.
`penstock pipeline plan` shows which query writes which dead letters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import frames, passes, rules
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.spec import RECORD, RECORD_FIELDS, PipelineSpec, Source
from penstock.spark.schema import ERROR, VALUE

DEAD_LETTER: Final = "dead-letter"
_ROW: Final = "_penstock_row"
_FIELDS: Final = ", ".join(f"`{field}`" for field in RECORD_FIELDS)


def writes_dead_letters(spec: PipelineSpec, source: Source) -> bool:
    """Whether a source rejects records to the dead letters by their values or its rules."""
    return spec.errors.dead_letters is not None and (
        (source.can_fail and spec.errors.on_invalid == DEAD_LETTER)
        or any(rule.otherwise == DEAD_LETTER for rule in source.rules)
    )


def described(spec: PipelineSpec, plans: Sequence[QueryPlan], plan: QueryPlan) -> tuple[str, ...]:
    """Describe what a record query writes only as dead letters, and what it leaves to others."""
    if plan.root is not None:
        return ()
    found = []
    rejecting = [name for name in plan.sources if writes_dead_letters(spec, spec.sources[name])]
    if not plan.sinks and rejecting:
        found.append(f"nothing but dead letters, of {', '.join(rejecting)}")
    query = {name: other.name for other in plans if other.root is None for name in other.sources}
    for name in rejecting:
        found += [
            f"no dead letter for what {earlier} rejects too: query {query[earlier]} writes it"
            for earlier in earlier_sources(spec, plan, name)
        ]
    return tuple(found)


def earlier_sources(spec: PipelineSpec, plan: QueryPlan, name: str) -> tuple[str, ...]:
    """Return the sources of other queries whose dead letters replace those of a source."""
    source = spec.sources[name]
    before = list(spec.sources)[: list(spec.sources).index(name)]
    return tuple(
        first
        for first, other in spec.sources.items()
        if first not in plan.sources
        and _stands_for(spec, other, source)
        and (first in before or not _stands_for(spec, source, other))
    )


def _stands_for(spec: PipelineSpec, first: Source, second: Source) -> bool:
    return (
        first.streaming
        and writes_dead_letters(spec, first)
        and first.outbox is None
        and second.outbox is None
        and not first.decrypts
        and (first.start == "earliest" or first.start == second.start != "latest")
        and _share_topics(first, second)
    )


def _share_topics(first: Source, second: Source) -> bool:
    """Whether two sources may read the same topic; two patterns may."""
    if first.pattern is not None and second.pattern is not None:
        return True
    if first.pattern is None and second.pattern is None:
        return bool(set(first.topics) & set(second.topics))
    pattern = first.pattern or second.pattern or ""
    topics = second.topics if first.pattern is not None else first.topics
    return any(re.fullmatch(pattern, topic) for topic in topics)


def without_those_of(
    rejected: DataFrame,
    spec: PipelineSpec,
    earlier: Sequence[str],
    decoders: Mapping[str, Decoder],
) -> DataFrame:
    """Return the rejected rows of a source without those that earlier sources dead-letter.

    Args:
        rejected: rows of a judged frame, all of them to be dead-lettered.
    """
    columns = rejected.columns
    for name in earlier:
        source = spec.sources[name]
        records = rejected.select(
            *(F.col(RECORD)[field].alias(field) for field in RECORD_FIELDS),
            F.struct(*(f"`{column}`" for column in columns)).alias(_ROW),
        )
        values = (
            decoders[name]
            .decode(records)
            .selectExpr(
                f"{VALUE}.*",
                f"struct({_FIELDS}, 0 as attempt) as {RECORD}",
                ERROR,
                _ROW,
            )
        )
        judged = _judged(values, source, spec.errors.on_invalid)
        if judged is None:
            continue
        read = frames.reads(F.col(f"{RECORD}.topic"), source)
        theirs = read & F.coalesce(F.col(rules.OTHERWISE) == DEAD_LETTER, F.lit(False))
        rejected = judged.where(~theirs).select(f"{_ROW}.*")
    return rejected


def _judged(values: DataFrame, source: Source, on_error: str) -> DataFrame | None:
    """Return the values judged by those first rules whose verdict is the same at any time."""
    for count in range(len(source.rules), -1, -1):
        judged = rules.judged(values, source.rules[:count], error=ERROR, on_error=on_error)
        if passes.repeatable(judged):
            return judged
    return None
