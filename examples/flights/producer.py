"""Writes weather and flights to the log, in event order, with the columnar client.

Weather comes first, as it would be measured first. Flights follow at the rate asked for, in
slices of a tenth of a second; without a rate as fast as they go. Topics keep their records for
good: their timestamps are of 2013, and retention by time goes by those.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import pyarrow as pa

from examples.flights import data
from penstock.client import Client

PARTITIONS: Final = {data.FLIGHTS: 6, data.WEATHER: 3, data.DEAD_LETTERS: 1}
SLICE_ROWS: Final = 50_000
SLICE_SECONDS: Final = 0.1


def create_topics(client: Client) -> None:
    """The three topics of the demo."""
    for topic, partitions in PARTITIONS.items():
        client.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})


class Producer:
    """Produces in a thread of its own; `sent` may be read at any time."""

    def __init__(self, bootstrap: str, flights: pa.Table, rate: int | None) -> None:
        self.total = flights.num_rows
        self.sent = 0
        self.seconds = 0.0
        self.error: BaseException | None = None
        self._bootstrap = bootstrap
        self._flights = flights
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether everything was acknowledged, or nothing more will be."""
        return self.sent == self.total or self.error is not None

    def end(self) -> None:
        """Stop early, if it still runs."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Client(self._bootstrap) as client:
                self._produce(client)
        except BaseException as error:
            self.error = error

    def _produce(self, client: Client) -> None:
        begin = time.monotonic()
        rows = SLICE_ROWS if self._rate is None else max(1, int(self._rate * SLICE_SECONDS))
        while self.sent < self.total and not self._stop.is_set():
            part = self._flights.slice(self.sent, rows)
            client.write_arrow(data.FLIGHTS, part)
            self.sent += part.num_rows
            self.seconds = time.monotonic() - begin
            if self._rate is not None:
                self._stop.wait(max(0.0, self.sent / self._rate - self.seconds))
