"""Which sinks can be given rows late, and why others cannot."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError
from penstock.spark.pipeline.spec import ConsoleSink, PipelineSpec, TableSink, TopicSink


class CannotBackfill(InvalidError):
    """A sink that cannot be backfilled, or not as it was asked for."""

    code: ClassVar[str] = "invalid_request"


def check_sink(spec: PipelineSpec, name: str) -> None:
    """Refuse a sink to which older rows must not come after newer ones.

    Raises:
        CannotBackfill: with the reason.
    """
    sink = spec.sinks.get(name)
    if sink is None:
        raise CannotBackfill(
            f"{spec.file}: there is no sink {name}; there are {', '.join(spec.sinks)}"
        )
    reason = None
    if isinstance(sink.to, ConsoleSink):
        reason = "it is the console, which keeps nothing"
    elif isinstance(sink.to, TopicSink) and sink.to.ordered:
        reason = (
            "it is ordered, and what came before would come after newer records of the same key. "
            "Write a topic of its own from a new pipeline, which reads from the start"
        )
    elif isinstance(sink.to, TableSink) and sink.to.mode != "append":
        if sink.to.order_by is None:
            reason = (
                "it keeps the last row of each key, and without order_by older rows would replace "
                "newer ones. Give it order_by"
            )
        elif sink.to.delete_when is not None:
            reason = (
                "keys that were deleted since it joined would come back with their older rows. "
                "Keep a column that marks rows as deleted rather than delete_when, or write the "
                "table from a new pipeline, which reads from the start"
            )
    if reason is not None:
        raise CannotBackfill(f"sink {name} cannot be backfilled: {reason}")
