"""Rules of tiered storage: valid commits, and segments that retention drops. Pure functions.

A commit, by the existing tiers (a dash: any):

| tiers          | segment begins                          | the commit                           |
|----------------|-----------------------------------------|--------------------------------------|
| have it        | there, by the same object               | was made before: the same answer     |
| alive          | where they end                          | is made                              |
| none alive     | at or below the start, and not before   | is made: what lies between           |
|                | their end                               | is deleted                           |
| -              | elsewhere                               | `StaleTiers`: another leader's       |
|                |                                         | segments, or a hole                  |

So each offset is in one segment, and tiers have no hole. A broker that does not lead by the newest
image was rejected before (`operations.py`), so the leader before an unclean election cannot add
records that the election lost.

Source: KIP-405 (remote log segment states, retention).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.control.batch_index.values import PartitionKey
from penstock.control.errors import StaleTiers
from penstock.control.tiers.values import TierBounds, TierSegment

REMOTE_CONFIG: Final = "remote.storage.enable"
"""The topic config that must be `true`."""


def plan_commit(
    key: PartitionKey, bounds: TierBounds, segment: TierSegment, there: Sequence[TierSegment]
) -> TierBounds | None:
    """Return the tiers with an added segment; None if they have it already.

    `there` are the segments from its base offset on.

    Raises:
        StaleTiers: it does not fit, by the table above.
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
            f"a segment [{base}, {segment.next_offset}) cannot follow: the tiers end at"
            f" {bounds.tiered_offset}, the partition begins at {bounds.log_start_offset}",
        )
    return bounds._replace(
        tiered_offset=segment.next_offset,
        size_bytes=bounds.size_bytes + segment.size_bytes,
        segments=bounds.segments + 1,
    )


class Drop(NamedTuple):
    """Adjacent dropped segments, and the tiers without them."""

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
    """Drop up to `limit` of the first `segments`: below an offset, too old, or beyond a size."""
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
    """Drop `segments` above an offset; one that holds the offset ends there."""
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
