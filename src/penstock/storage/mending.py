"""A log some of whose stored records are damaged: it says which, goes on, and is mended.

What a read finds damaged is told once, and counted. Records of a log that has no other copies stay
as they are: readers of that range are told, everything else is served. Where another replica has
them, `mend` puts its batches in their place, after what was there has been set aside beside the
segment. Batches are the same bytes on all replicas, so they fit exactly.

A log whose end is lost, by a file that is too short or gone, does one of two things when it is
needed. Alone it goes on at the offset where it ended (`go_on`), so that no offset is given twice. A
replica ends where it still has everything and says what it has lost (`end_at_damage`); its leader
sends it the rest.

Source: `docs/decisions/0047-damaged-records-are-fetched-from-a-replica.md`.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from penstock.base.files import read_range, sync_directory, write_all, write_file
from penstock.base.settings import LONG_MAX
from penstock.records import CorruptBatch, split_batches
from penstock.storage.cutting import cut_files
from penstock.storage.damage import Damage, DamagedRecords, whole_batches
from penstock.storage.errors import StorageError
from penstock.storage.loading import producers_at
from penstock.storage.names import QUARANTINED, offset_name
from penstock.storage.partition import PartitionLog
from penstock.storage.segment import Segment, segment_place
from penstock.storage.values import Buffer

logger = logging.getLogger(__name__)

DAMAGES_MAX: Final = 1_000
"""Ranges of one log that are remembered as told."""


class MendedLog(PartitionLog):
    """See the module's text. Every log of a store is one."""

    __slots__ = ("_told",)

    def load(self) -> None:
        """As `PartitionLog.load`."""
        if not self._loaded:
            self._told: dict[tuple[int, int], Damage] = {}
            super().load()

    def tell(self, error: DamagedRecords) -> None:
        """A read has found damage."""
        damage = error.damage
        key = damage.segment_base, damage.position
        if key not in self._told and len(self._told) < DAMAGES_MAX:
            self._told[key] = damage
            self._parts.counters.damaged_ranges += 1
            logger.error("%s is damaged: %s", self.topic_partition, error)

    @property
    def damages(self) -> list[str]:
        """What was found damaged, and is not mended."""
        told = [str(DamagedRecords(one)) for one in self._told.values()]
        return told if self.damage is None else [str(self.damage), *told]

    def damage_in(self, start: int, end: int) -> Damage | None:
        """What of the offsets [start, end) is damaged first; all of them are read."""
        offset = max(start, self.log_start_offset)
        try:
            while offset < min(end, self.durable_offset):
                found = self.read(offset, max_bytes=1 << 20, end_offset=end).next_offset
                if found == offset:
                    break
                offset = found
        except DamagedRecords as error:
            return error.damage
        return None

    # -- what is fetched from another replica --------------------------------------------------

    def mend(self, damage: Damage, batches: Buffer) -> bool:
        """Put batches from another replica where they are damaged; durable when this returns.

        They begin at the first offset that is damaged, or hold it; some of them are enough. False
        if they do not fit there: then nothing is changed.

        Raises:
            StorageError: they cannot be written.
        """
        place = segment_place(self.segments, damage.segment_base)
        segment = self.segments[place]
        closed = place + 1 < len(self.segments)
        behind = closed and damage.end_position == segment.written_bytes
        room = LONG_MAX if behind else damage.end_position - damage.position
        data, base_offset = self._fitting(damage, batches, room)
        if segment.base_offset != damage.segment_base or base_offset < segment.base_offset:
            return False
        target, position = segment, damage.position
        if behind and position:
            of_segment = self.epochs.epoch_at(segment.base_offset)
            same = of_segment == self.epochs.epoch_at(damage.first_offset)
            if not same or position + len(data) > self.config.segment_bytes:
                target, position = Segment(self.directory, base_offset), 0
                self.segments.insert(place + 1, target)
        try:
            self._put(target, position, data)
        except OSError as error:
            raise StorageError(f"{target.path} cannot be mended: {error}") from error
        self._told.pop((damage.segment_base, damage.position), None)
        self._parts.counters.mended_bytes += len(data)
        logger.warning(
            "%s: %d bytes at %d are mended: another replica has them", target.path, len(data),
            position,
        )  # fmt: skip
        return True

    def _fitting(self, damage: Damage, batches: Buffer, room: int) -> tuple[memoryview, int]:
        """Of batches those that belong into a damaged range, and where they begin, -1 for none.

        They are of the leader epoch that this log knows, and, all together, as many bytes.
        """
        view, expected, size_bytes = memoryview(batches), damage.first_offset, 0
        nothing = view[:0], -1
        epoch = self.epochs.epoch_at(expected)
        try:
            headers = split_batches(view)
        except CorruptBatch:
            return nothing
        for header in headers:
            if not header.base_offset <= expected < header.next_offset <= damage.next_offset:
                break
            if header.partition_leader_epoch != epoch or size_bytes + header.size_bytes > room:
                break
            size_bytes, expected = size_bytes + header.size_bytes, header.next_offset
        if whole_batches(view[:size_bytes], epoch)[0] < size_bytes or not size_bytes:
            return nothing
        if expected == damage.next_offset and room not in (size_bytes, LONG_MAX):
            return nothing  # compaction has made something else of them there
        return view[:size_bytes], headers[0].base_offset

    def _put(self, segment: Segment, position: int, data: memoryview) -> None:
        files = self._parts.segment_files
        descriptor = files.descriptors.get(segment.path, create=True).descriptor
        there = read_range(files.files, descriptor, len(data), position)
        if there.strip(b"\0"):
            self._set_aside(segment, position, there)
        write_all(files.files, descriptor, position, [data])
        files.files.sync_file(descriptor)
        if segment.written_bytes == 0:
            sync_directory(files.files, self.directory)
        segment.written_bytes = max(segment.written_bytes, position + len(data))
        segment.end_position = max(segment.end_position, segment.written_bytes)
        files.indexes.forget(segment)
        segment.index = None  # it may have left out what is there now
        segment.saved_offsets = segment.saved_times = 0
        self._parts.changes.of(self).add(segment)

    def _set_aside(self, segment: Segment, position: int, data: bytes) -> None:
        """Keep what was there, for whoever wants to know what the disk did; bounded by the file."""
        name = offset_name(segment.base_offset, f".damaged-{position}{QUARANTINED}")
        path = os.path.join(self.directory, name)
        write_file(self._parts.segment_files.files, path, data, sync=True)

    # -- a lost end ----------------------------------------------------------------------------

    def go_on(self) -> None:
        """Its end is lost, and nobody else has it: take appends behind it again."""
        damage, self.damage = self.damage, None
        end = max(self.log_end_offset, self.end_before)  # by checkpoint and journal
        logger.error(
            "%s goes on at offset %d: %s", self.topic_partition, end, damage
        )  # fmt: skip
        if self.segments[-1].base_offset < end:
            self.segments.append(Segment(self.directory, end))
        self._end_at(end)

    def end_at_damage(self) -> None:
        """Its end is lost, and others have it: end where all is there, and say what is lost.

        Raises:
            StorageError: the files cannot be cut.
        """
        damage = self.damage
        if damage is None:
            return
        place, position, end = self._good_end()
        base = self.segments[place].base_offset if position else end
        files = self._parts.segment_files
        logger.error("%s ends at offset %d: %s", self.topic_partition, end, damage)
        for one in self.segments[place:]:
            files.indexes.forget(one)
        try:
            cut_files(
                files.files, self.directory, segment_base=base, position=position, end_offset=end,
                forget=files.descriptors.forget,
            )  # fmt: skip
            self.segments = [*self.segments[:place], Segment(self.directory, base, position)]
            self.set_recovery_point(self.recovery_point.cut(end, base, position))
            point, now_ms = self.recovery_point, self._parts.clock.now_ms()
            self.producer_states = producers_at(
                files, self.directory, point, self.segments, now_ms=now_ms
            )
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be cut: {error}") from error
        self.due_snapshots = []
        self.epochs.cut_end(end)
        self.epochs_dirty, self.leader_epoch, self.damage = True, self.epochs.latest, None
        self._end_at(end)

    def _end_at(self, end: int) -> None:
        """The log ends at an offset, in its last segment."""
        self._settling = self.segments[-1]
        self.log_end_offset = self.durable_offset = end
        changes = self._parts.changes
        changes.of(self).add(self.segments[-1])
        changes.directories.add(self.directory)
        self.owner.became_durable(end)
        self.owner.log_moved()

    def _good_end(self) -> tuple[int, int, int]:
        """Behind the last good batch: the place of its segment, the position, the offset."""
        end_offset = max(self.log_end_offset, self.end_before)
        log = self._written()
        for place in range(len(self.segments) - 1, -1, -1):
            segment, position, following = self.segments[place], 0, -1
            if not segment.written_bytes:
                continue
            for at, header, _ in self._parts.segment_files.survey(
                segment, LONG_MAX, end_offset=end_offset, epoch=-1,
                interval_bytes=log.interval_bytes, gaps=True,
            ):  # fmt: skip
                if header is not None:
                    position, following = at + header.size_bytes, header.next_offset
            if position:
                return place, position, following
        return 0, 0, self.log_start_offset
