"""The control plane in one SQLite file that several processes of one machine share.

As `sqlite.py` has it, but for what others do: every transaction begins with a look at the stamp of
the image, and reads what others have changed, so that operations find the newest image in memory
here, too. Whoever changes metadata tells the others once it is durable (`socket_notices.py`).

`prepare` is for the parent of these processes, before it starts them and while no other is there:
it brings the schema up to date, and forgets who was registered. A process that is started again
registers itself again, as with PostgreSQL.
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
    """The port over one file, for one of its processes; `prepare` has been there before."""

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
        await self._writer.run(lambda _: None, reads=True)  # the transaction has looked
        return await super().image()

    def _tell(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        self._notices.tell(watermarks)

    # What follows runs on the writer's thread.

    def _open(self, connection: sqlite3.Connection) -> None:
        self._attach(connection)
        migrate(connection, self._path)

    def _look(self, connection: sqlite3.Connection) -> None:
        """Have the newest image be that of the transaction."""
        run(connection, self._images.current())
        self._changed = False

    def _stamp(self, version: int) -> UUID:
        """Drawn when an image is stored; one that another process made has another one."""
        self._changed = True
        return self._randomness.uuid()

    def _on_group(self, committed: bool) -> None:
        super()._on_group(committed)
        if committed and self._changed:
            self._notices.ring()


async def prepare(path: Path) -> MetadataImage:
    """Open or make the database, as its only process for now; what its metadata is.

    Raises:
        ControlUnavailable: it cannot be opened, or another process has it open.
        IncompatibleDatabase: as `ControlPlane.start`.
    """
    plane = SqliteControlPlane(path)
    await plane.start()
    try:
        new_renewals(path)
        return await plane.image()
    finally:
        await plane.close()
