"""Batches of the simulation: real headers and checksums over payloads that name themselves."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from penstock.records import HEADER_BYTES, BatchHeader, decode_header, encode_header, seal

_TAG = Struct(">q")
_OVERHEAD_BYTES = 12
SEQUENCES = 2**31


class Batch(NamedTuple):
    """What a producer sends: `tag` names it, wherever it is found."""

    tag: int
    offsets: int
    data: bytes


class Identity(NamedTuple):
    """An idempotent producer at a sequence; -1 for one that is not."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1

    def after(self, offsets: int) -> Identity:
        if self.producer_id < 0:
            return self
        return self._replace(sequence=(self.sequence + offsets) % SEQUENCES)


def make(
    tag: int, offsets: int, filler: int, timestamp: int, identity: Identity, attributes: int = 0
) -> Batch:
    """A batch of `offsets` records with some filler, sealed."""
    records = _TAG.pack(tag) + bytes(filler)
    header = BatchHeader(
        0, HEADER_BYTES - _OVERHEAD_BYTES + len(records), -1, 2, 0, attributes, offsets - 1,
        timestamp, timestamp, *identity, offsets,
    )  # fmt: skip
    buffer = bytearray(encode_header(header) + records)
    seal(buffer)
    return Batch(tag, offsets, bytes(buffer))


def renumbered(batch: Batch, identity: Identity) -> Batch:
    """The same batch as another sequence."""
    header = decode_header(memoryview(batch.data))
    changed = header._replace(
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=identity.sequence,
    )
    buffer = bytearray(encode_header(changed) + batch.data[HEADER_BYTES:])
    seal(buffer)
    return batch._replace(data=bytes(buffer))


def opened(data: memoryview) -> list[tuple[int, int, int]]:
    """(base offset, offsets, tag) of batches back to back; a marker's tag is its time, negative."""
    found, position = [], 0
    while position < len(data):
        header = decode_header(data, position)
        tag: int = -header.base_timestamp
        if not header.is_control:
            tag = _TAG.unpack_from(data, position + HEADER_BYTES)[0]
        found.append((header.base_offset, header.last_offset_delta + 1, tag))
        position += header.batch_length + _OVERHEAD_BYTES
    return found
