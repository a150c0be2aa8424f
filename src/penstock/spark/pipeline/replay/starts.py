"""Start of a backfill: from words of the command line to offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.base.ids import TopicPartition
from penstock.client import Client
from penstock.records.positions import first_millisecond
from penstock.spark.pipeline.replay.refusals import CannotBackfill

EARLIEST: Final = "earliest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """`earliest` (also when `text` is None), a time, or offsets by topic and partition."""

    text: str | None = None
    time_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int]] | None = None


def moment_ms(text: str) -> int:
    """Return a time in ISO 8601, UTC by default, as milliseconds since 1970.

    Raises:
        ValueError: it is none.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return first_millisecond(moment)


def parse(text: str | None) -> Start:
    """Parse `--from`.

    Raises:
        ValueError: neither `earliest`, a time, nor offsets as JSON.
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
        raise ValueError("an offset is 0 or more")
    return Start(text=text, offsets=offsets)


def lows(
    client: Client,
    start: Start,
    ends: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, str],
    *,
    with_history: bool,
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the offsets [first, end) of every partition.

    Args:
        ends: where history ends.
        topic_ids: topic ids when that was noted.
        with_history: a table has records that the log may no longer have.

    Raises:
        CannotBackfill: a topic was recreated, offsets of others are given, or a time with a table.
    """
    if with_history and start.time_ms is not None:
        raise CannotBackfill(
            f"--from {start.text}: with --history, give the start as offsets: the log may not "
            "have the records of that time any more"
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
        # Offsets cannot be looked up by a time before 1970: all records come into question then.
        time_ms = -1 if start.time_ms is None else start.time_ms
        firsts = client.list_offsets(topic, EARLIEST if time_ms < 0 else time_ms)
        given = (start.offsets or {}).get(topic, {})
        found[topic] = {}
        for at in sorted(end for end in ends if end.topic == topic):
            first = 0 if with_history else firsts[at.partition]
            first = given.get(at.partition, first)
            # No record is as late as the time given: nothing is to be read.
            low = ends[at] if first < 0 else min(first, ends[at])
            found[topic][str(at.partition)] = (low, ends[at])
    return found
