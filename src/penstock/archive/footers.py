"""Reader of a write-ahead object's footer from a store."""

from __future__ import annotations

from typing import Final

from penstock.archive.errors import CorruptObject, CutFooter
from penstock.archive.formats.wal import TRAILER_BYTES, WalFooter, decode_footer
from penstock.objects import ObjectStore

FOOTER_TAIL_BYTES: Final = 64 << 10
"""Bytes at the end of an object that are read first; a longer footer needs a second read."""


async def read_footer(store: ObjectStore, key: str, size_bytes: int) -> WalFooter:
    """Return the footer of an object that should have `size_bytes`, with one or two reads.

    Raises:
        CorruptObject: the object is not a whole write-ahead object, or has another size.
        ObjectNotFound, ObjectTruncated, StoreUnavailable, StoreRefused: raised by the store.
    """
    if size_bytes < TRAILER_BYTES:
        raise CorruptObject(
            f"{key} has {size_bytes} bytes, but a trailer alone has {TRAILER_BYTES}"
        )
    tail_bytes = min(size_bytes, FOOTER_TAIL_BYTES)
    tail = await store.get(key, size_bytes - tail_bytes, tail_bytes)
    try:
        footer = _decode(key, tail)
    except CutFooter as cut:
        if cut.needed_bytes > size_bytes:
            raise CorruptObject(f"{key} has {size_bytes} bytes: {cut}") from None
        footer = _decode(key, await store.get(key, size_bytes - cut.needed_bytes, cut.needed_bytes))
    if footer.size_bytes != size_bytes:
        raise CorruptObject(
            f"{key} has {size_bytes} bytes, but its footer declares {footer.size_bytes}"
        )
    return footer


def _decode(key: str, tail: memoryview) -> WalFooter:
    try:
        return decode_footer(tail)
    except CutFooter:
        raise
    except CorruptObject as error:
        raise CorruptObject(f"{key}: {error}") from None
