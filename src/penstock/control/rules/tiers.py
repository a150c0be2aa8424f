"""Rules of tiered storage: valid commits, and segments that retention drops. Pure functions.

A partition's tiers are *alive* while its log start is below their end. The result of the commit of
a segment depends on the existing tiers:

| tiers                  | segment begins                    | result of the commit               |
|------------------------|-----------------------------------|------------------------------------|
| have the same object   | at that object's segment          | success: the call is a repetition  |
| alive                  | at their end                      | success                            |
| not alive, or none     | from their end to the log start   | success: offsets between were      |
|                        |                                   | deleted                            |
| any                    | elsewhere                         | `StaleTiers`: it would overlap, or |
|                        |                                   | leave a hole                       |

Each offset is therefore in one segment, and tiers have no hole. The caller
(`control/operations/tiers.py`) has rejected brokers that do not lead by the newest image. The
leader before an unclean election therefore cannot add records that the election lost.

Source: KIP-405 (remote log segment states, retention).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.control.values.diskless import PartitionKey
from penstock.control.values.errors import StaleTiers
from penstock.control.values.tiers import TierBounds, TierSegment

REMOTE_CONFIG: Final = "remote.storage.enable"
"""Topic config that makes a topic tiered if it is `true`."""


def plan_commit(
    key: PartitionKey, bounds: TierBounds, segment: TierSegment, there: Sequence[TierSegment]
) -> TierBounds | None:
    """Return the tiers with an added segment, or None if they have it already.

    `there` has the existing segments from the segment's base offset on.

    Raises:
        StaleTiers: the segment does not follow, by the table above.
    """
    base = segment.base_offset
    if any(
        stored.base_offset == base and stored.object_id == segment.object_id for stored in there
    ):
        return None
    follows = base == bounds.tiered_offset
    begins = not bounds.alive and bounds.tiered_offset <= base <= bounds.log_start_offset
    if not (follows or begins) or segment.next_offset <= max(base, bounds.log_start_offset):
        raise StaleTiers(
            *key,
            f"a segment [{base}, {segment.next_offset}) cannot follow: the archive ends at offset"
            f" {bounds.tiered_offset}, and the partition begins at {bounds.log_start_offset}",
        )
    return bounds._replace(
        tiered_offset=segment.next_offset,
        size_bytes=bounds.size_bytes + segment.size_bytes,
        segments=bounds.segments + 1,
    )


class Drop(NamedTuple):
    """Adjacent segments to drop, and the bounds of the tiers without them."""

    segments: Sequence[TierSegment]
    bounds: TierBounds
    more: bool


def plan_retention(
    bounds: TierBounds,
    segments: Sequence[TierSegment],
    *,
    start_offset: int,
    before_timestamp: int | None,
    max_bytes: int | None,
    limit: int,
) -> Drop:
    """Return the segments that retention drops from the start of `segments`, at most `limit`.

    A segment is dropped if it is below `start_offset`, too old, or beyond the allowed size.
    """
    start, size_bytes, count = max(bounds.log_start_offset, start_offset), bounds.size_bytes, 0
    for segment in segments:
        below = segment.next_offset <= start
        old = before_timestamp is not None and 0 <= segment.max_timestamp < before_timestamp
        surplus = max_bytes is not None and size_bytes - max_bytes >= segment.size_bytes
        if not (below or old or surplus):
            return _dropped(bounds, segments[:count], start, more=False)
        if count == limit:
            return _dropped(bounds, segments[:count], start, more=True)
        start = max(start, segment.next_offset)
        size_bytes -= segment.size_bytes
        count += 1
    return _dropped(bounds, segments[:count], start, more=False)


def plan_cut(bounds: TierBounds, segments: Sequence[TierSegment], offset: int) -> Drop:
    """Drop the segments that begin at or above an offset; the tiers end there."""
    gone = [segment for segment in segments if segment.base_offset >= offset]
    left = _without(bounds, gone)
    return Drop(gone, left._replace(tiered_offset=min(bounds.tiered_offset, offset)), more=False)


def _dropped(bounds: TierBounds, gone: Sequence[TierSegment], start: int, *, more: bool) -> Drop:
    return Drop(gone, _without(bounds, gone)._replace(log_start_offset=start), more)


def _without(bounds: TierBounds, gone: Sequence[TierSegment]) -> TierBounds:
    return bounds._replace(
        size_bytes=bounds.size_bytes - sum(segment.size_bytes for segment in gone),
        segments=bounds.segments - len(gone),
    )
