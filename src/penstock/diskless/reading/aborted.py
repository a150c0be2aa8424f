"""Cache of the aborted transactions of diskless partitions, for consumers with read_committed.

Rows of aborted transactions never change, and new rows have higher markers. Cached rows from an
offset on are therefore complete until the partition's watermarks show a newer aborted transaction.
For offsets below the last stable offset of a cached row they are complete for ever.

Missing rows are loaded while the fetch request waits, and then wake it. A failed load wakes no
request; the consumer's next request loads again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.base.errors import PenstockError
from penstock.control.batch_index.values import PartitionKey, Watermarks
from penstock.diskless.reading.errors import Unreadable
from penstock.diskless.reading.loads import LOADS_MAX, Loads
from penstock.records.transactions import AbortedTransaction

if TYPE_CHECKING:
    from penstock.control.batch_index.operations import DisklessPlane

ABORTED_PER_CALL: Final = 10_000
"""Aborted transactions that one call of the control plane returns."""
ABORTED_PAGES_MAX: Final = 100
"""Calls of the control plane for one request."""
ABORTED_KEPT_MAX: Final = 200_000
"""Aborted transactions in the cache. The least recently loaded partitions are dropped first."""
ABORTED_KEPT_PARTITIONS: Final = 10_000
"""Partitions in the cache, including those without aborted transactions."""
ABORTED_KEPT_PER_PARTITION: Final = 4
"""Cached results of one partition, for readers at different offsets."""

logger = logging.getLogger(__name__)

_FIRST: Final = attrgetter("first_offset")


class AbortedWant(NamedTuple):
    """A request for the aborted transactions with batches in [start, end)."""

    key: PartitionKey
    start: int
    end: int


class _Known(NamedTuple):
    """Cached transactions that end at or above `start`, in the order of their markers.

    They are complete up to the marker `newest`. If that is -1, they are complete for readers below
    the last stable offset of the last transaction.
    """

    start: int
    newest: int
    transactions: Sequence[AbortedTransaction]

    def answers(self, want: AbortedWant, aborted_offset: int) -> bool:
        if self.start > want.start:
            return False
        return (self.newest >= aborted_offset) or (
            bool(self.transactions) and self.transactions[-1].last_stable_offset >= want.end
        )

    def within(self, want: AbortedWant) -> list[AbortedTransaction]:
        found = [
            transaction
            for transaction in self.transactions
            if transaction.last_offset >= want.start and transaction.first_offset < want.end
        ]
        return sorted(found, key=_FIRST)


class AbortedTransactions:
    """The cache, by partition. Belongs to the event loop."""

    def __init__(
        self,
        *,
        plane: DisklessPlane,
        learn: Callable[[PartitionKey, Watermarks], None],
        wake: Callable[[Sequence[PartitionKey]], None],
    ) -> None:
        self._plane = plane
        self._learn = learn
        self._wake = wake
        self._known: dict[PartitionKey, list[_Known]] = {}
        self._size = 0
        self._loads = Loads[AbortedWant](LOADS_MAX)

    def find(self, want: AbortedWant, aborted_offset: int) -> list[AbortedTransaction] | None:
        """Return the cached transactions of a range, or None if the cache may lack some.

        They are ordered by first offset.
        """
        for known in reversed(self._known.get(want.key, ())):
            if known.answers(want, aborted_offset):
                return known.within(want)
        return None

    def load(self, wants: Iterable[AbortedWant], max_bytes: int = 0) -> None:
        """Start loading what is not being loaded yet.

        Then wake the requests that wait for the partitions.
        """
        fresh = self._loads.fresh(wants)
        if fresh:
            self._loads.begin(fresh, self._load(fresh))

    async def of(self, want: AbortedWant) -> list[AbortedTransaction]:
        """Load and return the transactions of a range.

        Raises:
            PenstockError: the control plane does not answer.
        """
        known = await self._ask(want)
        return known.within(want)

    def forget(self, key: PartitionKey) -> None:
        for known in self._known.pop(key, ()):
            self._size -= len(known.transactions)

    async def stop(self) -> None:
        await self._loads.stop()

    async def _load(self, wants: Sequence[AbortedWant]) -> None:
        woken: list[PartitionKey] = []
        try:
            for want in wants:
                try:
                    self._keep(want.key, await self._ask(want))
                    woken.append(want.key)
                except PenstockError as error:
                    logger.warning(
                        "cannot load the aborted transactions of %s: %s", want.key, error
                    )
        finally:
            self._loads.end(wants)
        if woken:
            self._wake(woken)

    async def _ask(self, want: AbortedWant) -> _Known:
        found: list[AbortedTransaction] = []
        at = want.start
        for _ in range(ABORTED_PAGES_MAX):
            page = await self._plane.aborted(*want.key, offset=at, limit=ABORTED_PER_CALL)
            self._learn(want.key, page.watermarks)
            found += page.transactions
            if page.complete_to is None:
                return _Known(want.start, page.watermarks.aborted_offset, found)
            if page.complete_to >= want.end:
                return _Known(want.start, -1, found)
            at = found[-1].last_offset + 1
        raise Unreadable(
            f"partition {want.key[1]} of topic {want.key[0]}: more than {len(found)} aborted"
            f" transactions end after offset {want.start}, more than a fetch can skip. Read from a"
            " later offset, or with isolation.level=read_uncommitted."
        )

    def _keep(self, key: PartitionKey, known: _Known) -> None:
        of_partition = self._known.pop(key, [])
        self._known[key] = of_partition
        of_partition.append(known)
        self._size += len(known.transactions)
        if len(of_partition) > ABORTED_KEPT_PER_PARTITION:
            self._size -= len(of_partition.pop(0).transactions)
        while len(self._known) > 1 and (
            self._size > ABORTED_KEPT_MAX or len(self._known) > ABORTED_KEPT_PARTITIONS
        ):
            self.forget(next(iter(self._known)))
