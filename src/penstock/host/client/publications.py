"""Conversion of callers' payloads to publications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.base.crc import Readable
from penstock.base.extras import check_installed
from penstock.base.traces import current_context
from penstock.host.credits import Credit
from penstock.host.delivery import Delivery
from penstock.host.errors import InvalidChunks
from penstock.host.port import NO_PARTITION
from penstock.host.publication import Publication, adjacent, batch, single

_OFFSET_WIDTHS: Final[Mapping[str, np.dtype[np.integer[Any]]]] = {
    "binary": np.dtype(np.int32),
    "string": np.dtype(np.int32),
    "large_binary": np.dtype(np.int64),
    "large_string": np.dtype(np.int64),
}
"""Integer types of an Arrow array's offsets, by the name of the array's type."""


def readable(payload: Any) -> Readable:
    """Return a payload as bytes without a copy; its memory must not change until the future ends.

    Raises:
        InvalidChunks: the payload has no buffer, or one that is not contiguous.
    """
    if type(payload) is bytes:
        return payload
    try:
        view = memoryview(payload)
        return view if view.format == "B" and view.ndim == 1 else view.cast("B")
    except TypeError as error:
        raise InvalidChunks(
            f"a payload of type {type(payload).__name__} cannot be sent: {error}. Pass"
            " bytes, or an object with a contiguous buffer"
        ) from None


def one(payload: Any, events: int, topic: str, partition: int) -> Publication:
    """Return a DATA frame with one chunk, in the current trace context.

    Raises:
        InvalidChunks: the payload or the number of events is invalid.
    """
    made = single(readable(payload), event_count=events, topic=topic, partition=partition)
    made.trace = current_context()
    return made


def many(
    payloads: Any, event_counts: Sequence[int] | None, topic: str, partition: int
) -> Publication:
    """Return a DATA_BATCH frame of a sequence of payloads, or of an Arrow array of bytes or text.

    Raises:
        InvalidChunks: a payload, their number or the numbers of events are invalid.
    """
    if hasattr(payloads, "__arrow_c_array__"):
        payload, lengths = _of_arrow(payloads)
        made = adjacent(
            payload, lengths, event_counts=event_counts, topic=topic, partition=partition
        )
        made.trace = current_context()
        return made
    if set(map(type, payloads)) - {bytes}:
        payloads = [readable(payload) for payload in payloads]
    # The garbage collector does not traverse a tuple of bytes while the frame is in flight.
    made = batch(tuple(payloads), event_counts=event_counts, topic=topic, partition=partition)
    made.trace = current_context()
    return made


def _of_arrow(array: Any) -> tuple[Readable, NDArray[np.integer[Any]]]:
    """Return the bytes of an Arrow array's values, without a copy, and their lengths."""
    if not hasattr(array, "buffers"):
        check_installed("client")
        import pyarrow as pa

        array = pa.array(array)
    kind = str(array.type)
    width = _OFFSET_WIDTHS.get(kind)
    if width is None:
        raise InvalidChunks(
            f"an Arrow array of type {kind} cannot be sent; chunks must be bytes or text"
        )
    if array.null_count:
        raise InvalidChunks(f"{array.null_count} chunks are null; a chunk must not be null")
    _, offsets, values = array.buffers()
    if not len(array):
        return b"", np.empty(0, width)
    ends = np.frombuffer(offsets, width, len(array) + 1, array.offset * width.itemsize)
    first, last = int(ends[0]), int(ends[-1])
    payload = readable(values)[first:last] if values is not None else b""
    return payload, ends[1:] - ends[:-1]


class Turns:
    """Choice of partitions for publications without one: in turn, per topic."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partition(self, topic: str, partitions: Mapping[str, int]) -> int:
        """Return the next partition of a topic; -1 if its number of partitions is unknown."""
        count = partitions.get(topic, 0)
        if not count:
            return NO_PARTITION
        turn = self._next.get(topic, -1) + 1
        if turn >= count:
            turn = 0
        self._next[topic] = turn
        return turn


class ProducerFacts:
    """Properties that both clients have: identity, credit and partitions of their producer."""

    _core: Delivery

    @property
    def credit(self) -> Credit:
        """Return the credit that is not taken by unanswered frames."""
        return self._core.machine.window.available

    @property
    def producer_id(self) -> int:
        """Return the producer id, -1 until an agent has assigned one."""
        return self._core.machine.producer_id

    @property
    def producer_epoch(self) -> int:
        return self._core.machine.producer_epoch

    @property
    def outstanding(self) -> int:
        """Number of frames that have not ended."""
        return self._core.outstanding

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of one of the client's topics; 0 if it is unknown."""
        return self._core.machine.partitions.get(topic, 0)
