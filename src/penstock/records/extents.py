"""Extents: adjacent batches of one partition in a file or an object.

For objects, the batch index knows the size of each batch (`layout`); for files it is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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
