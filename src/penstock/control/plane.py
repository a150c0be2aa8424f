"""The interface of the control plane. Every change is a compare-and-set, and is durable on return.

Each method is written once, in the folder of its subject, as an operation
(`drivers/statements.py`). The implementations open a database and run operations on it:
`sqlite.py`, `sqlite_shared.py`, `sqlite_memory.py` and `postgres.py`. One contract suite
(`tests/control/`) covers all of them.
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
    """The database of topics, brokers, offsets, coordinators, sinks, tiers and diskless data.

    Every method may raise `ControlUnavailable` or `ControlBusy`. It is then unknown whether a
    change took effect: the caller reads the state again, or repeats the call.
    """

    @abstractmethod
    async def start(self) -> None:
        """Open the database and migrate its schema.

        Raises:
            IncompatibleDatabase: a newer Penstock, or another program, has written the database.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish queued operations and close the database. Idempotent."""

    @abstractmethod
    async def ping(self, within_seconds: float) -> None:
        """Execute the cheapest query, within about `within_seconds`.

        Raises:
            ControlUnavailable, ControlBusy: the query failed. The message has the reason.
        """

    @abstractmethod
    def watch(self, on_image: Callable[[], None], on_watermarks: WatermarksListener) -> None:
        """Register callbacks for changes by other brokers. Call it before `start`.

        `on_image` is called on the event loop after a change of metadata, and after notices may
        have been missed. `on_watermarks` gets diskless partitions to which others have committed.
        It is a hint, and may miss some. A database with one owner calls neither.
        """
