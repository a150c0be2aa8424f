"""The control plane in one SQLite file that several processes of one machine share.

Unlike in `sqlite.py`, every transaction begins with a check of the image's stamp, and reads what
other processes have changed. A process that changes metadata notifies the others once the change is
durable (`socket_notices.py`).

The parent process calls `prepare` before it starts the others. It migrates the schema and
unregisters all brokers. A process that restarts registers itself again, as with PostgreSQL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.control.drivers.sqlite_shared import RENEWALS, SharedWriter, new_renewals
from penstock.control.drivers.sqlite_statements import run
from penstock.control.migrations.sqlite.migrate import migrate
from penstock.control.sqlite import SqliteControlPlane

if TYPE_CHECKING:
    from penstock.control.batch_index.values import PartitionKey, Watermarks
    from penstock.control.drivers.socket_notices import SocketNotices
    from penstock.control.values import MetadataImage, WatermarksListener


class SharedSqliteControlPlane(SqliteControlPlane):
    """The control plane of one of the processes. `prepare` must have run before."""

    _renewals = RENEWALS

    def __init__(
        self,
        path: Path,
        *,
        notices: SocketNotices,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        super().__init__(path, clock=clock, randomness=randomness)
        self._notices = notices
        self._changed = False
        self._watchers: tuple[Callable[[], None], WatermarksListener] | None = None

    def _new_writer(self) -> SharedWriter:
        return SharedWriter(self._path, on_group=self._on_group, on_begin=self._look)

    async def start(self) -> None:
        if self._watchers is not None:
            self._notices.listen(*self._watchers)
        await super().start()

    async def close(self) -> None:
        self._notices.close()
        await super().close()

    def watch(self, on_image: Callable[[], None], on_watermarks: WatermarksListener) -> None:
        self._watchers = (on_image, on_watermarks)

    async def image(self) -> MetadataImage:
        await self._writer.run(lambda _: None, reads=True)  # runs `_look`
        return await super().image()

    def _notify(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        self._notices.send(watermarks)

    # The methods below run on the writer's thread.

    def _open(self, connection: sqlite3.Connection) -> None:
        self._attach(connection)
        migrate(connection, self._path)

    def _look(self, connection: sqlite3.Connection) -> None:
        run(connection, self._images.current())
        self._changed = False

    def _stamp(self, version: int) -> UUID:
        """Return a random stamp, as other processes generate stamps, too."""
        self._changed = True
        return self._randomness.uuid()

    def _on_group(self, committed: bool) -> None:
        super()._on_group(committed)
        if committed and self._changed:
            self._notices.ring()


async def prepare(path: Path) -> MetadataImage:
    """Open or create the database while no other process uses it; return its metadata.

    Raises:
        ControlUnavailable: the database cannot be opened, or another process has it open.
        IncompatibleDatabase: as in `ControlPlane.start`.
    """
    plane = SqliteControlPlane(path)
    await plane.start()
    try:
        new_renewals(path)
        return await plane.image()
    finally:
        await plane.close()
