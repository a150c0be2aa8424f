"""Extents: contiguous batches of a partition in a file or in an object.

For objects the batch index has the size of each batch (`layout`); for files it is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

ExtentKind = Literal["wal", "segment", "file"]
_URL: Final = re.compile(r"https?://[!-~]+")


class Extent(NamedTuple):
    """Adjacent batches of one partition that hold the offsets [base_offset, next_offset).

    `key` is the object's, or the path of the file; `kind` is a write-ahead object, a sealed
    segment, or a file. `append_time_ms` is -1 if the records keep the times of their producers.
    `layout` has the size in bytes and the count of offsets of each batch, as i32 little endian;
    empty if unknown. Databases keep it as an array of these fields.
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
    """Return the extent of batches in a file; the path is empty if the file cannot be opened."""
    return Extent(
        -1, path, "file", byte_offset, size_bytes, base_offset, next_offset, max_timestamp, -1, b""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRange:
    """Range [start, start + size_bytes) of an object, and its URL until `expires_ms`.

    The URL gives access to the bytes, so it is never shown.

    Raises:
        ValueError: the URL is not HTTP.
    """

    url: str = field(repr=False)
    start: int
    size_bytes: int
    expires_ms: int

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise ValueError("a signed URL is none of HTTP")
