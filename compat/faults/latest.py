"""Records with keys in a compacted topic: what was sent last of each key, and what copies have."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from compat.survivors import PARTITIONS, Load
from penstock.records.columnar import decode_batches

KEYS = 40 * PARTITIONS
TOPIC = "latest"
CONFIG = {
    "min.insync.replicas": "2",
    "cleanup.policy": "compact",
    "internal.segment.bytes": "50000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "120000",  # longer than any replica is away
}
PADDING = bytes(200)


class Held(NamedTuple):
    """The values of a partition's keys, and how many records it has."""

    values: dict[bytes, bytes]
    records: int


class KeyedLoad(Load):
    """Sends the next value of each key in turn, to its partition; now and then a key is deleted."""

    def __init__(self, bootstrap: str, load: Load) -> None:
        """`load` has the history that is not told of these."""
        super().__init__(bootstrap, TOPIC, load.history, producer=2, burst=20, rest=0.05)
        self.settings["batch.num.messages"] = 50  # many are due at once after a fault
        self.values: list[dict[bytes, bytes]] = [{} for _ in range(PARTITIONS)]
        """What is there of each partition once all is acknowledged, which comes in order."""

    def __repr__(self) -> str:
        return "producer of keys"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acked += 1
        else:
            self.failures.append(error)

    def _produce(self, producer: Producer) -> None:
        place = self.sent % PARTITIONS
        key, value = b"%d" % (self.sent % KEYS), b"%d" % self.sent + PADDING
        deletes = self.sent % 7 == 0
        if deletes:
            self.values[place].pop(key, None)
        else:
            self.values[place][key] = value
        sent = None if deletes else value
        producer.produce(TOPIC, sent, key, partition=place, on_delivery=self._delivered)
        self.sent += 1
        producer.poll(0)


def held(data: Path, partition: int) -> Held:
    """What a copy's files say, of a broker that was stopped in good order."""
    paths = sorted((data / "log" / f"{TOPIC}-{partition}").glob("*.log"))
    table = decode_batches(b"".join(path.read_bytes() for path in paths))
    values: dict[bytes, bytes] = {}
    for key, value in zip(
        *(table.column(name).to_pylist() for name in ("key", "value")), strict=True
    ):
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return Held(values, table.num_rows)
