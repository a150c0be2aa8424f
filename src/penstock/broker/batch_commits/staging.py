"""Staging directory of blobs: uploads, usage, and removal of orphans.

A blob is a file that gets its name once it is complete and durable. Files whose names begin with a
dot are unfinished. Spark workers on the broker's machine write blobs into the directory; others
upload them. A worker recognises the directory by `MARKER_FILE`, whose content is random at every
start, so that a copy of the directory is not mistaken for it.

A blob that no open intent names is removed after `sink.staging.orphan.age.ms`. It remained from a
repeated task, a failed batch or a crashed driver.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.base.crc import crc32c
from penstock.base.errors import PenstockError
from penstock.base.files import MACHINE_FILES, sync_directory, write_all
from penstock.broker.batch_commits.manifest import (
    BlobExists,
    BlobTooLarge,
    StagingFull,
    StagingUnavailable,
    check_blob_name,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable

    from penstock.base.system import Clock, Randomness
    from penstock.broker.configuration.settings import BrokerSettings

UPLOAD_BUFFER_BYTES: Final = 1 << 20
STAGED_FILES_MAX: Final = 200_000
STAGED_LOOK_SECONDS: Final = 1.0
"""Maximum age of the count of the directory's files and bytes."""

logger = logging.getLogger(__name__)

MARKER_FILE: Final = ".penstock-staging"
_UPLOAD_PREFIX: Final = ".upload-"
_TOKEN_BITS: Final = 128
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Staged(NamedTuple):
    files: int = 0
    size_bytes: int = 0


class Uploaded(NamedTuple):
    size_bytes: int
    crc32c: int


class StagingArea:
    """Staging directory. Belongs to the event loop; worker threads read and write its files."""

    def __init__(self, settings: BrokerSettings, *, clock: Clock, randomness: Randomness) -> None:
        self.directory = Path(settings.sink_staging_directory).absolute()
        self.blob_max_bytes = settings.sink_staging_blob_max_bytes
        self.token = ""
        self.removed_orphans = 0
        self.guard = asyncio.Lock()
        self._max_bytes = settings.sink_staging_max_bytes
        self._principal_max_bytes = settings.sink_staging_principal_max_bytes
        self._free_bytes = settings.sink_staging_free_bytes
        self._orphan_age_ms = settings.sink_staging_orphan_age_ms
        self._clock = clock
        self._randomness = randomness
        self._known = Staged()
        self._looked = float("-inf")
        self._uploading = 0
        self._owners: dict[str, tuple[str, int]] = {}
        self._owned: Counter[str] = Counter()
        """Staged bytes by principal, including uploads under way."""

    @property
    def staged(self) -> Staged:
        """Files and bytes at the last count, plus later uploads."""
        return self._known

    async def start(self) -> None:
        """Create the directory, and a new token in its `MARKER_FILE`.

        Raises:
            StagingUnavailable: the directory cannot be created or written.
        """
        self.token = f"{self._randomness.bits(_TOKEN_BITS):032x}"
        try:
            await asyncio.to_thread(_prepare, self.directory, self.token)
        except OSError as error:
            raise StagingUnavailable(
                f"cannot use sink.staging.directory = {self.directory}: {error.strerror or error}"
            ) from None

    async def check_room(self, principal: str = "") -> None:
        """Check that more bytes may be staged; with a `principal`, also by this principal.

        Raises:
            StagingFull: `sink.staging.max.bytes`, `sink.staging.principal.max.bytes`,
                `sink.staging.free.bytes` or the maximum number of files is reached.
        """
        if self._clock.monotonic() - self._looked >= STAGED_LOOK_SECONDS:
            self._looked = self._clock.monotonic()
            await self._look()
        free_bytes = (await asyncio.to_thread(shutil.disk_usage, self.directory)).free
        if free_bytes <= self._free_bytes:
            raise StagingFull(
                f"the disk of {self.directory} has {free_bytes} bytes free, and staging must leave"
                f" sink.staging.free.bytes = {self._free_bytes}: free some space, or stage on"
                " another disk with sink.staging.directory"
            )
        if principal and self._owned[principal] >= self._principal_max_bytes:
            raise StagingFull(
                f"{principal} has {self._owned[principal]} bytes staged or being uploaded,"
                f" sink.staging.principal.max.bytes = {self._principal_max_bytes}: try again when"
                " commits have ended"
            )
        size_bytes = self._known.size_bytes + self._uploading
        if size_bytes >= self._max_bytes or self._known.files >= STAGED_FILES_MAX:
            raise StagingFull(
                f"{self._known.files} blobs with {size_bytes} bytes are staged or being uploaded;"
                f" sink.staging.max.bytes = {self._max_bytes} and {STAGED_FILES_MAX} blobs are the"
                " limits: try again when commits have ended"
            )

    async def _look(self) -> None:
        self._known, gone = await asyncio.to_thread(_look, self.directory, [*self._owners])
        for name in gone:
            principal, size_bytes = self._owners.pop(name)
            self._owned[principal] -= size_bytes
        self._owned = +self._owned

    async def upload(
        self, name: str, chunks: AsyncIterator[bytes], principal: str = ""
    ) -> Uploaded:
        """Write a blob as it arrives; it is durable and has its name on return.

        Its bytes count toward the limit of `principal`, if given, until the broker restarts.

        Raises:
            InvalidCommit: the name is not allowed.
            BlobExists: a blob of this name exists.
            BlobTooLarge: the blob exceeds `sink.staging.blob.max.bytes`.
            StagingFull: a limit of `check_room` is reached, or the disk is full.
        """
        check_blob_name(name)
        target = self.directory / name
        if await asyncio.to_thread(os.path.lexists, target):
            raise _exists(name)
        await self.check_room(principal)
        temporary = self.directory / f"{_UPLOAD_PREFIX}{self._randomness.uuid().hex}"
        upload = _Upload(temporary)
        try:
            async for chunk in chunks:
                upload.take(chunk)
                self._uploading += len(chunk)
                self._owned[principal] += len(chunk)
                if upload.size_bytes > self.blob_max_bytes:
                    raise BlobTooLarge(
                        f"blob {name!r} has more than sink.staging.blob.max.bytes ="
                        f" {self.blob_max_bytes}"
                    )
                if upload.waiting_bytes >= UPLOAD_BUFFER_BYTES:
                    await asyncio.to_thread(upload.write)
                    await self.check_room(principal)
            await asyncio.to_thread(upload.finish, target)
        except FileExistsError:
            raise _exists(name) from None
        except OSError as error:
            raise _failure(self.directory, error) from error
        finally:
            self._uploading -= upload.size_bytes
            self._owned[principal] -= upload.size_bytes
            await asyncio.shield(asyncio.to_thread(upload.discard))
        self._owners[name] = principal, upload.size_bytes
        self._owned[principal] += upload.size_bytes
        known = self._known
        self._known = Staged(known.files + 1, known.size_bytes + upload.size_bytes)
        return Uploaded(upload.size_bytes, upload.checksum)

    async def sweep(self, kept: Callable[[], Collection[str]]) -> int:
        """Remove old files whose names `kept` does not return; return the number of removed files.

        `kept` is called under `guard`. Callers must hold `guard` when they add names to keep.
        """
        before_ms = self._clock.now_ms() - self._orphan_age_ms
        try:
            old = await asyncio.to_thread(_older, self.directory, before_ms)
            async with self.guard:
                held = kept()
                orphans = [name for name in old if name not in held]
                removed = await asyncio.to_thread(_remove, self.directory, orphans, before_ms)
            await self._look()
        except OSError as error:
            logger.error("cannot remove orphaned blobs in %s: %s", self.directory, error)
            return 0
        if removed:
            logger.info("removed %d orphaned blobs from %s", removed, self.directory)
        self.removed_orphans += removed
        return removed


class _Upload:
    """File under upload. `take` runs on the event loop, other methods on a worker thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._position = 0
        self._waiting: list[bytes] = []
        self.waiting_bytes = 0
        self.size_bytes = 0
        self.checksum = 0

    def take(self, chunk: bytes) -> None:
        self._waiting.append(chunk)
        self.waiting_bytes += len(chunk)
        self.size_bytes += len(chunk)

    def write(self) -> None:
        if self._descriptor < 0:
            self._descriptor = MACHINE_FILES.create(self._path, mode=0o644)
        data = b"".join(self._waiting)
        self._waiting, self.waiting_bytes = [], 0
        self.checksum = crc32c(data, self.checksum)
        self._position = write_all(MACHINE_FILES, self._descriptor, self._position, [data])

    def finish(self, target: Path) -> None:
        """Sync the file and give it its name; raises FileExistsError."""
        self.write()
        MACHINE_FILES.sync_file(self._descriptor)
        MACHINE_FILES.link(self._path, target)
        sync_directory(MACHINE_FILES, target.parent)

    def discard(self) -> None:
        if self._descriptor >= 0:
            MACHINE_FILES.close(self._descriptor)
            self._descriptor = -1
            with suppress(FileNotFoundError):
                self._path.unlink()


def _exists(name: str) -> BlobExists:
    return BlobExists(f"a blob named {name!r} is staged already")


def _failure(directory: Path, error: OSError) -> PenstockError:
    if error.errno in _NO_ROOM:
        return StagingFull(f"the disk of {directory} is full")
    return StagingUnavailable(f"writing to {directory} failed: {error.strerror or error}")


def _prepare(directory: Path, token: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for entry in _entries(directory):
        if entry.name.startswith(_UPLOAD_PREFIX):  # an unfinished upload of an earlier process
            os.unlink(entry.path)
    temporary = directory / f"{_UPLOAD_PREFIX}token"
    temporary.write_text(token, encoding="ascii")
    temporary.replace(directory / MARKER_FILE)
    sync_directory(MACHINE_FILES, directory)
    sync_directory(MACHINE_FILES, directory.parent)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as found:
        return [
            entry
            for entry in found
            if entry.name != MARKER_FILE and entry.is_file(follow_symlinks=False)
        ]


def _look(directory: Path, owned: Iterable[str]) -> tuple[Staged, set[str]]:
    files, size_bytes, gone = 0, 0, set(owned)
    for entry in _entries(directory):
        gone.discard(entry.name)
        with suppress(FileNotFoundError):
            size_bytes += 0 if _is_upload(entry.name) else entry.stat(follow_symlinks=False).st_size
            files += 1
    return Staged(files, size_bytes), gone


def _is_upload(name: str) -> bool:
    return name.startswith(_UPLOAD_PREFIX)


def _older(directory: Path, before_ms: int) -> list[str]:
    return [entry.name for entry in _entries(directory) if _is_older(entry.path, before_ms)]


def _is_older(path: str | Path, before_ms: int) -> bool:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns < before_ms * 1_000_000
    except FileNotFoundError:
        return False


def _remove(directory: Path, names: list[str], before_ms: int) -> int:
    removed = 0
    for name in names:
        if _is_older(directory / name, before_ms):
            with suppress(FileNotFoundError):
                (directory / name).unlink()
                removed += 1
    return removed
