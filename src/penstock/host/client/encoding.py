"""Encoding of Arrow tables to frames of record batches.

The producer encodes columns, with the code that `penstock.client` uses to write tables. The agent
forwards the records without decoding them. Each frame has one batch. Batches have no producer id:
the agent writes the producer's id, epoch and sequence into them, from the log sequence of the
frame. So a frame that is sent twice is written once.

Kafka's partitioner chooses the partition of records with a key. A whole batch of records without a
key is sent to the next partition in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields

from penstock.base.settings import INT_MAX
from penstock.client.arguments import optional_whole, whole
from penstock.client.columns import ColumnNames, choose, chunks, normalise, open_stream, pick
from penstock.client.errors import BATCH_BYTES, CHUNK_ROWS_MAX, InvalidArgument
from penstock.client.partitioning import check_partitions, spread
from penstock.client.writer import parse_codec, parse_level
from penstock.host.client.publications import Turns
from penstock.host.errors import InvalidChunks
from penstock.host.port import ChunkFormat
from penstock.host.publication import Publication, single
from penstock.records import HEADER_BYTES
from penstock.records.columnar import encode_batches, read_input

ENCODED_BYTES_MAX: Final = 32 << 20
"""Maximum bytes that are encoded at a time if a table has records for many partitions."""

_FILLED_SHARE: Final = 0.85
"""Size of a chunk as a share of a full batch; it avoids a second, tiny batch."""

_FRAME_HEADER_BYTES_MAX: Final = 1024
"""Bytes reserved for the header of a frame: a topic name of at most 249 bytes, and numbers."""


class RecordOptions(Struct, frozen=True, kw_only=True):
    """Columns of a table and the encoding of its records, as in `Client.write_arrow`."""

    key: str | None = "key"
    value: str = "value"
    timestamp: str | None = "timestamp"
    headers: str | None = "headers"
    partition: int | str | None = None
    codec: str = "none"
    level: int | None = None
    batch_bytes: int = BATCH_BYTES

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RecordOptions:
        """Return options from values by name.

        Raises:
            InvalidArgument: an option is unknown, or a number out of its bounds.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise InvalidArgument(
                    f"unknown option {name!r}; known options are {', '.join(known)}"
                )
        made = cls(**options)
        whole("batch_bytes", made.batch_bytes, HEADER_BYTES + 1, INT_MAX)
        if not isinstance(made.partition, str):
            optional_whole("partition", made.partition, 0, INT_MAX)
        parse_level(parse_codec(made.codec), made.level)
        return made


def record_frames(
    topic: str,
    data: Any,
    options: RecordOptions,
    *,
    partitions: int,
    frame_bytes_max: int,
    turns: Turns,
    now_ms: Callable[[], int],
) -> Iterator[Publication]:
    """Encode a table piece by piece; yield one publication per record batch, each of one partition.

    `data` is any object with Arrow's C stream interface. The order of rows is kept within a
    partition.

    Raises:
        InvalidArgument: columns or options are invalid.
        InvalidChunks: the agent has not sent the topic's number of partitions.
        InvalidRecord, RecordTooLarge: rows cannot be encoded.
    """
    own = None if isinstance(options.partition, str) else options.partition
    if partitions < 1 and own is None:
        raise InvalidChunks(
            f"the agent has not sent the number of partitions of topic {topic!r}; add it to the"
            " client's topics, or name a partition"
        )
    if own is not None and partitions:
        check_partitions(topic, partitions, own, own)
    codec = parse_codec(options.codec)
    stream, names = _columns(data, options)
    to_many = own is None and (names.key is not None or names.partition is not None)
    batch_bytes = min(options.batch_bytes, frame_bytes_max - _FRAME_HEADER_BYTES_MAX)
    chunk_bytes = int(batch_bytes * (partitions if to_many else 1) * _FILLED_SHARE)
    chunk_bytes = max(1, min(chunk_bytes, ENCODED_BYTES_MAX))
    for piece in chunks(pick(stream, names), CHUNK_ROWS_MAX, chunk_bytes):
        chunk = normalise(piece, names)
        rows = read_input(chunk, now_ms())
        turn = turns.partition(topic, {topic: partitions}) if own is None else own
        parts: Iterable[tuple[int, Any]] = ((turn, rows),)
        if to_many:
            parts = spread(chunk, rows, topic=topic, count=partitions, unkeyed=turn)
        for partition, part in parts:
            for batch in encode_batches(
                part,
                codec=codec,
                level=options.level,
                max_batch_bytes=batch_bytes,
                now_ms=now_ms(),
            ):
                yield single(
                    batch.data,
                    event_count=batch.record_count,
                    topic=topic,
                    partition=partition,
                    format=ChunkFormat.RECORD_BATCH,
                )


def _columns(data: Any, options: RecordOptions) -> tuple[Any, ColumnNames]:
    stream = open_stream(data)
    names = choose(
        stream.schema,
        key=options.key,
        value=options.value,
        timestamp=options.timestamp,
        headers=options.headers,
        partition=options.partition if isinstance(options.partition, str) else None,
    )
    return stream, names
