"""`Log` and `Fetcher` over Penstock's client: the road to a broker from driver and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.base.ids import TopicPartition
from penstock.spark.errors import DataLoss
from penstock.spark.log import TopicState
from penstock.spark.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from penstock.client import Client


class BrokerLog:
    """One client, opened when first needed."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client: Client | None = None

    def topics(self, names: tuple[str, ...] | None) -> Mapping[str, TopicState]:
        found = self.client.metadata(names).topics
        return {
            name: TopicState(
                topic_id=str(topic.topic_id),
                leader_epochs={item.index: item.leader_epoch for item in topic.partitions},
            )
            for name, topic in found.items()
            if topic.error_code == 0 and not (names is None and topic.internal)
        }

    def offsets(self, topic: str, at: int) -> Mapping[int, int]:
        point = {EARLIEST: "earliest", LATEST: "latest"}.get(at, at)
        return self.client.list_offsets(topic, point)

    def fetch(self, at: TopicPartition, offset: int, max_bytes: int) -> bytes:
        from penstock.client import OffsetOutOfRange

        try:
            return self.client.fetch_raw(at.topic, at.partition, offset, max_bytes=max_bytes).data
        except OffsetOutOfRange:
            log_start = self.offsets(at.topic, EARLIEST)[at.partition]
            if offset < log_start:
                raise DataLoss(at.topic, at.partition, offset, log_start) from None
            raise

    @property
    def client(self) -> Client:
        """The client, connected."""
        if self._client is None:
            from penstock.client import Client

            self._client = Client(self._bootstrap, client_id="penstock-spark")
        return self._client

    def close(self) -> None:
        """Give up the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
