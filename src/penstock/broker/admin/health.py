"""Liveness and readiness of the broker, with the causes of failures.

*Alive* is false only if a restart is necessary, because the log store has failed permanently. It is
computed from memory, so an unavailable dependency never causes a restart.

*Ready* means that every request can be served. `Readiness` probes the control plane (a round trip),
the object store (a listing) and the disk (a write) concurrently, each within
`READINESS_PROBE_SECONDS`. It reuses results for `READINESS_KEPT_SECONDS`. A dependency never has
more than one pending probe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.control import ControlPlane
    from penstock.diskless.topics.service import DisklessService
    from penstock.storage import LogStore

READINESS_PROBE_SECONDS: Final = 2.0
"""Time limit of a probe of control plane, object store or disk. `/readyz` runs the probes
concurrently."""
READINESS_KEPT_SECONDS: Final = 1.0
"""Time for which a probe's result is reused."""
FREE_BYTES_MIN: Final = 256 << 20
"""Free bytes of the data directory's disk below which the broker is not ready."""

logger = logging.getLogger(__name__)

FAILING: Final = "failing"


class Check(Struct, frozen=True, kw_only=True):
    """Check of one condition of health.

    `cause` is the reason of a failure, or empty. `vital`: a failure requires a restart.
    """

    name: str
    cause: str = ""
    vital: bool = False

    @property
    def ok(self) -> bool:
        return not self.cause


class Health(Struct, frozen=True, kw_only=True):
    """Results of checks at one time."""

    checks: tuple[Check, ...]

    @property
    def good(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def causes(self) -> str:
        return "; ".join(f"{check.name}: {check.cause}" for check in self.checks if check.cause)

    def as_json(self, node_id: int, *, causes: bool = True) -> dict[str, Any]:
        """Return a response body; without `causes`, failures have `FAILING` instead of the cause.

        Callers without permission get no causes.
        """
        return {
            "node_id": node_id,
            "status": "ok" if self.good else FAILING,
            "checks": [
                {
                    "name": check.name,
                    "ok": check.ok,
                    "cause": (check.cause if causes else FAILING) if check.cause else None,
                }
                for check in self.checks
            ],
        }


class Readiness:
    """Checks of a broker and probes of its dependencies. Belongs to the event loop."""

    def __init__(
        self,
        *,
        node_id: int,
        control: ControlPlane,
        store: LogStore,
        clock: Clock,
        cluster: ClusterMetadata,
        partitions: PartitionRegistry,
        diskless: DisklessService | None,
        stopping: asyncio.Event,
    ) -> None:
        self._node_id = node_id
        self._plane = control
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._partitions = partitions
        self._service = diskless
        self._stopping = stopping
        self._probes = (
            _Probe("database", self._control),
            _Probe("object store", self._objects),
            _Probe("disk", self._disk),
        )
        self._found: tuple[Check, ...] = ()
        self._found_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self.disk_space = (0, 0)
        """Free bytes and size of the data directory's file system, at the last probe."""

    async def look(self) -> Health:
        """Return all checks; probes of dependencies may be `READINESS_KEPT_SECONDS` old."""
        looking = self.probe_soon()
        if looking is not None:
            await asyncio.shield(looking)
        return Health(checks=(*self._known(), *self._found))

    def probe_soon(self) -> asyncio.Task[None] | None:
        """Start new probes; return None if the last ones are recent enough."""
        if self._clock.monotonic() - self._found_at < READINESS_KEPT_SECONDS:
            return None
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._looking

    def latest(self) -> Health | None:
        """Return all checks with the results of the last probes; None before the first ones."""
        return Health(checks=(*self._known(), *self._found)) if self._found else None

    def alive(self) -> Health:
        """Return the checks whose failure requires a restart, without probes."""
        return Health(checks=tuple(check for check in self._known() if check.vital))

    async def stop(self) -> None:
        tasks = [self._looking, *(probe.task for probe in self._probes)]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)

    async def _look(self) -> None:
        self._found = tuple(await asyncio.gather(*(probe.check() for probe in self._probes)))
        self._found_at = self._clock.monotonic()

    async def _control(self) -> None:
        # Half of the time limit, so that its own error arrives within the limit.
        await self._plane.ping(READINESS_PROBE_SECONDS / 2)

    async def _objects(self) -> None:
        if self._service is not None:
            await self._service.probe()

    async def _disk(self) -> None:
        directory = self._store.directory
        self.disk_space = await asyncio.to_thread(disk_space, directory)
        await asyncio.to_thread(check_disk, directory, self.disk_space[0], FREE_BYTES_MIN)

    def _known(self) -> tuple[Check, ...]:
        failed = self._store.failed
        return (
            Check(name="storage", vital=True, cause="" if failed is None else str(failed)),
            Check(
                name="metadata",
                cause=""
                if self._cluster.loaded is not None
                else "the metadata has not been loaded yet",
            ),
            Check(name="diskless", cause=self._diskless()),
            Check(name="partitions", cause=self._missing_logs()),
            Check(
                name="serving", cause="the broker is stopping" if self._stopping.is_set() else ""
            ),
        )

    def _diskless(self) -> str:
        if self._service is not None:
            return self._service.failure
        if any(topic.diskless for topic in self._partitions.topics.values()):
            return "this broker has no object store, but the cluster has diskless topics"
        return ""

    def _missing_logs(self) -> str:
        missing = [
            f"{name}-{partition.index}"
            for name, topic in self._partitions.topics.items()
            for partition, log in zip(topic.topic.partitions, topic.partitions, strict=True)
            if log is None and partition.leader == self._node_id and not topic.diskless
        ]
        if not missing:
            return ""
        shown = ", ".join(missing[:5])
        return f"{len(missing)} partition(s) have no log; the first are {shown}"


class _Probe:
    def __init__(self, name: str, ask: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._ask = ask
        self.task: asyncio.Task[str] | None = None

    async def check(self) -> Check:
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._cause())
        done, _ = await asyncio.wait([self.task], timeout=READINESS_PROBE_SECONDS)
        cause = self.task.result() if done else f"no answer within {READINESS_PROBE_SECONDS:g} s"
        return Check(name=self._name, cause=cause)

    async def _cause(self) -> str:
        try:
            await self._ask()
        except (PenstockError, OSError) as error:
            return str(error) or type(error).__name__
        except Exception as error:
            logger.exception("the readiness probe of the %s failed", self._name)
            return f"the probe failed: {error!r}"
        return ""


def disk_space(directory: str) -> tuple[int, int]:
    """Return free bytes and size of the file system of `directory`. Blocks; raises OSError."""
    try:
        place = os.statvfs(directory)
    except OSError as error:
        raise _unwritable(directory, error) from error
    return place.f_bavail * place.f_frsize, place.f_blocks * place.f_frsize


def check_disk(directory: str, free_bytes: int, free_bytes_min: int) -> None:
    """Raise OSError unless `directory` is writable and has enough free space. Blocks."""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            file.write(b"\0")
    except OSError as error:
        raise _unwritable(directory, error) from error
    if free_bytes < free_bytes_min:
        raise OSError(
            f"data directory {directory} has {free_bytes} bytes free, but needs at least"
            f" {free_bytes_min}"
        )


def _unwritable(directory: str, error: OSError) -> OSError:
    return OSError(f"data directory {directory} cannot be written: {error.strerror}")
