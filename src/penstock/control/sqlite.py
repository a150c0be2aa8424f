"""The control plane in one SQLite file, for a broker that runs on one machine.

The file has one owner, so the image in memory is the truth and the tables are its durable
copy: an operation applies its rule to the image, writes the rows that changed, and the new
image is published once the commit that covers it has been synced. Both happen on the writer's
thread (`drivers/sqlite_writer.py`).

Brokers that the file says are registered when it is opened are those of processes that are gone:
the owner that opens it registers itself anew. Epochs stay, so that they only rise.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.control.batch_index.sqlite_index import SqliteDiskless
from penstock.control.drivers.sqlite_writer import SqliteWriter, Writer
from penstock.control.errors import ControlUnavailable
from penstock.control.metadata import rules
from penstock.control.metadata import sqlite_tables as tables
from penstock.control.migrations.sqlite.migrate import migrate
from penstock.control.port import MarksListener
from penstock.control.sink_commits.plane import SinkCommits
from penstock.control.values import (
    Broker,
    CommittedOffset,
    GroupRecord,
    MetadataImage,
    Topic,
)


class SqliteControlPlane(SqliteDiskless, SinkCommits):
    """The port over one file; `start` opens or creates it."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        super().__init__()
        self._path = path
        self._clock = clock
        self._randomness = randomness
        self._renewed_ms: dict[int, int] = {}
        self._committed: MetadataImage | None = None
        self._working: MetadataImage | None = None
        self._writer = self._new_writer()

    def _new_writer(self) -> Writer:
        return SqliteWriter(self._path, on_group=self._publish)

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
        await self._writer.run(lambda connection: connection.execute("SELECT 1").fetchone())

    async def image(self) -> MetadataImage:
        if self._committed is None:
            raise ControlUnavailable(f"the metadata database {self._path} is not open")
        return self._committed

    def watch(self, on_image: Callable[[], None], on_marks: MarksListener) -> None:
        """The file has one owner: nobody else changes anything."""

    async def register_broker(
        self, *, broker_id: int, host: str, port: int, rack: str | None, incarnation: UUID
    ) -> Broker:
        def operation(connection: sqlite3.Connection) -> Broker:
            self._renewed_ms[broker_id] = self._clock.now_ms()
            image, broker = rules.register_broker(
                self._current(),
                broker_id=broker_id,
                host=host,
                port=port,
                rack=rack,
                incarnation=incarnation,
                highest_epoch=tables.read_broker_epoch(connection, broker_id),
            )
            tables.write_broker(connection, broker)
            self._change(connection, image)
            return broker

        broker: Broker = await self._writer.run(operation)
        return broker

    async def unregister_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            image = rules.unregister_broker(
                self._current(), broker_id=broker_id, incarnation=incarnation
            )
            connection.execute(
                "UPDATE brokers SET registered = 0 WHERE broker_id = ?", (broker_id,)
            )
            self._change(connection, image)

        await self._writer.run(operation)

    async def renew_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            rules.check_incarnation(self._current(), broker_id=broker_id, incarnation=incarnation)
            self._renewed_ms[broker_id] = self._clock.now_ms()

        await self._writer.run(operation)

    async def expire_brokers(self, timeout_ms: int) -> list[int]:
        def operation(connection: sqlite3.Connection) -> list[int]:
            image, before_ms = self._current(), self._clock.now_ms() - timeout_ms
            known = [broker.broker_id for broker in image.brokers]
            expired = [one for one in known if self._renewed_ms[one] < before_ms]
            if expired:
                tables.forget_brokers(connection, expired)
                self._change(connection, rules.expire_brokers(image, expired))
            return expired

        expired: list[int] = await self._writer.run(operation)
        return expired

    async def create_topic(
        self,
        *,
        name: str,
        topic_id: UUID,
        partitions: Sequence[Sequence[int]],
        configs: Mapping[str, str],
        internal: bool = False,
    ) -> Topic:
        def operation(connection: sqlite3.Connection) -> Topic:
            image, topic = rules.create_topic(
                self._current(),
                name=name,
                topic_id=topic_id,
                partitions=partitions,
                configs=configs,
                internal=internal,
            )
            tables.delete_offsets_of_topic(connection, name)
            tables.write_topic(connection, topic)
            self._change(connection, image)
            return topic

        topic: Topic = await self._writer.run(operation)
        return topic

    async def delete_topic(self, topic_id: UUID) -> Topic:
        def operation(connection: sqlite3.Connection) -> Topic:
            image, topic = rules.delete_topic(self._current(), topic_id)
            tables.delete_topic(connection, topic)
            self._change(connection, image)
            return topic

        topic: Topic = await self._writer.run(operation)
        return topic

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

    async def set_broker_configs(
        self, *, broker: str, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            image = rules.set_broker_configs(
                self._current(), broker=broker, configs=configs, expected=expected
            )
            tables.write_broker_configs(connection, broker, configs)
            self._change(connection, image)

        await self._writer.run(operation)

    async def allocate_producer_ids(self, count: int) -> range:
        def operation(connection: sqlite3.Connection) -> range:
            next_id = int(tables.read_fact(connection, "next_producer_id") or 0)
            allocated = rules.producer_ids(next_id, count)
            tables.write_fact(connection, "next_producer_id", str(allocated.stop))
            return allocated

        allocated: range = await self._writer.run(operation)
        return allocated

    async def commit_offsets(
        self,
        *,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        membership: int | None = None,
    ) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            rules.check_membership(self._current(), membership)
            current = rules.current_offsets(self._current(), offsets)
            tables.write_offsets(connection, group_id, current)

        await self._writer.run(operation)

    async def committed_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> list[CommittedOffset]:
        found: list[CommittedOffset] = await self._writer.run(
            lambda connection: tables.read_offsets(connection, group_id, partitions)
        )
        return found

    async def delete_offsets(
        self,
        *,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        membership: int | None = None,
    ) -> None:
        rules.check_offset_count(len(partitions))

        def operation(connection: sqlite3.Connection) -> None:
            rules.check_membership(self._current(), membership)
            tables.delete_offsets(connection, group_id, partitions)

        await self._writer.run(operation)

    async def offset_group_ids(self) -> list[str]:
        rows: list[tuple[str]] = await self._writer.run(
            lambda connection: connection.execute(
                "SELECT DISTINCT group_id FROM group_offsets ORDER BY group_id"
            ).fetchall()
        )
        return [group_id for (group_id,) in rows]

    async def save_group(
        self, record: GroupRecord, *, expected_version: int, membership: int | None = None
    ) -> int:
        def operation(connection: sqlite3.Connection) -> int:
            rules.check_membership(self._current(), membership)
            version = rules.next_group_version(
                record,
                found=tables.read_group_version(connection, record.group_id),
                expected=expected_version,
                highest=int(tables.read_fact(connection, "highest_group_version") or 0),
            )
            tables.write_group(connection, record, version)
            tables.write_fact(connection, "highest_group_version", str(version))
            return version

        version: int = await self._writer.run(operation)
        return version

    async def groups(self) -> list[GroupRecord]:
        found: list[GroupRecord] = await self._writer.run(tables.read_groups)
        return found

    async def delete_group(self, group_id: str, *, membership: int | None = None) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            rules.check_membership(self._current(), membership)
            tables.delete_group(connection, group_id)

        await self._writer.run(operation)

    async def expire_offsets(self, *, now_ms: int, limit: int) -> int:
        expired: int = await self._writer.run(
            lambda connection: tables.expire_offsets(connection, now_ms, limit)
        )
        return expired

    async def _change_topic(
        self, rule: Callable[[MetadataImage], tuple[MetadataImage, Topic]]
    ) -> Topic:
        def operation(connection: sqlite3.Connection) -> Topic:
            image, topic = rule(self._current())
            tables.write_topic(connection, topic)
            self._change(connection, image)
            return topic

        topic: Topic = await self._writer.run(operation)
        return topic

    # What follows runs in operations of the writer.

    def _current(self) -> MetadataImage:
        if self._working is None:
            raise ControlUnavailable(f"the metadata database {self._path} is not open")
        return self._working

    def _known_image(self, stamp: UUID | None) -> MetadataImage:
        return self._current()

    def _change(self, connection: sqlite3.Connection, image: MetadataImage) -> None:
        tables.write_fact(connection, "image_version", str(image.version))
        tables.write_fact(connection, "membership", str(image.membership))
        self._working = image

    def _publish(self, committed: bool) -> None:
        if committed:
            self._committed = self._working
        else:
            self._working = self._committed

    def _open(self, connection: sqlite3.Connection) -> None:
        connection.create_function("penstock_now_ms", 0, self._clock.now_ms)
        migrate(connection, self._path)
        if tables.read_fact(connection, "cluster_id") is None:
            tables.write_fact(connection, "cluster_id", rules.cluster_id(self._randomness.uuid()))
        tables.forget_all_brokers(connection)
        self._working = tables.read_image(connection)
