"""From what callers hand in to publications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.host.errors import InvalidChunks
from penstock.host.port import NO_PARTITION
from penstock.host.publication import Publication, Readable, batch, single


def readable(payload: Any) -> Readable:
    """A payload as bytes, without a copy; its memory must stay as it is until the future ends.

    Raises:
        InvalidChunks: it offers no buffer, or one that is not in one piece.
    """
    if type(payload) is bytes:
        return payload
    try:
        view = memoryview(payload)
        return view if view.format == "B" and view.ndim == 1 else view.cast("B")
    except TypeError as error:
        raise InvalidChunks(
            f"a payload of type {type(payload).__name__}: {error}; give bytes, or an object whose"
            " buffer is in one piece"
        ) from None


def one(payload: Any, events: int, topic: str, partition: int) -> Publication:
    """A DATA frame.

    Raises:
        InvalidChunks: the payload or the number of events cannot be sent.
    """
    return single(readable(payload), event_count=events, topic=topic, partition=partition)


def many(
    payloads: Sequence[Any], event_counts: Sequence[int] | None, topic: str, partition: int
) -> Publication:
    """A DATA_BATCH frame.

    Raises:
        InvalidChunks: a payload, their number or the numbers of events cannot be sent.
    """
    all_bytes = not set(map(type, payloads)) - {bytes}
    return batch(
        list(payloads) if all_bytes else [readable(payload) for payload in payloads],
        event_counts=event_counts,
        topic=topic,
        partition=partition,
    )


class Turns:
    """The partition of what comes without one: each in turn."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partition(self, topic: str, partitions: Mapping[str, int]) -> int:
        """The next partition of a topic; none where the agent does not say how many there are."""
        count = partitions.get(topic, 0)
        if not count:
            return NO_PARTITION
        turn = self._next.get(topic, -1) + 1
        if turn >= count:
            turn = 0
        self._next[topic] = turn
        return turn
