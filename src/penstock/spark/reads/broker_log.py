"""Implementation of `Log` and `Fetcher` with Penstock's Kafka client, for driver and tasks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.base.ids import TopicPartition
from penstock.records.extents import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from penstock.spark.errors import DataLoss, NotServed
from penstock.spark.reads.chunks import Fetched
from penstock.spark.reads.log import TopicState

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.arguments import Isolation


NO_OPTIONS: Final[Mapping[str, str]] = {}
FETCH_WAIT_MS: Final = 500
"""Longest time a broker waits for records before it returns an empty fetch response."""

FETCH_ATTEMPTS_MAX: Final = 120
"""Number of fetch requests for records that should be in the log."""
CALL_TIMEOUT_MS: Final = 120_000
"""Longest time for one call including retries; long enough for a leader election."""


class BrokerLog:
    """Kafka client that connects when it is first used."""

    def __init__(
        self,
        bootstrap: str,
        isolation: int = READ_UNCOMMITTED,
        security: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        """Create the client; `isolation` is the isolation level for end offsets and fetches."""
        self._security = security
        self._bootstrap = bootstrap
        self._isolation = isolation
        self._client: Client | None = None

    def topics(self, names: tuple[str, ...] | None) -> Mapping[str, TopicState]:
        found = self.client.metadata(names).topics
        return {
            name: TopicState(
                topic_id=str(topic.topic_id),
                leader_epochs={item.index: item.leader_epoch for item in topic.partitions},
                replicas=max((len(item.replicas) for item in topic.partitions), default=1),
            )
            for name, topic in found.items()
            if topic.error_code == 0 and not (names is None and topic.internal)
        }

    def offsets(self, topic: str, at: int) -> Mapping[int, int]:
        point = {EARLIEST: "earliest", LATEST: "latest"}.get(at, at)
        return self.client.list_offsets(topic, point, isolation=self._isolation)

    def written(self, topic: str) -> Mapping[int, int]:
        return self.client.list_offsets(topic, "latest")

    def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def fetch(self, at: TopicPartition, offset: int, max_bytes: int) -> Fetched:
        from penstock.client import OffsetOutOfRange

        isolation: Isolation = (
            "read_committed" if self._isolation == READ_COMMITTED else "read_uncommitted"
        )
        said = ""
        for _ in range(FETCH_ATTEMPTS_MAX):
            try:
                found = self.client.fetch_raw(
                    at.topic,
                    at.partition,
                    offset,
                    max_bytes=max_bytes,
                    max_wait_ms=FETCH_WAIT_MS,
                    isolation=isolation,
                )
            except OffsetOutOfRange as error:
                log_start = self.offsets(at.topic, EARLIEST)[at.partition]
                if offset < log_start:
                    raise DataLoss(at.topic, at.partition, offset, log_start) from None
                # The previous leader may not have noticed yet that it lost leadership.
                said = str(error)
                self.topics((at.topic,))
                self.pause(FETCH_WAIT_MS / 1_000)
                continue
            if found.data:
                return Fetched(found.data, found.aborted)
            said = (
                f"last stable offset {found.last_stable_offset}, high watermark"
                f" {found.high_watermark}"
            )
        raise NotServed(
            f"{at}: the leader returned no records for offset {offset} in"
            f" {FETCH_ATTEMPTS_MAX} requests, although the offset was readable when the read was"
            f" planned. Last response: {said}. Search the leader's log for this partition"
        )

    @property
    def client(self) -> Client:
        if self._client is None:
            from penstock.client import Client

            self._client = Client(
                self._bootstrap,
                client_id="penstock-spark",
                api_timeout_ms=CALL_TIMEOUT_MS,
                security=self._security,
            )
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
