"""Liveness of a broker: renews its registration every `broker.heartbeat.interval.ms`.

The file also has the record of the metadata database that the broker has used.

| result of the renewal                  | action of this broker                                  |
|----------------------------------------|--------------------------------------------------------|
| success                                | expires brokers without a renewal for a session        |
| failures for a whole session           | rejects group and transaction requests, because other  |
|                                        | brokers may coordinate them now                        |
| the registration has expired           | registers again, with a higher epoch                   |
| another process has registered this id | stops this process                                     |

A session is `broker.session.timeout.ms`. The rejection of requests is not needed for correctness:
coordinators' writes carry the cluster epoch or incarnation, and the control plane rejects old ones.
It only returns the error earlier.

If the control plane was unavailable or slow, other brokers could not renew either. A broker then
expires others only after one session of its own renewals. Gaps of up to half a session between
renewals are allowed, for one renewal and its retries. A broker is expired if its last renewal is a
session older than the last renewal of the checking broker. A stalled control plane thus expires no
broker.

Source: Kafka's broker heartbeats (KIP-631) and their settings.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.files import MACHINE_FILES, read_file, replace_file
from penstock.base.pause import pause
from penstock.control import DatabaseSetBack, SeenDatabase, StaleBroker
from penstock.control.rules.epochs import check, is_older, look, set_back
from penstock.control.values.errors import EPOCH_PARTITIONS_PER_CALL_MAX
from penstock.storage import CorruptFile, StorageError
from penstock.storage.files.errors import write_error

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.groups.runtime.runtime import Coordinator
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.migration import TopicMigrations
    from penstock.control import Broker, ControlPlane, MetadataImage
    from penstock.partitions import GroupCommits
    from penstock.storage import LogStore, PartitionLog


logger = logging.getLogger(__name__)


class Session:
    """Times of a registration's renewals, in seconds of a monotonic clock."""

    def __init__(self, timeout_seconds: float, now: float) -> None:
        self._timeout = timeout_seconds
        self._renewed = now
        self._unbroken_since = now

    def renewed(self, asked: float, now: float) -> None:
        """Record that the renewal sent at `asked` has succeeded at `now`."""
        if now - self._renewed > self._timeout / 2:
            self._unbroken_since = now
        self._renewed = max(self._renewed, asked)

    def over(self, now: float) -> bool:
        return now - self._renewed >= self._timeout

    def may_expire_others(self, now: float) -> bool:
        """Return whether this broker has renewed without a gap for a whole session."""
        return not self.over(now) and now - self._unbroken_since >= self._timeout


class Liveness:
    """Periodic renewal of this broker's registration, one at a time.

    `register` registers this broker again after its registration has expired. `on_superseded` is
    called once if another process has registered with the same id; it must end this process.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        clock: Clock,
        cluster: ClusterMetadata,
        coordinator: Coordinator,
        transactions: Coordinator,
        migrations: TopicMigrations,
        incarnation: UUID,
        register: Callable[[], Awaitable[object]],
        on_superseded: Callable[[], None],
    ) -> None:
        self._node_id = settings.node_id
        self._control = control
        self._cluster = cluster
        self._migrations = migrations
        self._coordinators = coordinator, transactions
        self._incarnation = incarnation
        self._register = register
        self._on_superseded = on_superseded
        self._timeout_ms = settings.broker_session_timeout_ms
        self._interval_seconds = settings.broker_heartbeat_interval_ms / 1000
        self._monotonic = clock.monotonic
        self._session = Session(self._timeout_ms / 1000, self._monotonic())
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._tick)

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.wait([self._beat])

    def _tick(self) -> None:
        if self._stopped:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_seconds, self._tick)
        if self._session.over(self._monotonic()):
            self._suspend()
        if self._beat is None or self._beat.done():
            self._beat = loop.create_task(self.beat())

    def session_over(self) -> bool:
        return self._session.over(self._monotonic())

    async def beat(self) -> None:
        """Renew the registration, then join migrations of topics that other brokers coordinate."""
        await self._in_time("renew its registration", self._renew)
        await self._in_time("check for topics that become diskless", self._migrations.look)

    async def _in_time(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        node_id = self._node_id
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await work()
        except TimeoutError:
            logger.warning("broker %d could not %s in %d ms", node_id, what, self._timeout_ms)
        except PenstockError as error:
            logger.warning("broker %d could not %s: %s", node_id, what, error)

    async def _renew(self) -> None:
        asked = self._monotonic()
        try:
            await self._control.renew_broker(broker_id=self._node_id, incarnation=self._incarnation)
        except StaleBroker as stale:
            await self._lost(stale, asked)
            return
        self._session.renewed(asked, self._monotonic())
        await self._resume()
        if not self._session.may_expire_others(self._monotonic()):
            return
        expired = await self._control.expire_brokers(self._timeout_ms, by=self._node_id)
        if expired:
            logger.warning(
                "expired brokers %s, which did not renew their registration for %d ms",
                expired,
                self._timeout_ms,
            )
            await self._cluster.refresh()

    async def _lost(self, stale: StaleBroker, asked: float) -> None:
        self._suspend()
        if stale.registered:
            logger.error("%s; stopping this process: node.id must be unique in the cluster", stale)
            self._stopped = True
            self._on_superseded()
            return
        logger.warning(
            "the registration of broker %d had expired; registering again", self._node_id
        )
        await self._register()
        self._session.renewed(asked, self._monotonic())
        await self._resume()

    async def _resume(self) -> None:
        suspended = [coordinator for coordinator in self._coordinators if coordinator.suspended]
        if suspended:
            await self._cluster.refresh()
        for coordinator in suspended:
            coordinator.resume()

    def _suspend(self) -> None:
        for coordinator in self._coordinators:
            coordinator.suspend()


# Record of the control plane's database that this broker uses, in the file `database.seen`.
#
# The record reveals a database that was set back, which means replaced by an older copy. Before it
# registers, the broker checks that the database is the recorded one (`control/rules/epochs.py`) and
# records that a registration has begun. Afterwards it records its new broker epoch. The broker
# rejects a database that was set back before any log is opened or deleted. A running broker stops.
#
# If the record has an older registration than the database, the log directory is an older copy, or
# another process has used this broker's id. The replicas here may then lack acknowledged records.
# The broker notes this in the journal before it records the registration. Each replica therefore
# stays in limbo until it has its leader's whole log, even after restarts.


FILE: Final = "database.seen"
FILE_BYTES_MAX: Final = 4096
KEEP_SECONDS: Final = 5.0


class DatabaseWatch:
    """Detector of a control plane database that was replaced by an older copy ("set back").

    It compares the database with the broker's record in `database.seen`. Belongs to the event loop.
    """

    def __init__(
        self,
        *,
        control: ControlPlane,
        store: LogStore,
        commits: GroupCommits,
        on_set_back: Callable[[PenstockError], None],
    ) -> None:
        """`on_set_back` is called when a registered broker finds that the database was set back."""
        self._control = control
        self._store = store
        self._commits = commits
        self._path = os.path.join(store.directory, FILE)
        self._on_set_back = on_set_back
        self._seen: SeenDatabase | None = None
        self._kept: SeenDatabase | None = None
        self._writing = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None

    # -- the registration

    async def before_registering(self) -> None:
        """Compare the database with the record, and record that a registration has begun.

        If the broker is killed while it registers, its next start thus does not take the newer
        registration in the database for that of another process.

        Raises:
            DatabaseSetBack: the database is another one, or an older copy.
            CorruptFile: the file `database.seen` is damaged.
        """
        if self._seen is None:
            self._seen = self._read()
            await self._check_promises()
        if self._seen is not None:
            check(self._seen, await self._control.image())
            await self._keep(self._seen._replace(begun=self._seen.begun + 1))

    async def registered(self, own: Broker) -> None:
        """Record the registration `own` of this process.

        Raises:
            DatabaseSetBack: the database is an older copy. This is recorded too, so that every
                later start fails.
            StorageError: the possible loss of records cannot be noted in the journal.
        """
        seen = self._seen
        image = await self._control.image()
        try:
            found = look(seen, image, own)
        except DatabaseSetBack as error:
            self._on_set_back(error)
            if seen is not None and not seen.refused:
                await self._keep(seen._replace(refused=f"{error}; then remove {self._path}"))
            raise
        if seen is not None and is_older(seen, own):
            logger.error(
                "%s is an older copy of broker %d's directory, or another process had its id: the"
                " directory has registration %d, the database %d. Each replica stays in limbo"
                " until it has its leader's whole log",
                self._store.directory, own.broker_id, seen.broker_epoch, own.epoch,
            )  # fmt: skip
            await self._note_losses()
        await self._keep(found)
        if self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep_on())

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    # -- images

    async def check(self, image: MetadataImage) -> None:
        """Raise DatabaseSetBack if a metadata image is of another database, or of an older copy."""
        seen = self._seen
        if seen is None:
            return
        try:
            check(seen, image)
        except DatabaseSetBack:  # or the image is older than the seen state
            image = await self._control.image()
            try:
                check(seen, image)
            except DatabaseSetBack as error:
                logger.critical("stopping this broker: %s", error)
                self._on_set_back(error)
                raise
        self._seen = self._seen and self._seen._replace(
            version=image.version, cluster_epoch=image.cluster_epoch
        )

    async def _check_promises(self) -> None:
        """Raise DatabaseSetBack if a replica has promised an epoch that the database lacks.

        The control plane reserves an epoch before replicas promise it, so the database is an older
        copy.
        """
        logs = {(log.topic_id, log.topic_partition.partition): log for log in self._copies()}
        copies = list(logs)
        for start in range(0, len(copies), EPOCH_PARTITIONS_PER_CALL_MAX):
            keys = copies[start : start + EPOCH_PARTITIONS_PER_CALL_MAX]
            reserved = await self._control.highest_reserved(keys)
            ahead = set_back({key: logs[key].replica.promised for key in keys}, reserved)
            if ahead:
                first, epoch = logs[ahead[0]], logs[ahead[0]].replica.promised
                raise DatabaseSetBack(
                    f"the control plane was set back: {len(ahead)} replicas here have promised"
                    f" epochs that it never reserved. The first is {first.topic_partition}: epoch"
                    f" {epoch}, reserved {reserved[ahead[0]].reserved}; restore the newest"
                    " copy of the database"
                )

    async def _note_losses(self) -> None:
        durable: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        for log in self._copies():
            log.replica.note_loss()
        self._commits.flush_then(durable.set_result)
        error = await durable
        if error is not None:
            raise error

    def _copies(self) -> Iterator[PartitionLog]:
        return (log for log in self._store.partitions.values() if log.replica.promised >= 0)

    # -- the file

    async def _keep_on(self) -> None:
        reported = ""
        while True:
            await pause(KEEP_SECONDS)
            try:
                await self.check(await self._control.image())
                await self._keep_up()
            except DatabaseSetBack:
                return  # already reported
            except PenstockError as error:
                if reported != str(error):
                    logger.warning("could not check the database or store its state: %s", error)
                reported = str(error)

    async def _keep(self, seen: SeenDatabase) -> None:
        now = self._seen or seen
        self._seen = seen._replace(
            version=max(seen.version, now.version),
            cluster_epoch=max(seen.cluster_epoch, now.cluster_epoch),
        )
        await self._keep_up()

    async def _keep_up(self) -> None:
        async with self._writing:
            seen = self._seen
            if seen is not None and seen != self._kept:
                await asyncio.to_thread(self._write, seen)
                self._kept = seen

    def _write(self, seen: SeenDatabase) -> None:
        text = json.dumps({**seen._asdict(), "incarnation": str(seen.incarnation)})
        try:
            replace_file(MACHINE_FILES, self._path, text.encode())
        except OSError as error:
            raise write_error(error, self._path, f"{self._path} cannot be written") from error

    def _read(self) -> SeenDatabase | None:
        try:
            values = json.loads(read_file(MACHINE_FILES, self._path, FILE_BYTES_MAX))
            seen = SeenDatabase(**{**values, "incarnation": UUID(values["incarnation"])})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptFile(
                f"{self._path} is damaged, so this broker cannot check its database: {error}."
                " Remove the file only if the database is its newest copy"
            ) from None
        self._kept = seen
        return seen
