"""The control plane in PostgreSQL, for several brokers.

Rules are the pure functions of `metadata/rules.py` and `sink_commits/rules.py`, applied to rows
that are read and locked in the transaction that writes what comes of them.

**Metadata.** A change takes the advisory lock of metadata for itself, locks the one row of
`image_version`, takes the image of that version (the one in memory, where nobody changed anything
since), applies its rule, writes the rows that changed, raises the version and notifies the others.
`image()` asks for that row alone, and reads topics only if their stamps are new.

**Offsets and groups** share the advisory lock, so that topics and membership stand still while they
are stored. Where the caller names a membership, it is compared under that lock: a coordinator
that was paused writes nothing after the brokers have changed.

**Brokers** that are registered when the plane opens stay so: they are other processes. They renew
themselves and expire by the database's clock.

**Failures** are told by `postgres_failures.py` and repeated by `postgres_connections.py`, both in
`drivers/`. Calls whose outcome is unknown raise `ControlUnavailable`. A server at
`synchronous_commit = off`, or a fail-over to a standby that replicates asynchronously, may forget
what was answered.

Before `start`, `watch` names who is told of other brokers' changes: it is called on the loop, must
not block, and would start a task that calls `ClusterMetadata.refresh`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from penstock.base.system import SYSTEM_RANDOMNESS, Randomness
from penstock.control.batch_index.postgres_index import PostgresDiskless
from penstock.control.batch_index.postgres_switch import PostgresDisklessSwitch
from penstock.control.batch_index.values import PartitionKey, PartitionMarks
from penstock.control.drivers.postgres_connections import (
    BEGIN_SNAPSHOT,
    Connection,
    Connections,
    Work,
    database_name,
)
from penstock.control.drivers.postgres_notices import (
    Listener,
    MarksTeller,
    channel_of,
    image_notice,
)
from penstock.control.drivers.statements import Again
from penstock.control.errors import ControlUnavailable, StaleBroker
from penstock.control.limits import POSTGRES_CONNECTIONS_MAX
from penstock.control.metadata import postgres_tables as tables
from penstock.control.metadata import rules
from penstock.control.metadata.postgres_tables import StampedImage
from penstock.control.migrations.postgres.migrate import BEGIN_MIGRATION, migrate
from penstock.control.port import MarksListener
from penstock.control.sink_commits.plane import SinkCommits
from penstock.control.values import (
    Broker,
    CommittedOffset,
    GroupRecord,
    MetadataImage,
    Topic,
)

BEGIN_METADATA: Final = "BEGIN; SELECT pg_advisory_xact_lock(1346719315, 2)"
"""Waits until no offset, group or metadata is being stored, and keeps others from it."""

T = TypeVar("T")
Change = Callable[[Connection, MetadataImage, UUID], Awaitable[tuple[MetadataImage, T]]]
"""From the image and the stamp of what is written: writes rows; returns image and answer."""


class PostgresControlPlane(PostgresDiskless, PostgresDisklessSwitch, SinkCommits):
    """The port over one database (or one schema of it, by the URL's `search_path`)."""

    def __init__(
        self,
        url: str,
        *,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        connections_max: int = POSTGRES_CONNECTIONS_MAX,
    ) -> None:
        super().__init__()
        self._url = url
        self._where = database_name(url)
        self._randomness = randomness
        self._connections_max = connections_max
        self._sender = randomness.uuid().hex
        self._open: Connections | None = None
        self._channel = ""
        self._known: StampedImage | None = None
        self._loading = asyncio.Lock()
        self._watchers: tuple[Callable[[], None], MarksListener] | None = None
        self._listener: Listener | None = None
        self._teller: MarksTeller | None = None

    async def start(self) -> None:
        if self._open is not None:
            return
        database = Connections(self._url, size=self._connections_max, randomness=self._randomness)
        try:
            cluster_id = await database.transaction(
                lambda connection: migrate(
                    connection, where=self._where, randomness=self._randomness
                ),
                begin=BEGIN_MIGRATION,
            )
        except BaseException:
            await database.close()
            raise
        self._open = database
        self._channel = channel_of(cluster_id)
        self._teller = MarksTeller(database, channel=self._channel, sender=self._sender)
        if self._watchers is not None:
            on_image, on_marks = self._watchers
            self._listener = Listener(
                self._url,
                channel=self._channel,
                sender=self._sender,
                randomness=self._randomness,
                on_image=on_image,
                on_marks=on_marks,
            )
            await self._listener.start()

    async def close(self) -> None:
        database, self._open = self._open, None
        if self._listener is not None:
            await self._listener.close()
        if self._teller is not None:
            await self._teller.close()
        if database is not None:
            await database.close()

    @property
    def _database(self) -> Connections:
        if self._open is None:
            raise ControlUnavailable(f"{self._where} is closed")
        return self._open

    def watch(self, on_image: Callable[[], None], on_marks: MarksListener) -> None:
        self._watchers = (on_image, on_marks)

    # Metadata

    async def ping(self, within_seconds: float) -> None:
        await self._database.statement(tables.read_stamp, within_seconds=within_seconds)

    async def image(self) -> MetadataImage:
        stamp = await self._database.statement(tables.read_stamp)
        async with self._loading:
            known = self._known
            if known is None or (known.image.version, known.stamp) != stamp:
                read = await self._database.transaction(
                    lambda connection: tables.read_image(connection, self._known),
                    begin=BEGIN_SNAPSHOT,
                )
                if known is None or read.stamp != known.stamp:
                    self._known = known = read
            return known.image

    async def _locked_image(
        self, connection: Connection, stamp: tuple[int, UUID] | None = None
    ) -> MetadataImage:
        known = await self._locked(connection, stamp or await tables.read_stamp(connection))
        self._publish(known)
        return known.image

    async def _locked(self, connection: Connection, stamp: tuple[int, UUID]) -> StampedImage:
        """The image of a stamp that was read under the lock of metadata."""
        known = self._known
        if known is None or (known.image.version, known.stamp) != stamp:
            known = await tables.read_image(connection, known)
        return known

    def _known_image(self, stamp: UUID | None) -> MetadataImage | None:
        known = self._known
        return known.image if known is not None and known.stamp == stamp else None

    def _publish(self, image: StampedImage) -> None:
        known = self._known
        if known is None or known.image.version < image.image.version:
            self._known = image

    def _tell(self, marks: Mapping[PartitionKey, PartitionMarks]) -> None:
        known = self._known
        if self._teller is not None and known is not None and len(known.image.brokers) > 1:
            self._teller.tell(marks)

    async def _change(self, change: Change[T]) -> T:
        """Apply a change to the newest image under the locks of metadata; what it answers."""
        stamp = self._randomness.uuid()

        async def work(connection: Connection) -> tuple[T, StampedImage]:
            known = await self._locked(connection, await tables.read_stamp(connection, lock=True))
            image, answer = await change(connection, known.image, stamp)
            if image is known.image:
                return answer, known
            await tables.write_image_version(
                connection, image, stamp, self._channel, image_notice(self._sender)
            )
            return answer, known.followed_by(image, stamp)

        answer, changed = await self._database.transaction(work, begin=BEGIN_METADATA)
        self._publish(changed)
        return answer

    async def register_broker(
        self, *, broker_id: int, host: str, port: int, rack: str | None, incarnation: UUID
    ) -> Broker:
        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, Broker]:
            changed, broker = rules.register_broker(
                image,
                broker_id=broker_id,
                host=host,
                port=port,
                rack=rack,
                incarnation=incarnation,
                highest_epoch=await tables.read_broker_epoch(connection, broker_id),
            )
            await tables.write_broker(connection, broker)
            return changed, broker

        return await self._change(change)

    async def unregister_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, None]:
            changed = rules.unregister_broker(image, broker_id=broker_id, incarnation=incarnation)
            await tables.forget_brokers(connection, [broker_id])
            return changed, None

        await self._change(change)

    async def renew_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        if not await self._database.statement(
            lambda connection: tables.renew_broker(connection, broker_id, incarnation)
        ):
            rules.check_incarnation(
                await self.image(), broker_id=broker_id, incarnation=incarnation
            )
            raise StaleBroker(broker_id, registered=False)

    async def expire_brokers(self, timeout_ms: int) -> list[int]:
        if not await self._database.statement(
            lambda connection: tables.read_overdue(connection, timeout_ms)
        ):
            return []

        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, list[int]]:
            expired = await tables.forget_overdue(connection, timeout_ms)
            return rules.expire_brokers(image, expired), expired

        return await self._change(change)

    async def create_topic(
        self,
        *,
        name: str,
        topic_id: UUID,
        partitions: Sequence[Sequence[int]],
        configs: Mapping[str, str],
        internal: bool = False,
    ) -> Topic:
        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, Topic]:
            changed, topic = rules.create_topic(
                image,
                name=name,
                topic_id=topic_id,
                partitions=partitions,
                configs=configs,
                internal=internal,
            )
            await tables.delete_offsets_of_topic(connection, name)
            await tables.write_topic(connection, topic, stamp)
            return changed, topic

        return await self._change(change)

    async def delete_topic(self, topic_id: UUID) -> Topic:
        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, Topic]:
            changed, topic = rules.delete_topic(image, topic_id)
            await tables.delete_topic(connection, topic_id)
            await tables.delete_offsets_of_topic(connection, topic.name)
            return changed, topic

        return await self._change(change)

    async def create_partitions(
        self, *, topic_id: UUID, expected_count: int, new: Sequence[Sequence[int]]
    ) -> Topic:
        return await self._change_topic(
            lambda image: rules.create_partitions(
                image, topic_id=topic_id, expected_count=expected_count, new=new
            )
        )

    async def set_topic_configs(
        self, *, topic_id: UUID, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> Topic:
        return await self._change_topic(
            lambda image: rules.set_topic_configs(
                image, topic_id=topic_id, configs=configs, expected=expected
            )
        )

    async def _change_topic(
        self, rule: Callable[[MetadataImage], tuple[MetadataImage, Topic]]
    ) -> Topic:
        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, Topic]:
            changed, topic = rule(image)
            await tables.write_topic(connection, topic, stamp)
            return changed, topic

        return await self._change(change)

    async def set_broker_configs(
        self, *, broker: str, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> None:
        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, None]:
            changed = rules.set_broker_configs(
                image, broker=broker, configs=configs, expected=expected
            )
            await tables.write_broker_configs(connection, broker, configs)
            return changed, None

        await self._change(change)

    async def allocate_producer_ids(self, count: int) -> range:
        async def work(connection: Connection) -> range:
            stop = await tables.allocate_producer_ids(connection, count)
            return rules.producer_ids(stop - count, count)

        rules.producer_ids(0, count)
        return await self._database.transaction(work)

    # Offsets and groups

    async def _fenced(self, membership: int | None, work: Work[T]) -> T:
        """Run work while topics and brokers stand still, if the membership is still the one."""
        expected = "NULL" if membership is None else str(int(membership))
        begin = f"BEGIN; SELECT penstock_fence({expected})"
        return await self._database.transaction(work, begin=begin)

    async def commit_offsets(
        self,
        *,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        membership: int | None = None,
    ) -> None:
        rules.check_offset_count(len(offsets))
        await self._fenced(
            membership, lambda connection: tables.write_offsets(connection, group_id, offsets)
        )

    async def committed_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> list[CommittedOffset]:
        return await self._database.statement(
            lambda connection: tables.read_offsets(connection, group_id, partitions)
        )

    async def delete_offsets(
        self,
        *,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        membership: int | None = None,
    ) -> None:
        rules.check_offset_count(len(partitions))
        await self._fenced(
            membership, lambda connection: tables.delete_offsets(connection, group_id, partitions)
        )

    async def offset_group_ids(self) -> list[str]:
        return await self._database.statement(tables.read_offset_group_ids)

    async def expire_offsets(self, *, now_ms: int, limit: int) -> int:
        return await self._database.transaction(
            lambda connection: tables.expire_offsets(connection, now_ms, limit)
        )

    async def save_group(
        self, record: GroupRecord, *, expected_version: int, membership: int | None = None
    ) -> int:
        async def work(connection: Connection) -> int:
            found = await tables.read_group_version(connection, record.group_id)
            rules.next_group_version(record, found=found, expected=expected_version, highest=0)
            version = await tables.write_group(connection, record, new=found == 0)
            if version is None:
                raise Again(f"another broker made group {record.group_id!r} at the same time")
            return version

        return await self._fenced(membership, work)

    async def groups(self) -> list[GroupRecord]:
        return await self._database.statement(tables.read_groups)

    async def delete_group(self, group_id: str, *, membership: int | None = None) -> None:
        await self._fenced(membership, lambda connection: tables.delete_group(connection, group_id))
