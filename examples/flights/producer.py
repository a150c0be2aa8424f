"""Writes weather and flights to the log, in event order, with the columnar client.

Weather comes first, as it would be measured first. Flights follow at the rate asked for; without
one as fast as they go. Topics keep their records for good: their timestamps are of 2013, and
retention by time goes by those.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import pyarrow as pa

from examples.flights import data
from penstock.client import Client

PARTITIONS: Final = {data.FLIGHTS: 6, data.WEATHER: 3, data.DEAD_LETTERS: 1}
END_SECONDS: Final = 10.0


def create_topics(client: Client) -> None:
    """The three topics of the demo."""
    for topic, partitions in PARTITIONS.items():
        client.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})


class Producer:
    """Produces in a thread of its own; `sent` may be read at any time."""

    def __init__(self, bootstrap: str, flights: pa.Table, rate: int | None) -> None:
        self.total: int = flights.num_rows
        self.sent = 0
        self.seconds = 0.0
        self.error: Exception | None = None
        self._bootstrap = bootstrap
        self._flights = flights
        self._rate = rate
        self._began = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._began = time.monotonic()
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether everything was acknowledged."""
        return self.sent == self.total

    def end(self) -> None:
        """Stop early, if it still runs."""
        self._stopped = True
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        try:
            with Client(self._bootstrap) as client:
                client.write_arrow(
                    data.FLIGHTS,
                    self._flights,
                    records_per_second=self._rate,
                    progress=self._acknowledged,
                )
        except Exception as error:
            self.error = None if self._stopped else error

    def _acknowledged(self, records: int, _: int) -> None:
        if self._stopped:
            raise InterruptedError("the demo ends")
        self.sent = records
        self.seconds = time.monotonic() - self._began
