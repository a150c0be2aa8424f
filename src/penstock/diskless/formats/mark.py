r"""Format of `marks/<id>`: an object that records the highest object id leased so far.

Text, in the manner of Kafka's `meta.properties`:

    version=1\n
    cluster.id=<the cluster's id>\n
    object.id=<the id>\n
    crc32c=<of all lines before, eight hexadecimal digits>\n

The key has the id in 20 digits, so the last key of a listing has the highest id.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.archive.errors import CorruptObject
from penstock.base.crc import crc32c

PREFIX: Final = "marks/"
MARK_BYTES_MAX: Final = 4096

_KEY: Final = re.compile(r"marks/([0-9]{20})", re.ASCII)
_TEXT: Final = re.compile(
    rb"version=1\ncluster\.id=([^\n]{1,1024})\nobject\.id=([0-9]{1,19})\ncrc32c=([0-9a-f]{8})\n"
)
_CRC_LINE_BYTES: Final = len("crc32c=00000000\n")


class Mark(NamedTuple):
    """The highest object id that a cluster had leased when the marker was written."""

    cluster_id: str
    object_id: int


def mark_key(object_id: int) -> str:
    return f"{PREFIX}{object_id:020d}"


def marked_id(key: str) -> int | None:
    found = _KEY.fullmatch(key)
    return None if found is None else int(found[1])


def encode_mark(mark: Mark) -> bytes:
    text = f"version=1\ncluster.id={mark.cluster_id}\nobject.id={mark.object_id}\n".encode()
    return text + f"crc32c={crc32c(text):08x}\n".encode()


def decode_mark(data: bytes) -> Mark:
    """Decode a marker.

    Raises:
        CorruptObject: the data is truncated, has another version or checksum, or is not a marker.
    """
    found = _TEXT.fullmatch(data)
    if found is None:
        raise CorruptObject(f"{len(data)} bytes that begin with {data[:40]!r} are not a marker")
    actual = crc32c(data[:-_CRC_LINE_BYTES])
    if actual != int(found[3], 16):
        raise CorruptObject(f"the marker has checksum {actual:08x}, not {found[3].decode()}")
    try:
        return Mark(found[1].decode(), int(found[2]))
    except UnicodeDecodeError as error:
        raise CorruptObject(f"the cluster id in a marker is not UTF-8: {error}") from None
