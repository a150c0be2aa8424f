"""Puts weather into the outbox and hands flights to the host's agent, in event order.

Weather comes first, as it would be measured first: one file per airport and day into the outbox,
and a pointer to each onto the log. Flights go through the agent's Unix socket, as batches of
records that the agent appends to the log with the producer's own identity: whatever happens to
the agent, each is on the log once. They go at the rate asked for; without one as fast as they can.
Topics keep their records for good: their timestamps are of 2013, and retention by time goes by
those.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

import pyarrow as pa

from examples.flights import data
from penstock.client import Client
from penstock.host import HostClient
from penstock.outbox import Outbox, OutboxSettings

PARTITIONS: Final = {data.FLIGHTS: 6, data.WEATHER: 3, data.DEAD_LETTERS: 1}
END_SECONDS: Final = 10.0
SLICE_ROWS: Final = 20_000
SLICES_PER_SECOND: Final = 10
ALL_TO_FILES: Final = -1


def create_topics(client: Client) -> None:
    """The three topics of the demo."""
    for topic, partitions in PARTITIONS.items():
        client.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})


def send_weather(files: list[data.WeatherFile], root: Path, bootstrap: str) -> float:
    """Send every file through the outbox; returns the seconds until all were acknowledged."""
    begun = time.monotonic()
    root.mkdir(parents=True, exist_ok=True)
    settings = OutboxSettings(
        root=str(root), topic=data.WEATHER, threshold_bytes=ALL_TO_FILES, pending_max=len(files)
    )
    with Outbox(settings, bootstrap) as outbox:
        sent = [
            outbox.send_async(
                file.lines,
                partition_id=file.airport,
                batch_id=file.name,
                event_count=file.line_count,
                at_ms=file.at_ms,
            )
            for file in files
        ]
        for future in sent:
            future.result()
    return time.monotonic() - begun


class Producer:
    """Produces flights in a thread of its own; `sent` may be read at any time."""

    def __init__(self, socket: Path, flights: pa.Table, rate: int | None) -> None:
        self.total: int = flights.num_rows
        self.sent = 0
        self.seconds = 0.0
        self.counts: list[tuple[float, int]] = []
        """How many were accepted by when, by the monotonic clock."""
        self.error: Exception | None = None
        self._socket = socket
        self._flights = flights
        self._rate = rate
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether it has begun."""
        return self._thread.ident is not None

    @property
    def done(self) -> bool:
        """Whether everything was accepted."""
        return self.sent == self.total

    def end(self) -> None:
        """Stop early, if it still runs."""
        self._stopped = True
        if self.started:
            self._thread.join(END_SECONDS)

    def _run(self) -> None:
        try:
            with HostClient(self._socket, topics=(data.FLIGHTS,), client_name="demo") as client:
                self._publish(client)
        except Exception as error:
            self.error = None if self._stopped else error

    def _publish(self, client: HostClient) -> None:
        begun = time.monotonic()
        rows = SLICE_ROWS if self._rate is None else max(1, self._rate // SLICES_PER_SECOND)
        for start in range(0, self.total, rows):
            if self._stopped:
                return
            part = self._flights.slice(start, rows)
            for accepted in client.publish_records(data.FLIGHTS, part):
                accepted.result()
            self.sent += part.num_rows
            self.counts.append((time.monotonic(), self.sent))
            self.seconds = time.monotonic() - begun
            if self._rate is not None:
                time.sleep(max(0.0, self.sent / self._rate - self.seconds))
