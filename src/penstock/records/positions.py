"""Special timestamps of ListOffsets, and isolation levels of ListOffsets and Fetch.

| timestamp | requested offset                                                |
|----------:|-----------------------------------------------------------------|
| -1        | the end: high watermark, or last stable offset if committed     |
| -2        | the first offset                                                |
| -3        | the record of the highest timestamp                             |
| -4        | the first offset on the broker's own disk                       |
| -5, -6    | the highest offset that is tiered, the next to be tiered        |
| >= 0      | the first record at or after that time                          |

Source: `ListOffsetsRequest.json`; KIP-79, KIP-98 (isolation), KIP-405, KIP-734.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
"""Isolation levels: 0 reads up to the high watermark, 1 up to the last stable offset."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def first_millisecond(moment: datetime) -> int:
    """Return the first whole millisecond since 1970 at or after a moment with a time zone.

    The result is negative before 1970. Kafka cannot look up offsets by negative times, so callers
    then read from the earliest offset.
    """
    return -((_EPOCH - moment) // _MILLISECOND)
