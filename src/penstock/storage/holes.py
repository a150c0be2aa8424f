"""A log with offsets that no batch has, as compaction leaves it, here or at its leader.

Such an offset leads to the next batch. Where there is none before the end of what may be read, a
batch without records is read in its place, which no file has: whoever reads comes to the end.
"""

from __future__ import annotations

from penstock.records import BatchHeader, decode_header, empty_batch
from penstock.records.header import EMPTY_OFFSETS_MAX
from penstock.storage.segment import segment_place
from penstock.storage.tiering.log import TieredLog
from penstock.storage.values import Read


class HoledLog(TieredLog):
    """See the module's text. Every log of a store is one, compacted or not."""

    __slots__ = ()

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool = True,
        appended: bool = False,
    ) -> Read:
        """As for any log. Where the offsets that are left to be read have no batch any more, an
        empty one is read, so that whoever reads comes to the end."""
        read = super().read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one,
            appended=appended,
        )  # fmt: skip
        if read.size_bytes or not at_least_one or not self.has_holes:
            return read
        end = min(end_offset, self.log_end_offset if appended else self.durable_offset)
        end = min(end, self._next_base(offset), offset + EMPTY_OFFSETS_MAX)
        if end <= offset:
            return read
        filler = empty_batch(offset, end, max(0, self.epochs.epoch_at(offset)))
        return Read([filler], len(filler), end)

    def boundary(self, offset: int) -> int:
        """Where the batch that holds `offset` begins; the log's end for what is beyond.

        The offset itself where none holds it, or one that stands for what has no records.
        """
        if offset >= self.log_end_offset:
            return self.log_end_offset
        base_offset, header = self._batch_at(offset)
        return offset if header is None or header.is_filler else min(offset, base_offset)

    def _batch_at(self, offset: int) -> tuple[int, BatchHeader | None]:
        """The batch that holds an offset, or a later one of its append or segment, and where it
        begins, as its header may not say; -1 and None if there is none."""
        place = self.tail.from_offset(offset)
        item = None if place is None else self.tail.at(place)
        if item is not None and item.headers:
            base_offset = item.base_offset
            for header in item.headers:
                base_offset = header.base_offset if item.stamped else base_offset
                next_offset = base_offset + header.last_offset_delta + 1
                if offset < next_offset:
                    return base_offset, header
                base_offset = next_offset
        segment = self.segments[segment_place(self.segments, offset)]
        interval_bytes = self.config.index_interval_bytes
        found = self._parts.segment_files.locate(segment, offset, interval_bytes)
        return (-1, None) if found is None else (found.header.base_offset, found.header)

    def _next_base(self, offset: int) -> int:
        """Below which offset no batch begins that reaches beyond another one."""
        base_offset, header = self._batch_at(offset)
        if header is not None:
            return base_offset
        later = self.segments[segment_place(self.segments, offset) + 1 :]
        ends = [self.log_end_offset, *[one.base_offset for one in later[:1]]]
        first = self.tail.first_offset
        return min([*ends, first] if first is not None and first > offset else ends)


def shortened(batches: memoryview, end: int) -> memoryview:
    """Batches of which the first begins below a log's end: what is beyond it, if that is empty."""
    header = decode_header(batches)
    if not header.is_filler or header.next_offset <= end:
        return batches
    filler = empty_batch(end, header.next_offset, header.partition_leader_epoch)
    return memoryview(bytearray(filler) + batches[header.size_bytes :])
