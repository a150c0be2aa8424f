"""Damaged records of a log: reports, quarantine and repair.

A damaged range found by a read is logged once, and counted. In a log without replicas the damaged
bytes stay as they are: reads of the range fail, all other reads succeed. If another replica has the
records, `replace` writes its batches in their place, after it has saved the damaged bytes beside
the segment. Batches are byte-identical on all replicas, so they fit.

A log whose end is lost, because a file is truncated or missing, continues in one of two ways.
Without replicas it continues at its former end offset (`LogState.skip_lost_end`), so that no offset
is assigned twice. A replica truncates to its last intact batch (`end_at_damage`), and its leader
sends the rest.

Source: `docs/decisions/0047-damaged-records-are-fetched-from-a-replica.md`.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from penstock.base.files import read_range, sync_directory, write_all, write_file
from penstock.base.settings import LONG_MAX
from penstock.records import CorruptBatch, split_batches
from penstock.storage.files.errors import StorageError
from penstock.storage.files.segment import Segment, segment_place
from penstock.storage.files.values import QUARANTINED, Buffer, offset_name
from penstock.storage.files.walk import Damage, DamagedRecords, whole_batches
from penstock.storage.log.loading import producers_at
from penstock.storage.log.replaying import cut_files
from penstock.storage.log.state import LogState

logger = logging.getLogger(__name__)

DAMAGES_MAX: Final = 1_000
"""Maximum number of reported ranges of one log."""


class Repair:
    """Reports and repairs of one log's damage."""

    __slots__ = ("_reported", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._reported: dict[tuple[int, int], Damage] = {}

    def report(self, error: DamagedRecords) -> None:
        """Log and count damage that a read found, unless it was reported before."""
        damage = error.damage
        key = damage.segment_base, damage.position
        if key not in self._reported and len(self._reported) < DAMAGES_MAX:
            self._reported[key] = damage
            self._state.parts.counters.damaged_ranges += 1
            logger.error("%s is damaged: %s", self._state.topic_partition, error)

    @property
    def damages(self) -> list[str]:
        """Descriptions of the damage that is not repaired."""
        reported = [str(DamagedRecords(damage)) for damage in self._reported.values()]
        return reported if self._state.damage is None else [str(self._state.damage), *reported]

    def replace(self, damage: Damage, batches: Buffer) -> bool:
        """Replace a damaged range with batches of another replica; durable when this returns.

        The batches begin at or below the first damaged offset, and may cover a part of the range.
        Returns False, and changes nothing, if they do not fit.

        Raises:
            StorageError: the batches cannot be written.
        """
        state = self._state
        place = segment_place(state.segments, damage.segment_base)
        segment = state.segments[place]
        closed = place + 1 < len(state.segments)
        behind = closed and damage.end_position == segment.written_bytes
        room = LONG_MAX if behind else damage.end_position - damage.position
        data, base_offset = self._fitting(damage, batches, room)
        if segment.base_offset != damage.segment_base or base_offset < segment.base_offset:
            return False
        target, position = segment, damage.position
        if behind and position:
            of_segment = state.epochs.epoch_at(segment.base_offset)
            same = of_segment == state.epochs.epoch_at(damage.first_offset)
            if not same or position + len(data) > state.config.segment_bytes:
                target, position = Segment(state.directory, base_offset), 0
                state.segments.insert(place + 1, target)
        try:
            self._put(target, position, data)
        except OSError as error:
            raise StorageError(f"{target.path} cannot be repaired: {error}") from error
        self._reported.pop((damage.segment_base, damage.position), None)
        state.parts.counters.mended_bytes += len(data)
        logger.warning(
            "%s: restored %d bytes at byte %d from another replica", target.path, len(data),
            position,
        )  # fmt: skip
        return True

    def _fitting(self, damage: Damage, batches: Buffer, room: int) -> tuple[memoryview, int]:
        """Return the batches that fit a damaged range and their base offset, -1 for none."""
        view, expected, size_bytes = memoryview(batches), damage.first_offset, 0
        nothing = view[:0], -1
        epoch = self._state.epochs.epoch_at(expected)
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
            return nothing  # compaction has rewritten the batches of the range
        return view[:size_bytes], headers[0].base_offset

    def _put(self, segment: Segment, position: int, data: memoryview) -> None:
        state = self._state
        files = state.parts.segment_files
        descriptor = files.descriptors.get(segment.path, create=True).descriptor
        there = read_range(files.files, descriptor, len(data), position)
        if there.strip(b"\0"):
            self._set_aside(segment, position, there)
        write_all(files.files, descriptor, position, [data])
        files.files.sync_file(descriptor)
        if segment.written_bytes == 0:
            sync_directory(files.files, state.directory)
        segment.written_bytes = max(segment.written_bytes, position + len(data))
        segment.end_position = max(segment.end_position, segment.written_bytes)
        files.indexes.forget(segment)
        segment.index = None  # it may lack the restored batches
        segment.saved_offsets = segment.saved_times = 0
        state.parts.changes.of(state).add(segment)

    def _set_aside(self, segment: Segment, position: int, data: bytes) -> None:
        """Save the damaged bytes in a `.quarantined` file for analysis."""
        name = offset_name(segment.base_offset, f".damaged-{position}{QUARANTINED}")
        path = os.path.join(self._state.directory, name)
        write_file(self._state.parts.segment_files.files, path, data, sync=True)

    def end_at_damage(self) -> None:
        """Truncate a replica whose end is lost to its last intact batch; raises StorageError."""
        state = self._state
        damage = state.damage
        if damage is None:
            return
        place, position, end = self._good_end()
        base = state.segments[place].base_offset if position else end
        files = state.parts.segment_files
        logger.error(
            "%s: truncating to offset %d, because later records are lost: %s",
            state.topic_partition, end, damage,
        )  # fmt: skip
        for segment in state.segments[place:]:
            files.indexes.forget(segment)
        try:
            cut_files(
                files.files, state.directory, segment_base=base, position=position, end_offset=end,
                forget=files.descriptors.forget,
            )  # fmt: skip
            state.segments = [*state.segments[:place], Segment(state.directory, base, position)]
            state.set_recovery_point(state.recovery_point.cut(end, base, position))
            point, now_ms = state.recovery_point, state.parts.clock.now_ms()
            state.producer_states = producers_at(
                files, state.directory, point, state.segments, now_ms=now_ms
            )
        except OSError as error:
            raise StorageError(f"{state.directory} cannot be truncated: {error}") from error
        state.due_snapshots = []
        state.epochs.cut_end(end)
        state.epochs_dirty, state.leader_epoch, state.damage = True, state.epochs.latest, None
        state.end_at(end)

    def _good_end(self) -> tuple[int, int, int]:
        """Return the end of the last intact batch: segment index, position and offset."""
        state = self._state
        end_offset = max(state.log_end_offset, state.end_before)
        log = state.written()
        for place in range(len(state.segments) - 1, -1, -1):
            segment, position, following = state.segments[place], 0, -1
            if not segment.written_bytes:
                continue
            for at, header, _ in state.parts.segment_files.survey(
                segment, LONG_MAX, end_offset=end_offset, epoch=-1,
                interval_bytes=log.interval_bytes, gaps=True,
            ):  # fmt: skip
                if header is not None:
                    position, following = at + header.size_bytes, header.next_offset
            if position:
                return place, position, following
        return 0, 0, state.log_start_offset
