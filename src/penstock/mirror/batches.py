"""Record batches of a source partition as transactional batches for the target.

Source batches are checked, and decompressed if they are compressed. A kernel copies their records
into batches of up to `BATCH_BYTES`, without gaps, and adds the header `ORIGIN`. Batches of aborted
transactions and control batches are skipped. Codec, timestamps, keys, values and headers are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.base.settings import LONG_MAX
from penstock.client.fetch import Run
from penstock.client.frames import Frames
from penstock.client.produce import Batch
from penstock.client.producers import ProducerIdentity
from penstock.kernels import mirroring, record_writing, records
from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.columnar.batches import (
    aborted_batches,
    check_crcs,
    find_batches,
    open_batches,
)
from penstock.records.columnar.walk import corrupt
from penstock.records.compression import compress
from penstock.records.errors import CorruptBatch, RecordTooLarge
from penstock.records.header import (
    CODEC_MASK,
    DECOMPRESSED_BYTES_MAX,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    encode_header,
    seal,
)

ORIGIN: Final = "penstock.origin"
"""Record header with the id of the cluster that a record was first written to."""
BATCH_BYTES: Final = 1_000_000
"""Most bytes of records in a batch before compression; a larger record has its own batch."""
BATCH_RECORDS_MAX: Final = 20_000
_TEXT_BYTES_MAX: Final = 63
Firsts = dict[int, list[tuple[int, int]]]
"""Source offset of the first record of each batch, and number of its records, by partition."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin header of mirrored records; `home` is the cluster whose records are not mirrored.

    Both are cluster ids, of up to 63 bytes.
    """

    source: str
    home: str

    def header(self) -> bytes:
        return _sized(ORIGIN) + _sized(self.source)


def _sized(text: str) -> bytes:
    """Return the UTF-8 bytes of a text after their number, which is a varint of one byte."""
    encoded = text.encode()
    if len(encoded) > _TEXT_BYTES_MAX:
        raise RecordTooLarge(
            f"cluster id {text!r} has {len(encoded)} bytes; the limit is {_TEXT_BYTES_MAX}"
        )
    return bytes([2 * len(encoded)]) + encoded


class Converter:
    """Converter of fetched batches; it adds a header only if there is an origin."""

    def __init__(self, origin: Origin | None) -> None:
        header = b"" if origin is None else origin.header()
        home = "" if origin is None else origin.home
        self._texts = [
            np.frombuffer(text, np.uint8) for text in (header, ORIGIN.encode(), home.encode())
        ]
        self._frames = Frames()

    def batches(
        self, topic: str, run: Run, identity: ProducerIdentity, to: str, firsts: Firsts,
        until: int = LONG_MAX,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yield the records of a run as batches of the topic `to`, and add them to `firsts`.

        They are transactional if the identity is idempotent. Batches that begin at the offset
        `until` or above are left out.

        Raises:
            CorruptBatch: a stored batch is damaged, or is larger than the limits of a reader.
        """
        try:
            yield from self._converted(run, identity, to, firsts, until)
        except (CorruptBatch, RecordTooLarge) as error:
            raise CorruptBatch(
                f"{topic}-{run.partition}: offsets from {run.start_offset} to"
                f" {run.behind.offset} cannot be read: {error}"
            ) from error

    def _converted(
        self, run: Run, identity: ProducerIdentity, to: str, firsts: Firsts, until: int
    ) -> Iterator[Batch]:
        table = find_batches(run.data, run.start_offset, until, False)
        if run.aborted and len(table):
            table = table[~aborted_batches(run.data, table, run.aborted)]
        if not len(table):
            return
        check_crcs(run.data, table)
        codecs = table[:, records.ATTRIBUTES] & CODEC_MASK
        for piece in open_batches(run.data, table, DECOMPRESSED_BYTES_MAX):
            low = piece.low
            while low < piece.high:
                others = np.flatnonzero(codecs[low : piece.high] != codecs[low])
                high = low + int(others[0]) if len(others) else piece.high
                rows = table[low:high]
                for body, cut in self._copied(piece.data, rows, run.start_offset):
                    first = (cut[mirroring.FIRST_OFFSET], cut[mirroring.RECORDS])
                    firsts.setdefault(run.partition, []).append(first)
                    yield _sealed(body, cut, int(codecs[low]), run.partition, identity, to)
                low = high

    def _copied(
        self, data: Bytes, table: Ints, start: int
    ) -> Iterator[tuple[memoryview, list[int]]]:
        total = int((table[:, records.END] - table[:, records.BEGIN]).sum())
        count = int(table[:, records.COUNT].sum())
        header, name, home = self._texts
        total += count * (mirroring.RECORD_BYTES_MORE + len(header))
        cuts_max = 2 * (total // BATCH_BYTES) + count // BATCH_RECORDS_MAX + 4
        cuts = np.empty((cuts_max, record_writing.CUT_FIELDS), np.int64)
        state = np.zeros(records.STATE_FIELDS, np.int64)
        target = self._frames.take(total + HEADER_BYTES * cuts_max)
        found = mirroring.copy_records(
            data, table, start, header, name, home, BATCH_BYTES, BATCH_RECORDS_MAX,
            np.frombuffer(target, np.uint8), cuts, state,
        )  # fmt: skip
        if found < 0:
            raise corrupt(-found, state)
        at = 0
        for cut in cuts[:found].tolist():
            end = at + HEADER_BYTES + cut[record_writing.RECORDS_BYTES]
            yield target[at:end], cut
            at = end


def _sealed(
    body: memoryview,
    cut: list[int],
    codec: int,
    partition: int,
    identity: ProducerIdentity,
    to: str,
) -> Batch:
    """Return a batch; its header is written into the first bytes of `body`, before the records."""
    count = cut[mirroring.RECORDS]
    if codec:
        packed = compress(codec, body[HEADER_BYTES:])
        body = memoryview(bytearray().join((bytes(HEADER_BYTES), packed)))
    header = BatchHeader(
        base_offset=0,
        batch_length=len(body) - LENGTH_OVERHEAD_BYTES,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec | (TRANSACTIONAL_FLAG if identity.idempotent else 0),
        last_offset_delta=count - 1,
        base_timestamp=cut[record_writing.BASE_TIMESTAMP],
        max_timestamp=cut[record_writing.MAX_TIMESTAMP],
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=identity.sequence(to, partition),
        record_count=count,
    )
    body[:HEADER_BYTES] = encode_header(header)
    seal(body)
    identity.advance(to, partition, count)
    return Batch(partition, body, count)
