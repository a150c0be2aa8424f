"""Outbox sink of the host agent, which starts and stops its own outbox writer."""

from __future__ import annotations

from penstock.host.sinks.counting import FRAME_BYTES_MAX
from penstock.host.sinks.outbox import OutboxSink
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.publisher import TopicPublisher
from penstock.outbox.writer.writer import OutboxWriter


class OwnedOutboxSink(OutboxSink):
    """Outbox sink that starts and stops its outbox writer."""

    def __init__(
        self,
        settings: OutboxSettings,
        *,
        bootstrap: str,
        partition_id: str | None,
        retained_bytes_max: int,
        retry_after_ms: int,
    ) -> None:
        self._publisher = TopicPublisher(bootstrap, settings.topic)
        self._writer = OutboxWriter(settings, publisher=self._publisher)
        super().__init__(
            self._writer,
            partition_id=partition_id,
            frame_bytes_max=min(FRAME_BYTES_MAX, settings.payload_bytes_max),
            retained_bytes_max=retained_bytes_max,
            retry_after_ms=retry_after_ms,
        )
        self.stands_on = f"outbox root {settings.root} or brokers {bootstrap}"

    async def start(self) -> None:
        """Open the outbox's root and connect to the cluster.

        Raises:
            PenstockError: the root does not exist, or no broker answers.
        """
        await self._writer.start()

    async def check(self) -> None:
        """Check that the sink and the disk have room for a frame, and that the topic of pointers
        exists.

        Raises:
            PenstockError: room or topic is missing.
        """
        await super().check()
        await self._writer.check(self.frame_bytes_max)
        await self._publisher.check()

    async def stop(self, deadline_seconds: float) -> None:
        """Complete pending frames, then close the writer."""
        await super().stop(deadline_seconds)
        await self._writer.stop(deadline_seconds)
