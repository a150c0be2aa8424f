"""Encoding of frames as record batches with their producer's id, epoch and sequence.

An OPAQUE frame becomes one batch; each chunk is the value of a record. Columns are encoded from the
received bytes without a copy. The sequences of the batch follow from `log_sequence` and `count`
alone. So a repeated frame is recognised, even if another agent encodes it again later. Timestamps
are not part of this: they are the agent's time at the first attempt that was written.

The chunks of a RECORD_BATCH frame are batches already. Each is checked as a broker would check it,
so a bad batch is rejected before anything of its frame is sent. The records are not copied: a batch
is sent as a new header and a view of the rest. The new checksum is derived from the old one, not
from the records, so it protects them from producer to reader.

Source: KIP-98; `docs/decisions/0010-identity-carried-into-the-log.md`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.client.producer_partitions import Pieces
from penstock.host import limits as host_limits
from penstock.host.port import NO_LOG_SEQUENCE, Chunks
from penstock.records import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    InvalidRecord,
    RecordTooLarge,
    decode_header,
    stamp_identity,
    validate_batch,
    verify_crc,
)
from penstock.records.columnar.encode import encode_batches
from penstock.records.columnar.inputs import Column, Input
from penstock.records.header import NO_PRODUCER_ID

_RECORD_OVERHEAD_BYTES: Final = 10
"""Bytes of a record besides its value of up to 8,191 bytes.

They are two lengths of two bytes each, attributes, timestamp delta, an offset delta of two bytes,
no key and no headers.
"""
_LONG_OVERHEAD_BYTES: Final = 2
"""Additional bytes for a longer value of up to 1 MiB: a third byte of both lengths."""
_LONG_VALUE_BYTES: Final = 8_000
_ENCODER_SLACK_BYTES: Final = 32
"""Bytes reserved per record; they exceed the encoder's estimate, so it never splits a frame."""
_NO_EPOCH: Final = -1


def frame_bytes_max(message_bytes_max: int) -> int:
    """Return the maximum payload bytes that fit one batch, in any number of chunks.

    Raises:
        InvalidRecord: no frame would fit.
    """
    chunks = host_limits.CHUNKS_PER_FRAME_MAX
    room = message_bytes_max - HEADER_BYTES - chunks * _RECORD_OVERHEAD_BYTES
    room -= _LONG_OVERHEAD_BYTES * (room // _LONG_VALUE_BYTES + 1)
    if room <= 0:
        raise InvalidRecord(
            f"batches of {message_bytes_max} bytes are too small for a frame of {chunks} chunks"
        )
    return room


def encode_opaque(chunks: Chunks, *, now_ms: int, message_bytes_max: int) -> list[Pieces]:
    """Return one batch with a record for each chunk, with timestamp `now_ms`.

    Raises:
        RecordTooLarge: the batch exceeds `message_bytes_max`.
    """
    count = chunks.count
    data = np.frombuffer(chunks.payload or bytes(1), np.uint8)
    starts = chunks.offsets.astype(np.int32)
    values = Column(data=data, starts=starts, ends=starts + chunks.lengths.astype(np.int32))
    producer_id, epoch = chunks.producer_id, chunks.producer_epoch
    if chunks.log_sequence == NO_LOG_SEQUENCE:
        producer_id, epoch = NO_PRODUCER_ID, _NO_EPOCH
    (batch,) = encode_batches(
        Input(value=values, timestamps=np.full(count, now_ms)),
        now_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=chunks.log_sequence,
        max_batch_bytes=HEADER_BYTES + len(data) + count * _ENCODER_SLACK_BYTES,
        records_per_batch=count,
    )
    if batch.size_bytes > message_bytes_max:
        raise RecordTooLarge(
            f"a frame of {count} chunks and {len(chunks.payload)} bytes needs a batch of"
            f" {batch.size_bytes} bytes; the limit is {message_bytes_max} bytes"
        )
    return [Pieces(batch.data, batch.record_count)]


def stamp_batches(chunks: Chunks, *, message_bytes_max: int) -> list[Pieces]:
    """Return the frame's batches with the producer's id, as headers and views of the records.

    Raises:
        CorruptBatch: a chunk is not one whole batch, or its checksum is wrong.
        InvalidRecord: clients may not produce such a batch, it is transactional, or the batches
            do not have as many records as the frame has events.
        UnsupportedCodec: Kafka does not define the codec.
        RecordTooLarge: a batch exceeds `message_bytes_max`.
    """
    pieces: list[Pieces] = []
    sequence = chunks.log_sequence
    records = 0
    extents = zip(chunks.offsets.tolist(), chunks.lengths.tolist(), strict=True)
    for index, (at, size) in enumerate(extents):
        batch = chunks.payload[at : at + size]
        header = _checked(batch, index, message_bytes_max)
        pieces.append(_stamped(batch, header, chunks, sequence))
        records += header.record_count
        if sequence != NO_LOG_SEQUENCE:
            sequence = (chunks.log_sequence + records) % host_limits.LOG_SEQUENCES
    if records != chunks.event_count:
        raise InvalidRecord(
            f"a frame of {chunks.event_count} events has {records} records; both numbers"
            " must be equal"
        )
    return pieces


def _checked(batch: memoryview, index: int, message_bytes_max: int) -> BatchHeader:
    header = decode_header(batch)
    if header.size_bytes != len(batch):
        raise CorruptBatch(
            f"chunk {index} has {len(batch)} bytes, but its batch states {header.size_bytes} bytes"
        )
    if len(batch) > message_bytes_max:
        raise RecordTooLarge(
            f"chunk {index} is a batch of {len(batch)} bytes; the limit is {message_bytes_max}"
        )
    validate_batch(header)
    verify_crc(batch, header)
    return header


def _stamped(batch: memoryview, header: BatchHeader, chunks: Chunks, sequence: int) -> Pieces:
    if sequence != NO_LOG_SEQUENCE:
        producer_id, epoch = chunks.producer_id, chunks.producer_epoch
    elif header.producer_id == NO_PRODUCER_ID:
        return Pieces(batch, header.record_count)
    else:
        producer_id, epoch = NO_PRODUCER_ID, _NO_EPOCH
    head = stamp_identity(
        batch, header, producer_id=producer_id, epoch=epoch, base_sequence=sequence
    )
    return Pieces(head, header.record_count, batch[HEADER_BYTES:])
