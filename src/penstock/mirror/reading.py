"""Readers of a mirror's topics: a thread for each topic, and one bounded queue of fetched batches.

A thread waits at the brokers of the source for records of its topic. It ends with an error, at the
end offsets, or when the client of the source is closed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.client import Client
from penstock.client.fetch import Run

BUFFER_BYTES: Final = 96 << 20
"""Most bytes of fetched batches that wait, over all topics."""
FETCH_BYTES_MAX: Final = 8 << 20
FETCH_BYTES_MIN: Final = 256 << 10
QUEUE_RUNS: Final = 16
_RESPONSES: Final = 4
"""Responses that a reader may hold: one in the queue, one to be queued, two in flight."""
_PUT_SECONDS: Final = 0.1


class Fetched(NamedTuple):
    """Batches of one partition of a topic."""

    topic: str
    run: Run


class Reading:
    """Running readers.

    Args:
        client: client of the source, which only these readers use.
        starts: first offset of each partition, by topic.
        ends: offsets at which the readers stop, by topic; None follows the logs.
    """

    def __init__(
        self,
        client: Client,
        starts: Mapping[str, Mapping[int, int]],
        ends: Mapping[str, Mapping[int, int]] | None,
    ) -> None:
        self._client = client
        self._closed = threading.Event()
        self._queue: queue.Queue[Fetched | Exception | None] = queue.Queue(QUEUE_RUNS)
        self._running = len(starts)
        share = BUFFER_BYTES // (_RESPONSES * max(1, len(starts)))
        self._fetch_bytes = min(FETCH_BYTES_MAX, max(FETCH_BYTES_MIN, share))
        for topic, offsets in starts.items():
            until = None if ends is None else ends[topic]
            threading.Thread(
                target=self._read, args=(topic, offsets, until), name=f"mirror {topic}", daemon=True
            ).start()

    @property
    def done(self) -> bool:
        """Whether all readers have reached their end offsets, and nothing waits."""
        return self._running == 0

    def take(self, wait_seconds: float) -> Fetched | None:
        """Return the next batches; None if there are none within a time, or all readers ended.

        Raises:
            Exception: the error with which a reader has ended.
        """
        while self._running:
            try:
                found = self._queue.get(timeout=wait_seconds)
            except queue.Empty:
                return None
            if isinstance(found, Exception):
                raise found
            if found is not None:
                return found
            self._running -= 1
        return None

    def close(self) -> None:
        """End all readers and close the client."""
        self._closed.set()
        self._client.close()

    def _read(self, topic: str, starts: Mapping[int, int], ends: Mapping[int, int] | None) -> None:
        try:
            for runs in self._client.iter_runs(topic, starts, ends, max_bytes=self._fetch_bytes):
                for run in runs:
                    self._put(Fetched(topic, run))
                if self._closed.is_set():
                    return
        except Exception as error:  # raised by `take`
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: Fetched | Exception | None) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=_PUT_SECONDS)
            except queue.Full:
                continue
            return
