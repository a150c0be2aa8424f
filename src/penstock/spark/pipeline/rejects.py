"""Choice of the query that writes the dead letter of a record that several sources read.

Sources of one topic in different queries apply their rules to the same records. If several of them
dead-letter a record, only the *earliest* of these sources writes a dead letter.

A source is earlier than another if it is certain to read every record of the other: it starts at
the beginning of the log, or both start at the same fixed time. If that is true in both directions,
the first one in the file is earlier. Rules whose result may change over time are unsuitable here:
only the earlier source's rules before the first such rule are applied. `penstock pipeline plan`
shows which query writes which dead letters.
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
    """Whether a source dead-letters records that it cannot decode or that break its rules."""
    return spec.errors.dead_letters is not None and (
        (source.can_fail and spec.errors.on_invalid == DEAD_LETTER)
        or any(rule.otherwise == DEAD_LETTER for rule in source.rules)
    )


def described(spec: PipelineSpec, plans: Sequence[QueryPlan], plan: QueryPlan) -> tuple[str, ...]:
    """Describe a record query's dead letters: whether it writes nothing else, or omits some."""
    if plan.root is not None:
        return ()
    found = []
    rejecting = [name for name in plan.sources if writes_dead_letters(spec, spec.sources[name])]
    if not plan.sinks and rejecting:
        found.append(f"dead letters only, of {', '.join(rejecting)}")
    query = {name: other.name for other in plans if other.root is None for name in other.sources}
    for name in rejecting:
        found += [
            f"no dead letter if {earlier} rejects the record too: query {query[earlier]} writes it"
            for earlier in earlier_sources(spec, plan, name)
        ]
    return tuple(found)


def earlier_sources(spec: PipelineSpec, plan: QueryPlan, name: str) -> tuple[str, ...]:
    """Return the sources of other queries that are earlier than the source `name`."""
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
    """Whether two sources may read the same topic; True for two patterns."""
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
    """Return the rejected rows of a source, without rows that earlier sources dead-letter.

    Args:
        rejected: rows of a judged frame whose action is dead-letter.
        earlier: the result of `earlier_sources`.
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
    """Return the values judged by the first rules of a source whose results never change.

    Return None if even decoding may give other results.
    """
    for count in range(len(source.rules), -1, -1):
        judged = rules.judged(values, source.rules[:count], error=ERROR, on_error=on_error)
        if passes.repeatable(judged):
            return judged
    return None
