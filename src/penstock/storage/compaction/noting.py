"""Collection of batches' keys into the map, in log order, until it is full.

Source: Kafka's `Cleaner.buildOffsetMap`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels import compaction as kernels
from penstock.records.header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from penstock.storage.compaction.keys import KeyMap, read_rows
from penstock.storage.compaction.transactions import PassedTransactions

if TYPE_CHECKING:
    from penstock.records.columnar.arrays import Flags, Ints
    from penstock.storage.compaction.chunks import Chunk


def note_keys(
    chunk: Chunk, keys: KeyMap, first_dirty: int, transactions: PassedTransactions
) -> int:
    """Record the keys of a chunk; return -1, or the base offset of the first batch without room.

    Raises:
        CorruptBatch, RecordTooLarge, UnsupportedCodec: records cannot be read.
    """
    table = chunk.table
    last_offsets = table[:, kernels.BASE_OFFSET] + table[:, kernels.LAST_DELTA]
    wanted = _with_keys(table, last_offsets, transactions)
    wanted &= last_offsets >= first_dirty  # a log may start within a batch
    part = table[wanted]
    totals = part[:, kernels.COUNT].cumsum()
    taken = int(np.searchsorted(totals, keys.room, "right"))
    if taken == 0 and len(part) and keys.known == 0:
        keys.grow(int(totals[0]))
        taken = 1
    keys.note(read_rows(chunk.view, part[:taken], keys.secret))
    return int(part[taken, kernels.BASE_OFFSET]) if taken < len(part) else -1


def _with_keys(table: Ints, last_offsets: Ints, transactions: PassedTransactions) -> Flags:
    """Return flags of the batches with keys to record: no markers, no aborted transactions."""
    attributes = table[:, kernels.ATTRIBUTES]
    control = attributes & CONTROL_FLAG != 0
    wanted: Flags = ~control & (table[:, kernels.COUNT] > 0)
    passed = (control | (attributes & TRANSACTIONAL_FLAG != 0)) & (table[:, kernels.PRODUCER] >= 0)
    for place in np.flatnonzero(passed).tolist():
        producer_id, offset = int(table[place, kernels.PRODUCER]), int(last_offsets[place])
        if control[place]:
            transactions.met_marker(producer_id, offset)
        elif transactions.met_batch(producer_id, offset):
            wanted[place] = False
    return wanted
