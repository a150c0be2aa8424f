"""Checks of sinks to backfill, and of filters for a replay of dead letters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.base.ids import TopicPartition
from penstock.client import Client
from penstock.records.extents import first_millisecond
from penstock.spark.pipeline.kinds import nearest
from penstock.spark.pipeline.replay.dead_letters import Filters
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
        if sink.to.applies_changes:
            reason = (
                "keys that were deleted long ago would come back with older rows. Write the table "
                "from a new pipeline, which reads from the start"
            )
        elif sink.to.order_by is None:
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


EARLIEST: Final = "earliest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start of a backfill: the earliest records, a time, or offsets by topic and partition.

    `text` is the option `--from`, or None without it. Without a time and offsets, the start is
    earliest.
    """

    text: str | None = None
    time_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int]] | None = None


def moment_ms(text: str) -> int:
    """Return a time in ISO 8601 as milliseconds since 1970; without a zone it is in UTC.

    Raises:
        ValueError: the text is not a time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return first_millisecond(moment)


def parse(text: str | None) -> Start:
    """Parse the option `--from`.

    Raises:
        ValueError: the text is not `earliest`, a time, or offsets as JSON.
    """
    if text is None or text == EARLIEST:
        return Start(text=text)
    if not text.lstrip().startswith("{"):
        return Start(text=text, time_ms=moment_ms(text))
    body = json.loads(text)
    offsets = {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in body.items()
    }
    if any(offset < 0 for partitions in offsets.values() for offset in partitions.values()):
        raise ValueError("an offset must be 0 or more")
    return Start(text=text, offsets=offsets)


def lows(
    client: Client,
    start: Start,
    ends: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, str],
    *,
    with_history: bool,
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the offsets [first, end) to read, by topic and partition.

    Args:
        ends: the sink's start positions, where the backfill ends.
        topic_ids: the topics' ids when the sink was added.
        with_history: whether a table has records that the log may lack.

    Raises:
        CannotBackfill: a topic was deleted and created again, `start` names a topic that the sink
            does not read, or `start` is a time although there is a table.
    """
    if with_history and start.time_ms is not None:
        raise CannotBackfill(
            f"--from {start.text}: with --history the start must be offsets, because the log may "
            "no longer have the records of that time"
        )
    if unknown := sorted(set(start.offsets or ()) - set(topic_ids)):
        raise CannotBackfill(
            f"--from: topic {unknown[0]} is not read by the sink; it reads {', '.join(topic_ids)}"
        )
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for topic, topic_id in topic_ids.items():
        if str(client.describe_topic(topic).topic_id) != topic_id:
            raise CannotBackfill(
                f"topic {topic} was deleted and created again after the sink was added: "
                "its earlier records no longer exist"
            )
        # The log cannot search for a time before 1970, so read all records.
        time_ms = -1 if start.time_ms is None else start.time_ms
        firsts = client.list_offsets(topic, EARLIEST if time_ms < 0 else time_ms)
        given = (start.offsets or {}).get(topic, {})
        found[topic] = {}
        for at in sorted(end for end in ends if end.topic == topic):
            first = 0 if with_history else firsts[at.partition]
            first = given.get(at.partition, first)
            # All records are older than the given time, so read none.
            low = ends[at] if first < 0 else min(first, ends[at])
            found[topic][str(at.partition)] = (low, ends[at])
    return found
