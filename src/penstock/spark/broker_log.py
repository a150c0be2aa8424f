"""`Log` and `Fetcher` over Penstock's client: the road to a broker from driver and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.base.ids import TopicPartition
from penstock.records.positions import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from penstock.spark.chunks import Fetched
from penstock.spark.errors import DataLoss, NotServed
from penstock.spark.log import TopicState

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.decoding import Isolation


NO_OPTIONS: Final[Mapping[str, str]] = {}
FETCH_WAIT_MS: Final = 500
"""How long a broker may gather what is asked for, before it answers that there is nothing."""

FETCH_ATTEMPTS_MAX: Final = 120
"""How often a broker is asked for records that it is known to have, before that is an error."""


class BrokerLog:
    """One client, opened when first needed."""

    def __init__(
        self,
        bootstrap: str,
        isolation: int = READ_UNCOMMITTED,
        security: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        """`isolation` says where the log ends, and which transactions' records are left out."""
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
            )
            for name, topic in found.items()
            if topic.error_code == 0 and not (names is None and topic.internal)
        }

    def offsets(self, topic: str, at: int) -> Mapping[int, int]:
        point = {EARLIEST: "earliest", LATEST: "latest"}.get(at, at)
        return self.client.list_offsets(topic, point, isolation=self._isolation)

    def written(self, topic: str) -> Mapping[int, int]:
        return self.client.list_offsets(topic, "latest")

    def fetch(self, at: TopicPartition, offset: int, max_bytes: int) -> Fetched:
        from penstock.client import OffsetOutOfRange

        isolation: Isolation = (
            "read_committed" if self._isolation == READ_COMMITTED else "read_uncommitted"
        )
        try:
            for _ in range(FETCH_ATTEMPTS_MAX):
                found = self.client.fetch_raw(
                    at.topic,
                    at.partition,
                    offset,
                    max_bytes=max_bytes,
                    max_wait_ms=FETCH_WAIT_MS,
                    isolation=isolation,
                )
                if found.data:
                    return Fetched(found.data, found.aborted)
        except OffsetOutOfRange:
            log_start = self.offsets(at.topic, EARLIEST)[at.partition]
            if offset < log_start:
                raise DataLoss(at.topic, at.partition, offset, log_start) from None
            raise
        raise NotServed(
            f"{at}: the broker was asked for offset {offset} {FETCH_ATTEMPTS_MAX} times and"
            f" answered with no records; it says that it serves up to {found.last_stable_offset}"
            f" (last stable) and {found.high_watermark} (high watermark). The offset was readable"
            " when the read was planned: the broker's log says what happened to it"
        )

    @property
    def client(self) -> Client:
        """The client, connected."""
        if self._client is None:
            from penstock.client import Client

            self._client = Client(
                self._bootstrap, client_id="penstock-spark", security=self._security
            )
        return self._client

    def close(self) -> None:
        """Give up the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
