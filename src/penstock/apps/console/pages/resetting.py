"""Reset of a group's committed offsets: the positions that its partitions move to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from penstock.apps.console.forms import Form, InvalidField
from penstock.apps.console.requests import CallerRequests, refused
from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.records import extents

if TYPE_CHECKING:
    from penstock.broker.admin.access import Caller
    from penstock.broker.assembly import Assembly
    from penstock.control import CommittedOffset

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OFFSET: Final = "offset"
TIME: Final = "time"
RESETS: Final = {
    EARLIEST: "The first record",
    LATEST: "The end, so only new records are read",
    OFFSET: "An offset",
    TIME: "The first record at or after a time (UTC)",
}
"""Titles of the kinds of resets."""


class Reset(Struct, frozen=True, kw_only=True):
    """New position: `to` is one of `RESETS`. An empty `topic` means all topics of the group."""

    to: str
    topic: str = ""
    offset: int = 0
    time_ms: int = 0


class Move(Struct, frozen=True, kw_only=True):
    """Change of one committed offset; `committed` is None if there is none.

    The target is within the partition's first and end offset.
    """

    topic: str
    partition: int
    committed: int | None
    target: int

    @property
    def records(self) -> int | None:
        """Number of records that are read again (negative) or skipped (positive)."""
        return None if self.committed is None else self.target - self.committed


class Place(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def committed(self) -> CommittedOffset | None: ...


def read_reset(form: Form) -> Reset:
    """Return the reset of a form; raises InvalidField."""
    to = form.text("to")
    if to not in RESETS:
        raise InvalidField(f"the new position {to!r} must be one of {', '.join(RESETS)}")
    offset = form.number("offset", "Offset", LONG_MAX) if to == OFFSET else 0
    time_ms = _time_ms(form.text("time")) if to == TIME else 0
    return Reset(to=to, topic=form.text("topic"), offset=offset, time_ms=time_ms)


def _time_ms(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidField(
            f"Time {text!r} must be a date and a time, such as 2026-01-31T12:00"
        ) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


async def moves(
    requests: CallerRequests,
    caller: Caller,
    broker: Assembly,
    positions: Iterable[Place],
    reset: Reset,
) -> list[Move]:
    """Return the changes of a reset of a group's positions, without those that change nothing.

    Raises:
        PenstockError: the leader of a partition does not answer.
    """
    rows = [row for row in positions if reset.topic in ("", row.topic)]
    places = [TopicPartition(row.topic, row.partition) for row in rows]
    first, end = await asyncio.gather(
        *(
            leader_offsets(requests, caller, broker, places, timestamp)
            for timestamp in (extents.EARLIEST, extents.LATEST)
        )
    )
    targets = {place: min(max(reset.offset, first[place]), end[place]) for place in places}
    if reset.to == EARLIEST:
        targets = first
    elif reset.to == LATEST:
        targets = end
    elif reset.to == TIME:
        found = await leader_offsets(requests, caller, broker, places, reset.time_ms)
        targets = {place: found[place] if found[place] >= 0 else end[place] for place in places}
    changes = [
        Move(
            topic=row.topic,
            partition=row.partition,
            committed=None if row.committed is None else row.committed.offset,
            target=targets[place],
        )
        for row, place in zip(rows, places, strict=True)
    ]
    return [move for move in changes if move.committed != move.target]


async def leader_offsets(
    requests: CallerRequests,
    caller: Caller,
    broker: Assembly,
    places: Iterable[TopicPartition],
    timestamp: int,
) -> dict[TopicPartition, int]:
    """Return the offsets of a timestamp, from the partitions' leaders; -1 if there is no record."""
    led: dict[int, dict[str, list[int]]] = {}
    for place in places:
        topic = broker.cluster.image.topics[place.topic]
        leader = broker.cluster.shown(topic)[place.partition].leader
        led.setdefault(leader, {}).setdefault(place.topic, []).append(place.partition)
    answers = await asyncio.gather(
        *(
            requests.call(caller, "ListOffsets", _body(topics, timestamp), leader)
            for leader, topics in led.items()
        )
    )
    found: dict[TopicPartition, int] = {}
    for answer in answers:
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code:
                    where = f"{topic.name}-{row.partition_index}"
                    raise refused(row.error_code, None, f"partition {where}")
                found[TopicPartition(topic.name, int(row.partition_index))] = int(row.offset)
    return found


def _body(topics: dict[str, list[int]], timestamp: int) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "timestamp": timestamp} for index in indexes
                ],
            }
            for name, indexes in topics.items()
        ],
    }
