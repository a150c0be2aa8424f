"""Record of the control plane's database that this broker uses, in the file `database.seen`.

The record reveals a database that was set back, which means replaced by an older copy. Before it
registers, the broker checks that the database is the recorded one (`control/epochs/seen.py`) and
records that a registration has begun. Afterwards it records its new broker epoch. The broker
rejects a database that was set back before any log is opened or deleted. A running broker stops.

If the record has an older registration than the database, the log directory is an older copy, or
another process has used this broker's id. The replicas here may then lack acknowledged records. The
broker notes this in the journal before it records the registration. Each replica therefore stays in
limbo until it has its leader's whole log, even after restarts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.files import MACHINE_FILES, read_file, replace_file
from penstock.base.pause import pause
from penstock.control import DatabaseSetBack, SeenDatabase
from penstock.control.epochs.seen import check, is_older, look, set_back
from penstock.control.limits import EPOCH_PARTITIONS_PER_CALL_MAX
from penstock.storage import CorruptFile, StorageError
from penstock.storage.errors import write_error

if TYPE_CHECKING:
    from penstock.control import Broker, ControlPlane, MetadataImage
    from penstock.partitions import GroupCommits
    from penstock.storage import LogStore, PartitionLog

logger = logging.getLogger(__name__)

FILE: Final = "database.seen"
FILE_BYTES_MAX: Final = 4096
KEEP_SECONDS: Final = 5.0


class DatabaseWatch:
    """Check that the control plane's database was not set back. Belongs to the event loop."""

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
        """Check the database, and record that a registration has begun.

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
        """Check that a metadata image is of the recorded database; raises DatabaseSetBack."""
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
        """Raise DatabaseSetBack if a replica has promised an epoch that was never reserved."""
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
