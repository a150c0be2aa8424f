"""Selection of the batches and records that compaction retains.

| batch or record                                  | result                                        |
|--------------------------------------------------|-----------------------------------------------|
| batch at or above the end offset of the pass     | stays unchanged                               |
| batch of an aborted transaction                  | is removed                                    |
| marker whose transaction has batches             | stays unchanged                               |
| marker whose transaction has no batch left       | gets a delete horizon, is removed after it    |
| record without key, or with a newer record       | is removed                                    |
| of its key                                       |                                               |
| tombstone that is the newest record of its key   | gets a delete horizon, is removed after it    |
| last batch of a producer or of its segment,      | stays without records                         |
| if none of its records stays                     |                                               |

The last batch of a producer stays because its sequence is needed to check the producer's next batch
when the state is rebuilt from the log. The last batch of a segment stays because it marks the
segment's end for readers, replicas, and the completion of a swap after a crash.

Source: Kafka's `Cleaner.cleanInto`; KIP-534.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.base.settings import LONG_MAX
from penstock.kernels import compaction as kernels
from penstock.records.header import CONTROL_FLAG, DELETE_HORIZON_FLAG, TRANSACTIONAL_FLAG
from penstock.records.transactions import AbortedTransaction
from penstock.storage.compaction.keys import Chunk, KeyMap, PassedTransactions, Rows, read_rows
from penstock.storage.log.compaction import Live

if TYPE_CHECKING:
    from penstock.records.columnar.arrays import Bytes, Flags, Ints


class Retained(NamedTuple):
    """Records of a chunk whose keys were compared with the key map, and the decisions about them.

    `keep` has a flag for each record in `rows`. `opened` are the indexes of these records' batches
    in the chunk's table.
    """

    rows: Rows
    keep: Bytes
    opened: Ints


class Retention:
    """Decisions of one pass which batches to keep, rebuild or drop, made in log order."""

    def __init__(
        self, keys: KeyMap, aborted: Sequence[AbortedTransaction], live: Live, *, end_offset: int,
        now_ms: int, delete_retention_ms: int,
    ) -> None:  # fmt: skip
        self._keys = keys
        self._live = live
        self._last_offsets = np.array(live.last_offsets, np.int64)
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, LONG_MAX)
        self.transactions = PassedTransactions(aborted)

    def decide(self, chunk: Chunk, *, last: bool) -> Retained:
        """Set the mode (keep, rebuild, drop) of each batch in a chunk's table.

        `last` marks the last chunk of the new segment.

        Raises:
            CorruptBatch, RecordTooLarge, UnsupportedCodec: records cannot be read.
        """
        table = chunk.table
        attributes = table[:, kernels.ATTRIBUTES]
        control = attributes & CONTROL_FLAG != 0
        beyond = table[:, kernels.BASE_OFFSET] >= self._end_offset
        dated = attributes & DELETE_HORIZON_FLAG != 0
        last_offsets = table[:, kernels.BASE_OFFSET] + table[:, kernels.LAST_DELTA]
        kept = np.isin(last_offsets, self._last_offsets) & (table[:, kernels.PRODUCER] >= 0)
        kept[-1] |= last
        aborted, idle = self._pass_transactions(table, control, beyond, last_offsets, kept)
        over = dated & (table[:, kernels.BASE_TIMESTAMP] <= self._now_ms)
        mode = table[:, kernels.MODE]
        mode[:] = kernels.DROP
        mode[beyond | control & ~(idle & over & ~kept)] = kernels.WHOLE
        undated = control & idle & ~dated & ~beyond
        by_key = ~(control | beyond | aborted) & (table[:, kernels.COUNT] > 0)
        if chunk.live is not None:
            tombstones = table[:, kernels.TOMBSTONES]
            whole = by_key & (chunk.live == table[:, kernels.COUNT]) & (tombstones == 0)
            mode[whole] = kernels.WHOLE
            by_key &= ~whole & ((chunk.live > 0) | (tombstones < 0))
        opened = np.flatnonzero(by_key | undated)
        retained = self._look_inside(chunk, opened, undated[opened], dated[opened])
        emptied = kept & ~control & (mode == kernels.DROP)
        mode[emptied] = kernels.REBUILD
        table[emptied, kernels.KEPT] = 0
        mode[emptied & (table[:, kernels.COUNT] == 0)] = kernels.WHOLE
        return retained

    def _pass_transactions(
        self, table: Ints, control: Flags, beyond: Flags, last_offsets: Ints, kept: Flags
    ) -> tuple[Flags, Flags]:
        """Return flags of batches of aborted transactions, and of markers that may be removed.

        Sets `kept` for markers that must stay because their producer's epoch is in no batch.
        """
        aborted, idle = np.zeros((2, len(table)), np.bool_)
        transactional = table[:, kernels.ATTRIBUTES] & TRANSACTIONAL_FLAG != 0
        passed = (control | transactional) & ~beyond & (table[:, kernels.PRODUCER] >= 0)
        indexes = np.flatnonzero(passed)
        columns = table[indexes][:, [kernels.PRODUCER, kernels.PRODUCER_EPOCH]].tolist()
        for place, (producer_id, epoch), offset, is_marker in zip(
            indexes.tolist(), columns, last_offsets[indexes].tolist(), control[indexes].tolist(),
            strict=True,
        ):  # fmt: skip
            if is_marker:
                idle[place] = self.transactions.met_marker(producer_id, offset)
                kept[place] |= self._live.epochs.get(producer_id) == epoch
            else:
                aborted[place] = self.transactions.met_batch(producer_id, offset)
        return aborted, idle

    def _look_inside(self, chunk: Chunk, opened: Ints, markers: Flags, dated: Flags) -> Retained:
        """Decide by the key map which records of the batches `opened` to keep; set the modes.

        `markers` flags the markers among these batches that get a delete horizon; `dated` flags
        the batches that have one already.
        """
        part = chunk.table[opened]
        part[:, kernels.MODE] = np.where(markers, kernels.WHOLE, kernels.DROP)
        view = chunk.view if len(part) else memoryview(b"")
        rows = read_rows(view, part, self._keys.secret)
        keep = np.empty(len(rows.kinds), np.uint8)
        kernels.choose(
            part, rows.hashes, rows.spans, rows.kinds, self._keys.slots, self._now_ms, keep
        )
        stays = part[:, kernels.KEPT]
        undated = (part[:, kernels.TOMBSTONES] > 0) & ~dated | markers
        whole = (stays == part[:, kernels.COUNT]) & ~undated
        mode = np.where(whole, kernels.WHOLE, np.where(stays > 0, kernels.REBUILD, kernels.DROP))
        part[:, kernels.MODE] = mode
        part[undated, kernels.HORIZON] = self._horizon_ms
        columns = [
            kernels.KEPT, kernels.NEWEST, kernels.FIRST_ROW, kernels.MODE, kernels.HORIZON,
        ]  # fmt: skip
        for column in columns:
            chunk.table[opened, column] = part[:, column]
        return Retained(rows, keep, opened)


# Collection of batches' keys into the map, in log order, until it is full.
#
# Source: Kafka's `Cleaner.buildOffsetMap`.


def note_keys(
    chunk: Chunk, keys: KeyMap, first_dirty: int, transactions: PassedTransactions
) -> int:
    """Record the keys of a chunk in the key map, and the numbers of tombstones in its table.

    Return -1, or the base offset of the first batch whose keys the map has no room for.

    Raises:
        CorruptBatch, RecordTooLarge, UnsupportedCodec: records cannot be read.
    """
    table = chunk.table
    last_offsets = table[:, kernels.BASE_OFFSET] + table[:, kernels.LAST_DELTA]
    wanted = _with_keys(table, last_offsets, transactions)
    wanted &= last_offsets >= first_dirty  # a log may start within a batch
    places = np.flatnonzero(wanted)
    part = table[places]
    totals = part[:, kernels.COUNT].cumsum()
    taken = int(np.searchsorted(totals, keys.room, "right"))
    if taken == 0 and len(part) and keys.known == 0:
        keys.grow(int(totals[0]))
        taken = 1
    rows = read_rows(chunk.view, part[:taken], keys.secret)
    keys.note(rows)
    table[:, kernels.TOMBSTONES] = -1  # unknown
    if taken:
        starts = totals[:taken] - part[:taken, kernels.COUNT]
        counts = np.add.reduceat(rows.kinds & kernels.TOMBSTONE != 0, starts, dtype=np.int64)
        table[places[:taken], kernels.TOMBSTONES] = counts
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
