"""Assembly of batches for consumers from the bytes of an object: checked, copied and stamped.

A write-ahead object has the bytes as producers sent them. Every batch is copied and gets its base
offset and leader epoch. If the topic uses log append time, it also gets the append time, and its
checksum is renewed. Bytes from a store may be damaged. Therefore the size and number of offsets of
each batch must match the batch index, and its checksum must be correct.

No record is decoded. The result for a partition is a `Run` of adjacent batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from penstock.archive.errors import CorruptObject
from penstock.archive.planning import Piece, Plan
from penstock.base.errors import PenstockError
from penstock.records import (
    CorruptBatch,
    LegacyBatch,
    decode_header,
    stamp,
    stamp_append_time,
    verify_crc,
)
from penstock.records.transactions import OFFSET_MAX

LEADER_EPOCH = 0
"""Leader epoch of partitions that were always diskless; they have no leader, so it is constant."""

Result = memoryview | PenstockError


class Run:
    """Adjacent batches in memory, from `base_offset` to `next_offset`, in the form for consumers.

    `offsets[n]` is the base offset of batch n, and `ends[n]` the byte position after it in `data`.
    """

    __slots__ = ("base_offset", "data", "ends", "next_offset", "offsets")

    def __init__(
        self,
        data: memoryview,
        offsets: list[int],
        ends: list[int],
        next_offset: int,
    ) -> None:
        self.data = data
        self.offsets = offsets
        self.ends = ends
        self.base_offset = offsets[0]
        self.next_offset = next_offset

    def __len__(self) -> int:
        return len(self.data)

    def part(
        self, offset: int, *, max_bytes: int, at_least_one: bool, end_offset: int = OFFSET_MAX
    ) -> tuple[memoryview, int]:
        """Return whole batches from the one that contains `offset`, and the offset after them.

        Args:
            offset: offset within this run.
            max_bytes: most bytes to return.
            at_least_one: whether the first batch is returned even if it is larger than `max_bytes`.
            end_offset: batches that begin at this offset or later are not returned.
        """
        first = bisect_right(self.offsets, offset) - 1
        start = self.ends[first - 1] if first else 0
        last = bisect_right(self.ends, start + max_bytes)
        if last <= first and at_least_one:
            last = first + 1
        last = min(last, bisect_left(self.offsets, end_offset))
        if last <= first:
            return self.data[:0], offset
        end = self.ends[last - 1]
        next_offset = self.offsets[last] if last < len(self.offsets) else self.next_offset
        return self.data[start:end], next_offset


def results_of(pieces: Sequence[Piece], plan: Plan, answers: Sequence[Result]) -> list[Result]:
    """Return the bytes of each piece, cut from the range that contains it, or its error.

    `answers` has the bytes of each range of `plan`, or the error of reading the range.
    """
    results: list[Result] = []
    for piece, (index, offset) in zip(pieces, plan.locations, strict=True):
        answer = answers[index]
        if isinstance(answer, PenstockError):
            results.append(answer)
        else:
            results.append(answer[offset : offset + piece.size_bytes])
    return results


def assemble(
    pieces: Sequence[Piece], results: Sequence[Result], leader_epoch: int = LEADER_EPOCH
) -> tuple[Run | None, PenstockError | None]:
    """Return the run of adjacent pieces before the first failed one, and the error of that piece.

    `results` has the bytes or the error of each piece. `leader_epoch` must not decrease: consumers
    that read the partition before it became diskless would reject a lower epoch as outdated.
    """
    view = memoryview(bytearray(sum(piece.size_bytes for piece in pieces)))
    offsets: list[int] = []
    ends: list[int] = []
    next_offset = -1
    failure: PenstockError | None = None
    for piece, result in zip(pieces, results, strict=True):
        if isinstance(result, PenstockError):
            failure = result
            break
        position, offset = ends[-1] if ends else 0, piece.base_offset
        try:
            _copy(piece, result, view[position : position + piece.size_bytes], leader_epoch)
        except CorruptObject as error:
            failure = error
            break
        for size_bytes, count in piece.batches:
            position += size_bytes
            offsets.append(offset)
            ends.append(position)
            offset += count
        next_offset = piece.next_offset
    if not offsets:
        return None, failure
    return Run(view[: ends[-1]], offsets, ends, next_offset), failure


def _copy(piece: Piece, data: memoryview, target: memoryview, leader_epoch: int) -> None:
    """Copy a piece's batches into `target`, check them against the layout, and stamp them."""
    if len(data) != piece.size_bytes:
        raise CorruptObject(
            f"{_where(piece)} should have {piece.size_bytes} bytes, but {len(data)} were read"
        )
    target[:] = data
    append_time_ms = piece.extent.append_time_ms
    position, offset = 0, piece.base_offset
    for size_bytes, count in piece.batches:
        try:
            header = decode_header(target, position)
            if header.size_bytes != size_bytes or header.last_offset_delta + 1 != count:
                raise CorruptBatch(
                    f"the batch of offset {offset} should have {size_bytes} bytes and {count}"
                    f" offsets, but its header has {header.size_bytes} and"
                    f" {header.last_offset_delta + 1}"
                )
            verify_crc(target, header, position)
        except (CorruptBatch, LegacyBatch) as error:
            raise CorruptObject(f"{_where(piece)}: {error}") from None
        stamp(target, position, offset, header.batch_length, leader_epoch)
        if append_time_ms >= 0:
            stamp_append_time(target, position, append_time_ms)
        position += size_bytes
        offset += count


def _where(piece: Piece) -> str:
    return f"object {piece.extent.key} at byte {piece.start}"
