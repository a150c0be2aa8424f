"""The control plane in SQLite: in a file for one process, or for several, or in memory for tests.

The file has one owner: the writer's thread (`drivers/sqlite_writer.py`). It publishes an image
after the sync of its commit. Brokers that are registered in the file when it is opened belong to
processes that have ended, so they are unregistered. Their rows stay, so that broker epochs only
rise.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.control.drivers.sqlite_writer import (
    RENEWALS,
    QueuedOperation,
    SharedWriter,
    SqliteDatabase,
    SqliteWriter,
    Writer,
    new_renewals,
    run,
)
from penstock.control.drivers.statements import Rows
from penstock.control.migrations.sqlite.migrate import migrate
from penstock.control.operations import images, metadata
from penstock.control.operations.images import Images, StampedImage
from penstock.control.plane import ControlPlane
from penstock.control.rules import metadata as metadata_rules
from penstock.control.values.errors import ControlUnavailable
from penstock.control.values.topics import MetadataImage, WatermarksListener

if TYPE_CHECKING:
    from penstock.control.drivers.notices import SocketNotices
    from penstock.control.values.diskless import PartitionKey, Watermarks


class SqliteControlPlane(ControlPlane):
    """The control plane in one SQLite file. `start` opens or creates the file."""

    _renewals = "temp"

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self._path = path
        self._clock = clock
        self._randomness = randomness
        self._images = Images(self._stamp)
        self._writer = self._new_writer()

    def _new_writer(self) -> Writer:
        return SqliteWriter(self._path, on_group=self._on_group)

    @property
    def _database(self) -> Writer:
        return self._writer

    async def start(self) -> None:
        if self._writer.closed:
            self._writer = self._new_writer()
        self._writer.start()
        try:
            await self._writer.run(self._open)
        except Exception:
            await self._writer.close()
            raise

    async def close(self) -> None:
        await self._writer.close()

    async def ping(self, within_seconds: float) -> None:
        await self._writer.read(self._images.stamp)

    async def image(self) -> MetadataImage:
        known = self._images.published
        if known is None:
            raise ControlUnavailable(f"the metadata database {self._path} is not open")
        return known.image

    def watch(self, on_image: Callable[[], None], on_watermarks: WatermarksListener) -> None:
        """Do nothing: no other process changes the file."""

    # The methods below run in operations of the writer.

    def _publish(self, image: StampedImage) -> None: ...
    def _attach(self, connection: sqlite3.Connection) -> None:
        """Create the SQL function and the table that are not stored in the file."""
        connection.create_function("penstock_now_ms", 0, self._clock.now_ms)
        connection.execute(images.RENEWALS_SQLITE.format(place=self._renewals))

    def _on_group(self, committed: bool) -> None:
        if committed:
            self._images.publish(self._images.newest)
        else:
            self._images.newest = self._images.published

    def _open(self, connection: sqlite3.Connection) -> None:
        self._attach(connection)
        migrate(connection, self._path)
        cluster_id = metadata_rules.cluster_id(self._randomness.uuid())
        run(connection, metadata.open_cluster(cluster_id, self._stamp(0)))
        run(connection, metadata.unregister_all())
        self._images.forget()
        self._images.newest = run(connection, self._images.read())

    def _stamp(self, version: int) -> UUID:
        """Return the version as a UUID: the only owner never commits a version twice."""
        return UUID(int=version)


# The control plane in an in-memory SQLite database, for tests.
#
# There is no thread and no file. An operation is one transaction on the caller's event loop, and
# has ended when its call returns. The same calls with the same clock and randomness therefore give
# the same results. Several brokers share one control plane by sharing the object. It stays open
# after `close`.


_IN_MEMORY: Final = Path(":memory:")


@cache
def _migrated() -> sqlite3.Connection:
    """Return an empty database with the schema. Copying it is five times as fast as migrating."""
    connection = sqlite3.connect(_IN_MEMORY, check_same_thread=False)
    with connection:  # an open transaction would block every copy
        migrate(connection, _IN_MEMORY)
    return connection


class _InlineWriter(SqliteDatabase):
    """Writer that runs each operation at once. An exception rolls the operation back."""

    closed: Final = False

    def __init__(self, template: sqlite3.Connection, *, on_group: Callable[[bool], None]) -> None:
        """Start with a copy of `template`; call `on_group(committed)` after each operation."""
        self._on_group = on_group
        self._connection = sqlite3.connect(":memory:")
        template.backup(self._connection)
        self._connection.execute("PRAGMA foreign_keys = ON")

    def start(self) -> None: ...
    async def run(
        self,
        operation: QueuedOperation,
        *,
        reads: bool = False,
        rows: Rows = None,
        synced: bool = True,
    ) -> Any:
        return self.execute(operation)

    def execute(self, operation: QueuedOperation) -> Any:
        try:
            with self._connection as connection:  # begins with the first change
                value = operation(connection)
        except BaseException:
            self._on_group(False)
            raise
        self._on_group(True)
        return value

    async def close(self) -> None: ...


class MemoryControlPlane(SqliteControlPlane):
    """The control plane in memory. Its data ends with the object."""

    def __init__(
        self, *, clock: Clock = SYSTEM_CLOCK, randomness: Randomness = SYSTEM_RANDOMNESS
    ) -> None:
        super().__init__(_IN_MEMORY, clock=clock, randomness=randomness)

    def _new_writer(self) -> _InlineWriter:
        writer = _InlineWriter(_migrated(), on_group=self._on_group)
        writer.execute(self._open)
        return writer

    async def start(self) -> None: ...
    async def changed_rows(self) -> int:
        """Return the number of rows changed so far. Tests use it to detect changes."""
        changes: int = await self._writer.run(lambda connection: connection.total_changes)
        return changes


# The control plane in one SQLite file that several processes of one machine share.
#
# Unlike with one owner, each transaction begins with a check of the image's stamp, and reads what
# other processes have changed. A process that changes metadata notifies the others once the change
# is durable (`drivers/notices.py`).
#
# The parent process calls `prepare` before it starts the others. It migrates the schema and
# unregisters all brokers. A process that restarts registers itself again, as with PostgreSQL.


class SharedSqliteControlPlane(SqliteControlPlane):
    """The control plane of one process, in a SQLite file that several processes share.

    The parent process must have called `prepare`.
    """

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
