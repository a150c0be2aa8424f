"""The control plane in PostgreSQL, for several brokers.

**Metadata.** A change takes the advisory lock of metadata and locks the row of `image_version`. It
loads the image of that row's stamp, from memory if it is cached, and applies its rule. Then it
writes the changed rows, raises the version and notifies other brokers. `image()` reads that row
only, and topics whose stamps are new.

**Offsets and groups** take the advisory lock shared, which keeps topics and the cluster epoch
unchanged. A given cluster epoch is compared under that lock.

**Brokers** stay registered when a process opens the control plane, because they may be running.
They renew their registrations, and expire by the database's clock.

**Failures** are classified and retried in `drivers/postgres_connections.py`. A server with
`synchronous_commit = off` may lose acknowledged changes, and so may a fail-over to an asynchronous
standby.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from penstock.base.system import SYSTEM_RANDOMNESS, Randomness
from penstock.control.drivers.postgres_connections import (
    Connections,
    database_name,
    when_answering,
)
from penstock.control.drivers.postgres_notices import (
    Listener,
    WatermarkPublisher,
    channel_of,
    image_notice,
)
from penstock.control.drivers.statements import Lock
from penstock.control.migrations.postgres.migrate import BEGIN_MIGRATION, migrate
from penstock.control.operations.images import Images, StampedImage
from penstock.control.plane import ControlPlane
from penstock.control.values.diskless import PartitionKey, Watermarks
from penstock.control.values.errors import ControlUnavailable
from penstock.control.values.topics import MetadataImage, WatermarksListener

POSTGRES_CONNECTIONS_MAX: Final = 8
"""Connections of one broker for operations. One more receives change notices."""

T = TypeVar("T")


class PostgresControlPlane(ControlPlane):
    """The control plane in a PostgreSQL database, or in one of its schemas (`search_path`)."""

    def __init__(
        self,
        url: str,
        *,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        connections_max: int = POSTGRES_CONNECTIONS_MAX,
        start_seconds: float = 0.0,
    ) -> None:
        """`start_seconds` is how long `start` waits for a database that does not answer."""
        self._url = url
        self._where = database_name(url)
        self._randomness = randomness
        self._connections_max = connections_max
        self._start_seconds = start_seconds
        self._sender = randomness.uuid().hex
        self._open: Connections | None = None
        self._images = Images(lambda _: randomness.uuid())
        self._images.notice = image_notice(self._sender)
        self._loading = asyncio.Lock()
        self._watchers: tuple[Callable[[], None], WatermarksListener] | None = None
        self._listener: Listener | None = None
        self._publisher: WatermarkPublisher | None = None

    async def start(self) -> None:
        if self._open is not None:
            return
        database, cluster_id = await when_answering(
            self._opened, where=self._where, seconds=self._start_seconds
        )
        self._open = database
        channel = self._images.channel = channel_of(cluster_id)
        self._publisher = WatermarkPublisher(database, channel=channel, sender=self._sender)
        if self._watchers is not None:
            on_image, on_watermarks = self._watchers
            self._listener = Listener(
                self._url,
                channel=channel,
                sender=self._sender,
                randomness=self._randomness,
                on_image=on_image,
                on_watermarks=on_watermarks,
            )
            await self._listener.start()

    async def _opened(self) -> tuple[Connections, str]:
        """Open connections and migrate the schema; return them and the cluster's id."""
        database = Connections(self._url, size=self._connections_max, randomness=self._randomness)
        try:
            return database, await database.transaction(
                lambda connection: migrate(
                    connection, where=self._where, randomness=self._randomness
                ),
                begin=BEGIN_MIGRATION,
            )
        except BaseException:
            await database.close()
            raise

    async def close(self) -> None:
        database, self._open = self._open, None
        if self._listener is not None:
            await self._listener.close()
        if self._publisher is not None:
            await self._publisher.close()
        if database is not None:
            await database.close()

    @property
    def _database(self) -> Connections:
        if self._open is None:
            raise ControlUnavailable(f"{self._where} is closed")
        return self._open

    def watch(self, on_image: Callable[[], None], on_watermarks: WatermarksListener) -> None:
        self._watchers = (on_image, on_watermarks)

    async def ping(self, within_seconds: float) -> None:
        await self._database.read(self._images.stamp, within_seconds=within_seconds)

    async def image(self) -> MetadataImage:
        stamp = await self._database.read(self._images.stamp)
        async with self._loading:
            known = self._images.published
            if known is None or known.stamp != stamp:
                known = await self._database.change(self._images.read, lock=Lock.SNAPSHOT)
                self._images.published = known
            return known.image

    def _publish(self, image: StampedImage) -> None:
        self._images.publish(image)

    def _notify(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        known = self._images.published
        if self._publisher is not None and known is not None and len(known.image.brokers) > 1:
            self._publisher.publish(watermarks)
