"""The control plane: every change is a compare-and-set, and is durable when it returns.

Its methods are written once, in the folder of their subject, and run operations
(`drivers/statements.py`) on a database that an implementation opens: `sqlite.py`,
`sqlite_shared.py`, `sqlite_memory.py` and `postgres.py`. One contract suite (`tests/control/`)
covers all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from penstock.control.batch_index.operations import DisklessPlane
from penstock.control.coordination.operations import CoordinationRecords
from penstock.control.epochs.operations import ReplicatedPartitions
from penstock.control.groups.operations import GroupOffsets
from penstock.control.sink_commits.operations import SinkCommits
from penstock.control.tiers.operations import TieredPartitions
from penstock.control.values import WatermarksListener


class ControlPlane(
    DisklessPlane,
    ReplicatedPartitions,
    GroupOffsets,
    CoordinationRecords,
    SinkCommits,
    TieredPartitions,
):
    """Topics, brokers, epochs, configs, producer ids, offsets, coordination, sink commits, batches.

    Every method may raise `ControlUnavailable` or `ControlBusy`; after either, whether the
    change took effect is unknown and the caller reads again by key.
    """

    @abstractmethod
    async def start(self) -> None:
        """Open the store and migrate its schema.

        Raises:
            IncompatibleDatabase: written by a newer Penstock, or by another program.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish queued operations and close the store. Idempotent."""

    @abstractmethod
    async def ping(self, within_seconds: float) -> None:
        """Execute the cheapest query, within about this time.

        Raises:
            ControlUnavailable, ControlBusy: it failed; the message says why.
        """

    @abstractmethod
    def watch(self, on_image: Callable[[], None], on_watermarks: WatermarksListener) -> None:
        """Register callbacks on the loop for changes by other brokers; call it before `start`.

        `on_image` is called after a change of metadata, and after notices may have been missed.
        `on_watermarks` passes diskless partitions that others committed to; it is a hint and may
        miss some. Implementations with one owner never call either.
        """
