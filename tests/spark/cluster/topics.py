"""Topics of the cluster's tests; the `topic` fixture needs a session in this process."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from penstock.testing import Broker

NUMBERS = itertools.count()
PARTITIONS = 3


class Records:
    """A topic with records whose values are all different, and one to write to."""

    def __init__(self, broker: Broker) -> None:
        number = next(NUMBERS)
        self.name, self.out = f"cluster-{number}", f"cluster-{number}-out"
        self.broker = broker
        self.client = broker.client()
        for name in (self.name, self.out):
            self.client.create_topic(name, partitions=PARTITIONS)

    def write(self, count: int) -> list[bytes]:
        keys = [f"k{number % 10}" for number in range(count)]
        values = [f"value {number}" for number in range(count)]
        self.client.write_arrow(self.name, pa.table({"key": keys, "value": values}))
        return [value.encode() for value in values]

    def options(self, *, topic: str | None = None, **more: object) -> dict[str, str]:
        given = {
            "bootstrap": self.broker.bootstrap,
            "penstock.admin.url": self.broker.admin_url,
            "subscribe": topic or self.name,
            "startingOffsets": "earliest",
        }
        return given | {name: str(value) for name, value in more.items()}

    def appended(self, driver: Any) -> list[bytes]:
        """The values of the topic that was written to."""
        from tests.spark.cluster import jobs

        found: list[bytes] = driver.call(jobs.batch, self.options(topic=self.out))
        return found
