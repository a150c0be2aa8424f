"""Reading of a segment's file in chunks of complete batches.

Each chunk has a table with a row for each batch. Damage ends the read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock.base.files import Files, read_range
from penstock.kernels import compaction as kernels
from penstock.records import CorruptBatch
from penstock.records.columnar.batches import check_crcs
from penstock.records.header import CODEC_MASK
from penstock.storage.compaction.choosing import Source
from penstock.storage.errors import CorruptLog

if TYPE_CHECKING:
    from penstock.records.columnar.arrays import Ints

_BATCHES_MAX: Final = 1 << 14
"""Maximum number of rows of a table."""
_COMPRESSED_BYTES: Final = 256 << 10
"""Maximum compressed bytes that are decompressed together."""


class Chunk(NamedTuple):
    """Adjacent complete batches of a file from byte `position` on; each is a row of the table."""

    view: memoryview
    table: Ints
    position: int


def chunks(
    files: Files, source: Source, chunk_bytes: int, spend: Callable[[int], None]
) -> Iterator[Chunk]:
    """Yield the verified chunks of a segment; call `spend` with the size of each read before it.

    Raises:
        CorruptLog: bytes are not complete batches, or a checksum is wrong.
        OSError: the file cannot be read.
    """
    file = files.open_file(source.path)
    try:
        position, wanted = 0, chunk_bytes
        while position < source.size_bytes:
            size = min(wanted, source.size_bytes - position)
            spend(size)
            data = read_range(files, file, size, position)
            view, at = memoryview(data), 0
            wanted = chunk_bytes
            try:
                for chunk in tables(view, position, check=True):
                    yield chunk
                    at += len(chunk.view)
            except CorruptBatch as error:
                raise CorruptLog(Path(source.path), position + at, str(error)) from None
            if at == 0:
                wanted = _next_size(source, view, position, size)
            position += at
    finally:
        files.close(file)


def tables(view: memoryview, position: int = 0, *, check: bool = False) -> Iterator[Chunk]:
    """Yield the complete batches at the beginning of `view`, which begins at byte `position`.

    Raises:
        CorruptBatch: with `check`, a checksum is wrong.
    """
    data = np.frombuffer(view, np.uint8)
    state = np.zeros(2, np.int64)
    at = 0
    while True:
        table = np.empty((_BATCHES_MAX, kernels.FIELDS), np.int64)
        count = kernels.list_batches(data, at, table, state)
        if count == 0:
            return
        table = table[: _bounded(table[:count])]
        part = view[at : int(table[-1, kernels.END])]
        end = at + len(part)
        table[:, [kernels.BEGIN, kernels.END, kernels.POSITION]] -= at
        if check:
            check_crcs(part, table)
        yield Chunk(part, table, position + at)
        at = end


def _bounded(table: Ints) -> int:
    """Return how many of the batches may be decompressed together."""
    if not (table[:, kernels.ATTRIBUTES] & CODEC_MASK).any():
        return len(table)
    sizes = table[:, kernels.SIZE].cumsum()
    return max(1, int(np.searchsorted(sizes, _COMPRESSED_BYTES, "right")))


def _next_size(source: Source, view: memoryview, position: int, size: int) -> int:
    """Return the size of the incomplete batch at the beginning of `view`; raises CorruptLog."""
    state = np.zeros(2, np.int64)
    kernels.list_batches(
        np.frombuffer(view, np.uint8), 0, np.empty((1, kernels.FIELDS), np.int64), state
    )
    needed = int(state[1])
    if needed <= size or needed > source.size_bytes - position:
        reason = f"the last {source.size_bytes - position} bytes do not begin with a valid batch"
        raise CorruptLog(Path(source.path), position, reason)
    return needed
