"""`Log` and `Fetcher` over Penstock's client: the road to a broker from driver and tasks."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.ids import TopicPartition
from penstock.client import Client
from penstock.spark.log import TopicState
from penstock.spark.options import EARLIEST, LATEST


class BrokerLog:
    """One client, opened when first needed."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client: Client | None = None

    def topics(self, names: tuple[str, ...] | None) -> Mapping[str, TopicState]:
        raise NotImplementedError

    def offsets(self, topic: str, at: int) -> Mapping[int, int]:
        point = {EARLIEST: "earliest", LATEST: "latest"}.get(at, at)
        return self.client.list_offsets(topic, point)

    def fetch(self, at: TopicPartition, offset: int, max_bytes: int) -> bytes:
        raise NotImplementedError

    @property
    def client(self) -> Client:
        """The client, connected."""
        if self._client is None:
            self._client = Client(self._bootstrap, client_id="penstock-spark")
        return self._client

    def close(self) -> None:
        """Give up the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
