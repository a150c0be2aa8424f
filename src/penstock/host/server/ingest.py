"""Ingest over HTTP: the HTTP front acts as one producer for all requests.

All requests together have one credit window, of the size of one connection's. A body takes credit
for its bytes while it arrives, so the bytes of incomplete bodies are bounded too. It takes credit
for its chunks and events before it is passed to the sink. No request waits for credit: without it,
the request is rejected with a time to retry after.

Frames from HTTP have no log sequence. If a client repeats a request after a lost response, the
chunks are written again. So delivery is at least once; exactly once requires the socket.

Source: `host-ipc.txt`, three-dimensional backpressure; RFC 9110, `Retry-After`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from penstock.base.errors import InvalidError
from penstock.host import errors
from penstock.host.credits import Credit, CreditWindow
from penstock.host.errors import NoCredit
from penstock.host.port import (
    NO_PARTITION,
    NO_PRODUCER_ID,
    Accepted,
    Chunks,
    ChunkSink,
    Failed,
    FinalVerdict,
    Pending,
)
from penstock.host.server.connections import introduce
from penstock.host.server.settings import HostSettings

TOPICS_MAX: Final = 1024
"""Maximum number of topics whose numbers of partitions are remembered."""

TOPIC_FRESH_MS: Final = 60_000
"""Time in milliseconds for which a topic's number of partitions is remembered."""

_TEXTS: Final = msgspec.json.Decoder(msgspec.Raw)
_NO_TEXT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NEWLINE: Final = 10
_RETURN: Final = 13
_DIMENSIONS: Final = ("chunk_slots", "raw_events", "payload_bytes")

_Numbers = NDArray[np.uint32]


class TooMuch(InvalidError):
    """A request exceeds the whole window, or the maximum size of a frame."""


class NotJson(InvalidError):
    """A line is not JSON; `line` counts from 1 and includes empty lines."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line} is no JSON: {why}")
        self.line = line


class OutOfCredit(NoCredit):
    """The window does not have enough credit for a request now."""

    def __init__(self, need: Credit, window: CreditWindow, retry_after_ms: int) -> None:
        left = window.available
        index = next(i for i in range(3) if need[i] > left[i])
        self.dimension = _DIMENSIONS[index]
        self.limit = window.granted[index]
        self.value = need[index]
        super().__init__(
            f"{need[index]} {self.dimension} are needed, but only {left[index]} of"
            f" {self.limit} are left",
            retry_after_ms,
        )


class Outcome(Struct, frozen=True, kw_only=True):
    """Result of a request's frames."""

    accepted_chunks: int = 0
    accepted_events: int = 0
    failed: Failed | None = None
    """Failed verdict of the request, a permanent one if there is any; None if all were accepted."""


class Part(Struct, frozen=True):
    """Part of a body that becomes one frame, with its chunks."""

    start: int
    end: int
    lengths: _Numbers
    offsets: _Numbers | None = None


def cut_lines(body: memoryview) -> tuple[_Numbers, _Numbers]:
    """Find the lines of a body; line ends and empty lines are not included.

    Returns:
        Offsets and lengths of the lines.
    """
    text = np.frombuffer(body, dtype=np.uint8)
    ends = np.flatnonzero(text == _NEWLINE)
    if len(text) and (not len(ends) or ends[-1] != len(text) - 1):
        ends = np.append(ends, len(text))
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts
    returns = (lengths > 0) & (text[np.maximum(ends, 1) - 1] == _RETURN) if len(text) else lengths
    lengths = lengths - returns
    kept = lengths > 0
    return starts[kept].astype(np.uint32), lengths[kept].astype(np.uint32)


def line_parts(body: memoryview, frame_bytes_max: int) -> Iterator[Part]:
    """Divide a body of lines into frames of at most 4,096 chunks and `frame_bytes_max` bytes.

    Raises:
        TooMuch: a line is longer than a frame.
    """
    offsets, lengths = cut_lines(body)
    count = len(offsets)
    if count and int(lengths.max()) > frame_bytes_max:
        raise TooMuch(
            f"a line of {int(lengths.max())} bytes exceeds the limit of {frame_bytes_max}"
            " bytes per chunk"
        )
    ends = offsets.astype(np.int64) + lengths
    first = 0
    while first < count:
        start = int(offsets[first])
        fitting = int(np.searchsorted(ends, start + frame_bytes_max, side="right"))
        last = min(fitting, first + errors.CHUNKS_PER_FRAME_MAX)
        yield Part(start, int(ends[last - 1]), lengths[first:last], offsets[first:last] - start)
        first = last


def check_json(body: memoryview, parts: list[Part]) -> None:
    """Check that each line of a body is one JSON text.

    All lines are parsed at once, without creating values. If that leaves a doubt, because of white
    space around a text or an error, lines are checked one by one, up to the first invalid line.

    Raises:
        NotJson: a line is not JSON.
    """
    count = sum(len(part.lengths) for part in parts)
    size_bytes = sum(int(part.lengths.sum()) for part in parts)
    with suppress(*_NO_TEXT):
        texts = _TEXTS.decode_lines(body)
        joined = b"".join(texts)
        joined.decode()
        if (len(texts), len(joined)) == (count, size_bytes) and b"\n" not in joined:
            return
    for number, line in enumerate(bytes(body).split(b"\n"), 1):
        if line.removesuffix(b"\r"):
            try:
                _TEXTS.decode(line)
                line.decode()
            except _NO_TEXT as error:
                raise NotJson(number, str(error)) from None


class HttpProducer:
    """Producer that passes request bodies to the agent's sink."""

    def __init__(
        self, settings: HostSettings, sink: ChunkSink, now_ms: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._now_ms = now_ms
        self.window = CreditWindow(settings.credit)
        self.body_bytes_max = min(settings.http_body_max_bytes, settings.credit_bytes)
        self.producer_id = NO_PRODUCER_ID
        self._next_sequence = 0
        self._turn = 0
        self._topics: dict[str, tuple[float, int]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    @property
    def frame_bytes_max(self) -> int:
        return self._sink.frame_bytes_max

    def acquire(self, need: Credit) -> None:
        """Take credit from the window.

        Raises:
            OutOfCredit: there is not enough credit now.
            TooMuch: the window can never have enough credit.
        """
        if self.window.try_acquire(*need):
            return
        if not self.window.ever_fits(need):
            raise TooMuch(
                f"a request of {need} exceeds the window of all requests: {self.window.granted}"
            )
        raise OutOfCredit(need, self.window, self._settings.retry_after_ms)

    async def target(self, topic: str, partition: int) -> int:
        """Return the partition for a request: the given one, or the topic's partitions in turn.

        Raises:
            PenstockError: the sink does not know the topic, or does not respond.
        """
        if self.producer_id == NO_PRODUCER_ID or (topic and self._partitions(topic) is None):
            asking = self._asking.get(topic)
            if asking is None:
                asking = asyncio.get_running_loop().create_task(self._ask(topic))
                self._asking[topic] = asking
                asking.add_done_callback(lambda _: self._asking.pop(topic))
            await asyncio.shield(asking)
        count = self._partitions(topic) or 0
        if partition != NO_PARTITION or not count:
            return partition
        self._turn += 1
        return self._turn % count

    async def _ask(self, topic: str) -> None:
        """Ask the sink about a topic, once for all requests that wait for it."""
        topics = (topic,) if topic else ()
        introduction = await introduce(self._sink, self.producer_id, topics)
        self.producer_id = introduction.producer_id
        if topic:
            while len(self._topics) >= TOPICS_MAX:
                del self._topics[next(iter(self._topics))]
            count = introduction.partitions.get(topic, 0)
            self._topics[topic] = (self._now_ms() + TOPIC_FRESH_MS, count)

    def _partitions(self, topic: str) -> int | None:
        until_ms, count = self._topics.get(topic, (0.0, 0))
        if self._now_ms() < until_ms:
            return count
        self._topics.pop(topic, None)
        return None

    async def deliver(
        self, body: memoryview, parts: list[Part], *, topic: str, partition: int
    ) -> Outcome:
        """Pass the parts of a body to the sink, and wait for all verdicts.

        It takes credit for the chunks and returns it. It also returns the credit for the body's
        bytes, which the caller has taken.

        Raises:
            OutOfCredit, TooMuch: nothing was passed to the sink.
        """
        count = sum(len(part.lengths) for part in parts)
        held = Credit(0, 0, len(body))
        try:
            self.acquire(Credit(count, count, 0))
            held = Credit(count, count, len(body))
            frames = [self._submit(body, part, topic, partition) for part in parts]
            verdicts = [
                verdict if not isinstance(verdict, asyncio.Future) else await verdict
                for verdict in frames
            ]
        finally:
            self.window.restore(*held)
        accepted = sum(
            len(part.lengths)
            for part, verdict in zip(parts, verdicts, strict=True)
            if isinstance(verdict, Accepted)
        )
        failures = [verdict for verdict in verdicts if isinstance(verdict, Failed)]
        worst = min(failures, key=lambda failed: failed.retryable, default=None)
        return Outcome(accepted_chunks=accepted, accepted_events=accepted, failed=worst)

    def _submit(
        self, body: memoryview, part: Part, topic: str, partition: int
    ) -> FinalVerdict | asyncio.Future[FinalVerdict]:
        count = len(part.lengths)
        chunks = Chunks(
            producer_id=self.producer_id,
            producer_epoch=0,
            first_sequence=self._next_sequence,
            count=count,
            event_count=count,
            payload=body[part.start : part.end],
            lengths=part.lengths,
            offsets=part.offsets,
            topic=topic,
            partition=partition,
        )
        self._next_sequence += count
        completed: asyncio.Future[FinalVerdict] = asyncio.get_running_loop().create_future()

        def complete(verdict: FinalVerdict) -> None:
            if not completed.done():
                completed.set_result(verdict)

        verdict = self._sink.accept(chunks, complete)
        return completed if isinstance(verdict, Pending) else verdict
