"""The interface of the control plane. Every change is a compare-and-set, and is durable on return.

Each method is written once, in the folder of its subject, as an operation
(`drivers/statements.py`). The implementations open a database and run operations on it: three in
`sqlite.py`, for one process, for several and for tests, and one in `postgres.py`. One contract
suite (`tests/control/`) covers all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.control.operations.commits import SinkCommits
from penstock.control.operations.coordination import CoordinationRecords, GroupOffsets
from penstock.control.operations.diskless import DisklessPlane
from penstock.control.operations.epochs import ReplicatedPartitions
from penstock.control.operations.registry import RegistryRows
from penstock.control.operations.tiers import TieredPartitions
from penstock.control.values.errors import StaleConfigs
from penstock.control.values.topics import BETWEEN_BROKERS, WatermarksListener
from penstock.security.sasl.peers import SECRET_BYTES, PeerSecret

if TYPE_CHECKING:
    from penstock.base.system import Randomness


class ControlPlane(
    DisklessPlane,
    ReplicatedPartitions,
    GroupOffsets,
    CoordinationRecords,
    SinkCommits,
    TieredPartitions,
    RegistryRows,
):
    """The database of topics, brokers, offsets, coordinators, sinks, tiers, schemas and objects.

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
        have been missed. `on_watermarks` gets the new watermarks of diskless partitions to which
        other brokers have committed. It may miss some commits. A database with one owner calls
        neither.
        """


_NAME = ""
_KEY = "key"


async def cluster_secret(control: ControlPlane, randomness: Randomness) -> PeerSecret:
    """Return the cluster's secret. The first broker of a cluster generates and stores it.

    Raises:
        PenstockError: the control plane does not answer.
    """
    row = (await control.image()).entity_configs.get((BETWEEN_BROKERS, _NAME))
    if row is None:
        made = {_KEY: randomness.bits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big").hex()}
        try:
            await control.set_entity_configs(
                kind=BETWEEN_BROKERS, changes={_NAME: made}, expected={_NAME: {}}
            )
        except StaleConfigs:
            made = dict((await control.image()).entity_configs[BETWEEN_BROKERS, _NAME])
        row = made
    return PeerSecret(bytes.fromhex(row[_KEY]))
