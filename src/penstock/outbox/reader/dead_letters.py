"""Dead letters: copies of records whose payload cannot be used, on their own topic.

A dead letter has the key, value and headers of the record, followed by these headers:

| header                            | value                                                    |
|-----------------------------------|----------------------------------------------------------|
| `penstock-dead-letter-reason`     | a word: `missing`, `size-mismatch`, `checksum-mismatch`, |
|                                   | `too-large`, `path-escapes`, `invalid-pointer` …         |
| `penstock-dead-letter-message`    | the error as a sentence                                  |
| `penstock-dead-letter-topic`      | the record's topic                                       |
| `penstock-dead-letter-partition`  | in decimal digits                                        |
| `penstock-dead-letter-offset`     | in decimal digits                                        |

A value that is too large for the dead-letter topic is replaced by null.

The consumer's position passes a record only after all replicas have acknowledged its dead letter. A
crash in between writes the dead letter twice. To process a dead letter again, produce it to its
original topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.client.errors import MessageTooLarge
from penstock.outbox.reader.record_columns import header_column
from penstock.outbox.reader.tail import backwards
from penstock.records.columnar import HEADERS_TYPE
from penstock.records.positions import READ_COMMITTED

if TYPE_CHECKING:
    from penstock.client import Client

DEAD_LETTERS_LOOKED_AT_MAX: Final = 10_000
"""Latest records per partition of the dead-letter topic that a starting consumer reads."""
REASON_BYTES_MAX: Final = 1024
"""Bytes of a reason or message in a dead letter's headers. Longer texts are cut."""

REASON_HEADER: Final = "penstock-dead-letter-reason"
MESSAGE_HEADER: Final = "penstock-dead-letter-message"
TOPIC_HEADER: Final = "penstock-dead-letter-topic"
PARTITION_HEADER: Final = "penstock-dead-letter-partition"
OFFSET_HEADER: Final = "penstock-dead-letter-offset"

Headers = Sequence[tuple[str, bytes | None]]


class DeadLetters:
    """Writer and reader of one dead-letter topic.

    Raises:
        UnknownTopic: the cluster has no such topic.
    """

    def __init__(self, client: Client, topic: str) -> None:
        client.describe_topic(topic)
        self._client = client
        self.topic = topic

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        *,
        source: tuple[str, int, int],
        reason: str,
        message: str,
    ) -> None:
        """Write a dead letter and wait for its acknowledgement.

        `source` is the topic, partition and offset of the record.

        Raises:
            PenstockError: the topic rejects it.
        """
        topic, partition, offset = source
        pairs = [
            *headers,
            (REASON_HEADER, reason.encode()[:REASON_BYTES_MAX]),
            (MESSAGE_HEADER, message.encode()[:REASON_BYTES_MAX]),
            (TOPIC_HEADER, topic.encode()),
            (PARTITION_HEADER, b"%d" % partition),
            (OFFSET_HEADER, b"%d" % offset),
        ]
        listed = [[{"key": name, "value": data} for name, data in pairs]]
        table = pa.table(
            {
                "key": pa.array([key], pa.binary()),
                "value": pa.array([value], pa.binary()),
                "headers": pa.array(listed, HEADERS_TYPE),
            }
        )
        try:
            self._client.write_arrow(self.topic, table)
        except MessageTooLarge:
            # The topic allows smaller records than its source: send the headers only.
            bare = table.set_column(1, "value", pa.nulls(1, pa.binary()))
            self._client.write_arrow(self.topic, bare)

    def sources(self, topic: str) -> set[tuple[int, int]]:
        """Return (partition, offset) of each record of `topic` among the latest dead letters."""
        first = self._client.list_offsets(self.topic, "earliest")
        last = self._client.list_offsets(self.topic, "latest", isolation=READ_COMMITTED)
        found: set[tuple[int, int]] = set()
        for partition, end in last.items():
            start = max(first[partition], end - DEAD_LETTERS_LOOKED_AT_MAX)
            for table in backwards(
                self._client, self.topic, partition, first=start, end=end, columns=("headers",)
            ):
                found |= _sources(table.column("headers"), topic)
        return found


def _sources(headers: Any, topic: str) -> set[tuple[int, int]]:
    columns = [
        header_column(headers, name).to_pylist()
        for name in (TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER)
    ]
    source_topic = topic.encode()
    return {
        (int(partition), int(offset))
        for name, partition, offset in zip(*columns, strict=True)
        if name == source_topic and _is_number(partition) and _is_number(offset)
    }


def _is_number(text: bytes | None) -> bool:
    return text is not None and 1 <= len(text) <= 19 and text.isdigit()
