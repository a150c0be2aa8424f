"""The control plane: every change is a compare-and-set, and is durable when it returns.

Its methods are written once, in the folder of their subject, and run operations on a database
(`drivers/statements.py`), which its forms open: `sqlite.py`, `sqlite_shared.py`,
`sqlite_memory.py` and `postgres.py`. They are asynchronous because some reach over a network. All
forms are held to one contract suite (`tests/control/`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from penstock.control.batch_index.plane import DisklessPlane
from penstock.control.coordination.plane import CoordinationRecords
from penstock.control.epochs.plane import ReplicatedPartitions
from penstock.control.groups.plane import GroupOffsets
from penstock.control.sink_commits.plane import SinkCommits
from penstock.control.tiers.plane import TieredPartitions
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
        """Open the store and bring its schema up to date.

        Raises:
            IncompatibleDatabase: written by a newer Penstock, or not one of ours.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was queued and close the store. Idempotent."""

    @abstractmethod
    async def ping(self, within_seconds: float) -> None:
        """Have the store itself answer the cheapest question there is, in about this time.

        Raises:
            ControlUnavailable, ControlBusy: it does not; the message says why.
        """

    @abstractmethod
    def watch(self, on_image: Callable[[], None], on_watermarks: WatermarksListener) -> None:
        """Have the loop call back when other brokers change something; before `start`.

        `on_image` says that metadata changed, or that notices may have been missed: whoever
        waits for anything looks again then. `on_watermarks` brings diskless partitions that others
        committed to, as far as they are told: a hint, never the only way to learn of data.
        Forms that have one owner never call.
        """
