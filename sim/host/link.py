"""A connection: two byte streams, each in order, cut anywhere, ended at any moment."""

from __future__ import annotations

from collections.abc import Callable

from sim.host.scheduler import Scheduler


class Stream:
    """One direction. Bytes arrive in order, in pieces whose borders mean nothing."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._last_ms = 0.0
        self._cut = False
        self._closed = False
        self.receive: Callable[[bytes], None] | None = None
        self.ended: Callable[[], None] | None = None

    def send(self, data: bytes) -> None:
        if self._cut or self._closed:
            return
        random = self._scheduler.random
        if len(data) > 1 and random.random() < 0.4:
            at = random.randrange(1, len(data))
            self._plan(data[:at])
            data = data[at:]
        self._plan(data)

    def _plan(self, data: bytes) -> None:
        scheduler = self._scheduler
        self._last_ms = max(self._last_ms, scheduler.now_ms + scheduler.delay_ms())
        scheduler.at(self._last_ms, lambda: self._arrive(data))

    def _arrive(self, data: bytes) -> None:
        if not self._cut and self.receive is not None:
            self.receive(data)

    def close(self) -> None:
        """The sender has closed it: what was sent still arrives, then the end."""
        if self._closed or self._cut:
            return
        self._closed = True
        self._last_ms = max(self._last_ms, self._scheduler.now_ms + self._scheduler.delay_ms())
        self._scheduler.at(self._last_ms, self._end)

    def cut(self) -> None:
        """It breaks: what was not received is lost; the receiver hears of the end later."""
        if not self._cut:
            self._cut = True
            self._scheduler.after(self._scheduler.delay_ms(), self._end)

    def stop(self) -> None:
        """The receiver does not listen any more."""
        self.receive = None
        self.ended = None

    def _end(self) -> None:
        ended, self.ended = self.ended, None
        if ended is not None:
            ended()


class Link:
    """A connection between a producer and an agent, perhaps with a ring beside it."""

    def __init__(self, scheduler: Scheduler, ring: bytearray | None) -> None:
        self.to_agent = Stream(scheduler)
        self.to_producer = Stream(scheduler)
        self.ring = ring

    def cut(self) -> None:
        self.to_agent.cut()
        self.to_producer.cut()

    def leave_producer(self) -> None:
        """The producer closes its end, or dies."""
        self.to_producer.stop()
        self.to_agent.close()

    def leave_agent(self) -> None:
        """The agent closes its end, or dies."""
        self.to_agent.stop()
        self.to_producer.close()
