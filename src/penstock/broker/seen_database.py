"""What this broker has seen of the database, in a file of its directory: `database.seen`.

`control/epochs/seen.py` says what is compared. Before it registers, the broker asks whether the
database is the one that it knows, and keeps that it is about to; once it is registered it keeps the
new epoch. A database that was set back is refused before any log is opened or deleted, at the start
and while the broker runs, which ends then.

A directory that knows of fewer registrations than the database is an older copy, or another process
had this broker's id: its copies of replicated partitions may lack what they promised and
acknowledged. That is noted in the journal before the registration is kept, so that each of them is
in limbo until it has all of its leader's log, however often the broker is restarted meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    from penstock.storage import LogStore, ReplicaLog

logger = logging.getLogger(__name__)

FILE: Final = "database.seen"
FILE_BYTES_MAX: Final = 4096
KEEP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenParts:
    """What is used of the broker."""

    control: ControlPlane
    store: LogStore
    commits: GroupCommits


class DatabaseWatch:
    """See the module's text. Belongs to the event loop."""

    def __init__(self, parts: SeenParts, *, on_set_back: Callable[[PenstockError], None]) -> None:
        """`on_set_back` is told when the database of a running broker is not the one it was."""
        self._parts = parts
        self._path = os.path.join(parts.store.directory, FILE)
        self._on_set_back = on_set_back
        self._seen: SeenDatabase | None = None
        self._kept: SeenDatabase | None = None
        self._writing = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None

    # -- the registration

    async def before_registering(self) -> None:
        """Compare, and keep that a registration is begun.

        Raises:
            DatabaseSetBack: the database is another one, or an older copy.
            CorruptFile: what was kept is damaged.
        """
        if self._seen is None:
            self._seen = self._read()
            await self._check_promises()
        if self._seen is not None:
            check(self._seen, await self._parts.control.image())
            await self._keep(self._seen._replace(begun=self._seen.begun + 1))

    async def registered(self, own: Broker) -> None:
        """This process is registered.

        Raises:
            DatabaseSetBack: the database is an older copy; every later start says so as well.
            StorageError: what may be lost cannot be noted.
        """
        seen = self._seen
        image = await self._parts.control.image()
        try:
            found = look(seen, image, own)
        except DatabaseSetBack as error:
            self._on_set_back(error)
            if seen is not None and not seen.refused:
                await self._keep(seen._replace(refused=f"{error}, and remove {self._path} then"))
            raise
        if seen is not None and is_older(seen, own):
            logger.error(
                "%s is an older copy of broker %d's directory, or another process had its id: it"
                " knows registration %d, the database %d; each copy takes part in full once it has"
                " all of its leader's log",
                self._parts.store.directory, own.broker_id, seen.broker_epoch, own.epoch,
            )  # fmt: skip
            await self._note_losses()
        await self._keep(found)
        if self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep_on())

    async def close(self) -> None:
        """Keep no more. Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    # -- images

    async def check(self, image: MetadataImage) -> None:
        """Whether this broker may go by an image.

        Raises:
            DatabaseSetBack: it is of another database, or of an older copy.
        """
        seen = self._seen
        if seen is None:
            return
        try:
            check(seen, image)
        except DatabaseSetBack:  # or was it read before what was seen?
            image = await self._parts.control.image()
            try:
                check(seen, image)
            except DatabaseSetBack as error:
                logger.critical("this broker stops: %s", error)
                self._on_set_back(error)
                raise
        self._seen = self._seen and self._seen._replace(
            version=image.version, cluster_epoch=image.cluster_epoch
        )

    async def _check_promises(self) -> None:
        """Raise DatabaseSetBack if a copy here has promised what was never reserved."""
        logs = {(log.topic_id, log.topic_partition.partition): log for log in self._copies()}
        copies = list(logs)
        for start in range(0, len(copies), EPOCH_PARTITIONS_PER_CALL_MAX):
            keys = copies[start : start + EPOCH_PARTITIONS_PER_CALL_MAX]
            reserved = await self._parts.control.highest_reserved(keys)
            ahead = set_back({key: logs[key].promised for key in keys}, reserved)
            if ahead:
                first = logs[ahead[0]]
                raise DatabaseSetBack(
                    f"the control plane was set back: {len(ahead)} copies here have promised epochs"
                    f" that it has never reserved, the first: {first.topic_partition}, epoch"
                    f" {first.promised} of {reserved[ahead[0]].reserved}; restore the newest copy"
                    " of its database"
                )

    async def _note_losses(self) -> None:
        durable: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        for log in self._copies():
            log.note_loss()
        self._parts.commits.flush_then(durable.set_result)
        error = await durable
        if error is not None:
            raise error

    def _copies(self) -> Iterator[ReplicaLog]:
        return (log for log in self._parts.store.partitions.values() if log.promised >= 0)

    # -- the file

    async def _keep_on(self) -> None:
        told = ""
        while True:
            await pause(KEEP_SECONDS)
            try:
                await self.check(await self._parts.control.image())
                await self._keep_up()
            except DatabaseSetBack:
                return  # which was told
            except PenstockError as error:
                if told != str(error):
                    logger.warning("what is seen of the database is not known, or kept: %s", error)
                told = str(error)

    async def _keep(self, seen: SeenDatabase) -> None:
        """Have a file say this, and how far images have come meanwhile."""
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
            said = f"{self._path} cannot be written"
            raise write_error(error, self._path, said) from error

    def _read(self) -> SeenDatabase | None:
        try:
            values = json.loads(read_file(MACHINE_FILES, self._path, FILE_BYTES_MAX))
            seen = SeenDatabase(**{**values, "incarnation": UUID(values["incarnation"])})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptFile(
                f"{self._path} does not say which database this broker has seen: {error}; if it is"
                " the newest copy, remove the file"
            ) from None
        self._kept = seen
        return seen
