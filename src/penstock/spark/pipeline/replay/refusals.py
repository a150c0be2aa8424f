"""Checks of sinks to backfill, and of filters for a replay of dead letters."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError
from penstock.spark.pipeline.kinds import nearest
from penstock.spark.pipeline.replay.dead_letter_rows import Filters
from penstock.spark.pipeline.rules import UNDECODABLE
from penstock.spark.pipeline.spec import (
    ConsoleSink,
    PipelineSpec,
    Source,
    Step,
    TableSink,
    TopicSink,
)


class CannotBackfill(InvalidError):
    """Rejection of a backfill, because of its sink or its options."""

    code: ClassVar[str] = "invalid_request"


class NoSuchDeadLetters(InvalidError):
    """Filter that matches no dead letter and names nothing in the file."""

    code: ClassVar[str] = "invalid_request"


def check_filters(spec: PipelineSpec, wanted: Filters) -> None:
    """Reject filters with names that the file lacks; called if no dead letter matches.

    Filters with other names are valid if dead letters match, because those may come from rules and
    sources that were removed from the file.

    Raises:
        NoSuchDeadLetters: a name is unknown; the message has the known names.
    """
    parts: tuple[Source | Step, ...] = (*spec.sources.values(), *spec.steps.values())
    rules = (*(rule.name for part in parts for rule in part.rules), UNDECODABLE)
    topics = tuple(topic for source in spec.sources.values() for topic in source.topics)
    for option, given, there in (("rule", wanted.rule, rules), ("topic", wanted.topic, topics)):
        if given is not None and given not in there:
            close = nearest(given, there)
            fix = f"write {close!r}" if close else f"known: {', '.join(map(repr, there))}"
            raise NoSuchDeadLetters(
                f"{spec.file}: --{option} {given}: no dead letter has this {option}, and the file "
                f"does not define it; {fix}"
            )


def check_sink(spec: PipelineSpec, name: str) -> None:
    """Reject a sink for which older rows after newer ones would be wrong.

    Raises:
        CannotBackfill: the sink is unknown, or cannot accept older rows.
    """
    sink = spec.sinks.get(name)
    if sink is None:
        raise CannotBackfill(
            f"{spec.file}: unknown sink {name}; the file has {', '.join(spec.sinks)}"
        )
    reason = None
    if isinstance(sink.to, ConsoleSink):
        reason = "it writes to the console, which stores no rows"
    elif isinstance(sink.to, TopicSink) and sink.to.ordered:
        reason = (
            "it is ordered, and older records would follow newer ones of the same key. Write "
            "another topic from a new pipeline, which reads from the start"
        )
    elif isinstance(sink.to, TableSink) and sink.to.mode != "append":
        if sink.to.order_by is None:
            reason = (
                "it keeps the last row of each key, so without order_by older rows would replace "
                "newer ones. Set order_by"
            )
        elif sink.to.delete_when is not None:
            reason = (
                "keys that were deleted after the sink was added would come back with older rows. "
                "Mark deleted rows in a column instead of delete_when, or write the table from a "
                "new pipeline, which reads from the start"
            )
    if reason is not None:
        raise CannotBackfill(f"sink {name} cannot be backfilled: {reason}")
