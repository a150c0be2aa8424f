"""The control plane in one SQLite file, for a single broker process.

The file has one owner: the writer's thread (`drivers/sqlite_writer.py`). It publishes an image
after the sync of its commit. Brokers that are registered in the file when it is opened belong to
processes that have ended, so they are unregistered. Their rows stay, so that broker epochs only
rise.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.control.drivers.sqlite_statements import run
from penstock.control.drivers.sqlite_writer import SqliteWriter, Writer
from penstock.control.errors import ControlUnavailable
from penstock.control.metadata import operations, rules, statements
from penstock.control.metadata.images import Images, StampedImage
from penstock.control.migrations.sqlite.migrate import migrate
from penstock.control.plane import ControlPlane
from penstock.control.values import MetadataImage, WatermarksListener


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
        connection.execute(statements.RENEWALS_SQLITE.format(place=self._renewals))

    def _on_group(self, committed: bool) -> None:
        if committed:
            self._images.publish(self._images.newest)
        else:
            self._images.newest = self._images.published

    def _open(self, connection: sqlite3.Connection) -> None:
        self._attach(connection)
        migrate(connection, self._path)
        cluster_id = rules.cluster_id(self._randomness.uuid())
        run(connection, operations.open_cluster(cluster_id, self._stamp(0)))
        run(connection, operations.unregister_all())
        self._images.forget()
        self._images.newest = run(connection, self._images.read())

    def _stamp(self, version: int) -> UUID:
        """Return the version as a UUID: the only owner never commits a version twice."""
        return UUID(int=version)
