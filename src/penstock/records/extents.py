"""Extents: where batches of a partition lie, one after the other, in a file or in an object.

Of an object the batch index knows where each batch begins (`layout`); of a file it is not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

ExtentKind = Literal["wal", "segment", "file"]
_URL: Final = re.compile(r"https?://[!-~]+")


class Extent(NamedTuple):
    """Adjacent batches of one partition that hold the offsets [base_offset, next_offset).

    `key` is the object's, or the path of the file; `kind` says which: a write-ahead object, a
    sealed segment, or a file. `append_time_ms` is -1 where the records keep the times of their
    producers. `layout` has the size in bytes and the count of offsets of each batch, as i32 little
    endian; empty where they are not known. Databases keep it as an array of these fields.
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
    """Batches in a file, which has no id; the path is empty where the file cannot be opened."""
    return Extent(
        -1, path, "file", byte_offset, size_bytes, base_offset, next_offset, max_timestamp, -1, b""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRange:
    """[start, start + size_bytes) of an object, and the URL that brings it until `expires_ms`.

    Whoever has the URL has the bytes, while it holds, so nothing shows it.

    Raises:
        ValueError: the URL is none of HTTP.
    """

    url: str = field(repr=False)
    start: int
    size_bytes: int
    expires_ms: int

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise ValueError("a signed URL is none of HTTP")
