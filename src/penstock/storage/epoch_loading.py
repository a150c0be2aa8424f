"""Leader epochs of a loaded log: from the checkpoint file, or from the first batch of each segment.

The file `leader-epoch-checkpoint` has no checksum. It is therefore compared with the segments,
because every leader epoch begins a new segment.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from penstock.base.files import read_file
from penstock.records import BatchHeader
from penstock.storage.epochs import EpochHistory
from penstock.storage.errors import CorruptFile, CorruptLog
from penstock.storage.formats.epochs import Entry, decode_epochs
from penstock.storage.names import EPOCHS_FILE
from penstock.storage.segment import Segment, segment_place
from penstock.storage.segment_files import SegmentFiles

logger = logging.getLogger(__name__)


def load_epochs(
    files: SegmentFiles,
    directory: str,
    segments: Sequence[Segment],
    cut_offset: int | None,
    *,
    start_offset: int,
    newest: int,
    interval_bytes: int,
    changed: bool,
    has_holes: bool,
) -> tuple[EpochHistory, bool]:
    """Return the history of leader epochs, and whether it differs from the saved file.

    `cut_offset` is the lowest log end offset since the file was saved, or None if the log was not
    truncated. `newest` is the newest epoch in checkpoint and journal. `changed` states whether
    segments have grown since the file was saved. With `has_holes` the log has offset gaps, so an
    epoch may begin without a batch at its start offset.
    """
    path = os.path.join(directory, EPOCHS_FILE)
    saved: list[Entry] | None = None
    doubt: CorruptFile | str | None = None
    try:
        saved = decode_epochs(read_file(files.files, path))
        if not has_holes:
            doubt = _doubt(files, saved, segments, start_offset, newest, interval_bytes)
    except FileNotFoundError:
        pass
    except CorruptFile as error:
        doubt = error
    if doubt is not None:
        logger.warning("%s: %s; rebuilt from the segments", path, doubt)
        saved = None
    history = EpochHistory(saved)
    if cut_offset is not None:
        history.cut_end(cut_offset)
    if saved is None or changed:
        for segment in segments:
            first = _batch(files, segment)
            if first is not None and first.partition_leader_epoch > history.latest:
                history.assign(first.partition_leader_epoch, first.base_offset)
    history.cut_start(start_offset)
    return history, history.entries != (saved or [])


def _doubt(
    files: SegmentFiles,
    saved: Sequence[Entry],
    segments: Sequence[Segment],
    start_offset: int,
    newest: int,
    interval_bytes: int,
) -> str | None:
    for place, (epoch, start) in enumerate(saved):
        segment = segments[segment_place(segments, start)]
        begins = segment.base_offset == start
        if not begins and not (place == 0 and start <= max(start_offset, segments[0].base_offset)):
            if _holds(files, segment, start, interval_bytes):
                return f"epoch {epoch} begins at offset {start}, but no segment begins there"
            continue
        first, second = _batch(files, segment), _batch(files, segment, behind=1)
        if first is None or epoch == first.partition_leader_epoch:
            continue
        # The header may be wrong instead, but not if its successor has the same epoch, or if the
        # saved epoch is above the newest known one.
        same = second is not None and first.partition_leader_epoch == second.partition_leader_epoch
        if same or first.partition_leader_epoch <= newest < epoch:
            return (
                f"the batch at offset {start} has epoch {first.partition_leader_epoch}, but the"
                f" file states epoch {epoch}"
            )
    return None


def _holds(files: SegmentFiles, segment: Segment, offset: int, interval_bytes: int) -> bool:
    """Return whether a segment has a readable batch at an offset or above it."""
    with suppress(CorruptLog):
        if segment.written_bytes:
            return files.locate(segment, offset, interval_bytes) is not None
    return False


def _batch(files: SegmentFiles, segment: Segment, *, behind: int = 0) -> BatchHeader | None:
    if segment.written_bytes:
        with suppress(CorruptLog):
            for _, header in islice(files.walk(segment, 0), behind, behind + 1):
                return header
    return None
