"""Extents (adjacent batches of one partition in a file or an object), and positions of ListOffsets.

For objects, the batch index knows the size of each batch (`layout`); for files it is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

ExtentKind = Literal["wal", "segment", "file"]
_URL: Final = re.compile(r"https?://[!-~]+")


class Extent(NamedTuple):
    """Adjacent batches of one partition that contain the offsets [base_offset, next_offset).

    `key` is the key of the object, or the path of the file. `kind` is `wal` (write-ahead object),
    `segment` (sealed segment) or `file`. `append_time_ms` is -1 if the records keep their
    producers' timestamps. `layout` has two numbers for each batch, its size in bytes and its number
    of offsets, each as i32 little endian; empty if unknown. Databases store the fields as an array,
    so their order is fixed.
    """

    object_id: int
    key: str
    kind: ExtentKind
    byte_offset: int
    size_bytes: int
    base_offset: int
    next_offset: int
    max_timestamp: int
    append_time_ms: int
    layout: bytes


def file_extent(
    path: str,
    *,
    byte_offset: int,
    size_bytes: int,
    base_offset: int,
    next_offset: int,
    max_timestamp: int = -1,
) -> Extent:
    """Return the extent of batches in a file; `path` is empty if readers cannot open the file."""
    return Extent(
        -1, path, "file", byte_offset, size_bytes, base_offset, next_offset, max_timestamp, -1, b""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRange:
    """Byte range [start, start + size_bytes) of an object, with a URL that is valid until
    `expires_ms`.

    The URL gives access to the bytes, so it is excluded from `repr`.

    Raises:
        ValueError: the URL is not an HTTP URL.
    """

    url: str = field(repr=False)
    start: int
    size_bytes: int
    expires_ms: int

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise ValueError("a signed URL must begin with http:// or https://")


# Special timestamps of ListOffsets, and isolation levels of ListOffsets and Fetch.
#
# | timestamp | requested offset                                                |
# |----------:|-----------------------------------------------------------------|
# | -1        | the end: high watermark, or last stable offset if committed     |
# | -2        | the first offset                                                |
# | -3        | the record of the highest timestamp                             |
# | -4        | the first offset on the broker's own disk                       |
# | -5, -6    | the highest offset that is tiered, the next to be tiered        |
# | >= 0      | the first record at or after that time                          |
#
# Source: `ListOffsetsRequest.json`; KIP-79, KIP-98 (isolation), KIP-405, KIP-734.


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
