"""Rows of coordinators: the keys that a broker owns, their loading, and their saver.

The saver writes all saves of one turn of the event loop as one transaction.

Only one transaction is under way at a time; later saves wait for the next one. If the control plane
rejects a key because another coordinator has saved it, only the save of that key fails.

Every transaction carries the cluster epoch for which this broker owns its keys. If brokers joined
or left, the control plane rejects the transaction. The saver then refreshes the metadata image, and
repeats the saves of keys that this broker still owns. A coordinator that was paused, partitioned or
outdated can therefore not overwrite the keys of another coordinator.

If a save is rejected or its outcome is unknown, the rows of its key are read, to find out whether
this broker or another coordinator wrote them.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import Any, ClassVar, Final, Protocol

from msgspec import Struct

from penstock.base.errors import PenstockError, RetriableError
from penstock.broker.groups.runtime.core import Save, Saved, SaveFailed
from penstock.control import (
    KEY_ROW,
    Broker,
    CoordinationRecord,
    MetadataImage,
    RecordChange,
    RecordKey,
    SavedRecords,
    StaleClusterEpoch,
    TooLarge,
)

# Last known stored rows of one key, so that a save writes only rows that differ.
#
# Only a 64-bit hash of each row's value is kept. Every save writes the key's own row, so that the
# version of this row is the version of the key.


NOT_STORED = 0


class Recognised(Enum):
    SAVED = "rows of the save that failed"
    KNOWN = "rows from before the save"
    FOREIGN = "rows of another coordinator"


class KeyRows:
    """Version and hashes of the rows that a key has in the control plane, as far as known.

    They show which rows a save must change, and who wrote rows that are found after a failure.
    `saving` counts the saves under way.
    """

    __slots__ = ("_doubtful", "_hashes", "key", "saving", "version")

    def __init__(self, key: str, found: Iterable[CoordinationRecord] = ()) -> None:
        self.key = key
        self.saving = 0
        self.version, self._hashes = _known(found)
        self._doubtful: Mapping[str, int] | None = None

    @property
    def is_stored(self) -> bool:
        return bool(self._hashes)

    def are(self, found: Iterable[CoordinationRecord]) -> bool:
        return (self.version, self._hashes) == _known(found)

    def change(self, kind: str, save: Save) -> RecordChange:
        known = self._hashes
        rows: dict[str, bytes | None] = {
            member: value
            for member, value in save.rows.items()
            if member == KEY_ROW or known.get(member) != hash(value)
        }
        for member in known.keys() - save.rows.keys():
            rows[member] = None
        return RecordChange(
            kind=kind,
            key=self.key,
            expected_version=self.version,
            rows=rows,
            deletes_offsets=save.deletes_offsets,
            completes_offsets=save.completes_offsets,
        )

    def stored(self, save: Save, version: int) -> None:
        self.version = version if save.rows else NOT_STORED
        self._hashes, self._doubtful = _hashes(save.rows), None

    def in_doubt(self, save: Save) -> None:
        """Record a save whose outcome is unknown because the rows cannot be read."""
        self._doubtful = _hashes(save.rows)

    def recognise(self, found: Iterable[CoordinationRecord], save: Save) -> Recognised:
        """Return who wrote the rows `found` in the control plane after `save` failed.

        Unless another coordinator wrote them, they become the known rows of the key.
        """
        version, hashes = _known(found)
        if version != self.version and hashes == _hashes(save.rows):
            recognised = Recognised.SAVED
        elif version == self.version or hashes == self._doubtful:
            recognised = Recognised.KNOWN
        else:
            return Recognised.FOREIGN
        self.version, self._hashes, self._doubtful = version, hashes, None
        return recognised


def _hashes(rows: Mapping[str, bytes]) -> dict[str, int]:
    return {member: hash(value) for member, value in rows.items()}


def _known(found: Iterable[CoordinationRecord]) -> tuple[int, dict[str, int]]:
    rows = {row.member: row for row in found}
    own = rows.get(KEY_ROW)
    hashes = {member: hash(row.value) for member, row in rows.items()}
    return NOT_STORED if own is None else own.version, hashes


SAVE_KEYS_MAX: Final = 2_000
"""Maximum number of keys that one transaction saves; the next one saves the others."""
SAVE_BYTES_MAX: Final = 32 << 20
"""Bytes of rows above which a transaction takes no more keys."""
SAVE_ATTEMPTS_MAX: Final = 5

logger = logging.getLogger(__name__)


class RecordPlane(Protocol):
    async def record_keys(self, kind: str) -> list[str]: ...

    async def records(self, kind: str, keys: Sequence[str]) -> list[CoordinationRecord]: ...

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords: ...


class Owner(Protocol):
    """Interface of `Ownership`: the keys that this broker owns, and the cluster epoch."""

    @property
    def cluster_epoch(self) -> int | None: ...

    def owns(self, key: str) -> bool: ...

    async def look_again(self) -> None: ...


class Lost:
    """Outcome of a save: another broker owns the key now, or has saved the rows in `found`."""

    def __init__(self, found: Sequence[CoordinationRecord] | None = None) -> None:
        self.found = found


Outcome = Saved | SaveFailed | Lost


class Pending:
    """Save that waits or is under way. `report` is called once, with its outcome."""

    def __init__(
        self, kind: str, rows: KeyRows, save: Save, report: Callable[[Outcome], None]
    ) -> None:
        self.kind = kind
        self.rows = rows
        self.save = save
        self.attempts = 0
        self._report = report
        rows.saving += 1

    @property
    def record_key(self) -> RecordKey:
        return self.kind, self.save.key

    def change(self) -> RecordChange:
        return self.rows.change(self.kind, self.save)

    def end(self, outcome: Outcome) -> None:
        self.rows.saving -= 1
        self._report(outcome)

    def failed(self, reason: object) -> None:
        self.end(SaveFailed(key=self.save.key, reason=str(reason)))


class Saver:
    """Saver of rows for the cores of one broker; belongs to the event-loop thread."""

    def __init__(self, plane: RecordPlane, ownership: Owner) -> None:
        self._plane = plane
        self._ownership = ownership
        self._gathered: list[Pending] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, pending: Pending) -> None:
        self._gathered.append(pending)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def finish(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._gathered:
                await self._transaction(self._take())
        finally:
            self._task = None

    def _take(self) -> list[tuple[Pending, RecordChange]]:
        taken: dict[RecordKey, tuple[Pending, RecordChange]] = {}
        left: list[Pending] = []
        size = 0
        for pending in self._gathered:
            key = pending.record_key
            if not self._ownership.owns(pending.save.key):
                pending.end(Lost())
            elif key in taken or len(taken) >= SAVE_KEYS_MAX or size >= SAVE_BYTES_MAX:
                left.append(pending)
            else:
                taken[key] = pending, pending.change()
                size += sum(map(len, pending.save.rows.values()))
        self._gathered = left
        return list(taken.values())

    async def _transaction(self, batch: list[tuple[Pending, RecordChange]]) -> None:
        if not batch:
            return
        all_of_it = [pending for pending, _ in batch]
        try:
            saved = await self._plane.save_records(
                [change for _, change in batch], cluster_epoch=self._ownership.cluster_epoch
            )
        except StaleClusterEpoch as error:
            await self._look_again(all_of_it, error)
            return
        except PenstockError as error:
            logger.error("saving %d keys of coordinators failed: %s", len(batch), error)
            await self._find_out(all_of_it, error)
            return
        except Exception as error:  # every save must get an outcome
            for pending in all_of_it:
                pending.failed(error)
            raise
        await self._saved(batch, saved)

    async def _saved(self, batch: list[tuple[Pending, RecordChange]], saved: SavedRecords) -> None:
        stale: list[Pending] = []
        for pending, _ in batch:
            refusal = saved.refused.get(pending.record_key)
            if refusal is None:
                pending.rows.stored(pending.save, saved.version)
                pending.end(Saved(key=pending.save.key))
            elif isinstance(refusal, TooLarge):
                logger.error("%s", refusal)
                pending.failed(refusal)
            else:
                logger.warning("%s", refusal)
                stale.append(pending)
        if stale:
            await self._find_out(stale, None)

    async def _look_again(self, batch: list[Pending], error: StaleClusterEpoch) -> None:
        """Refresh the image after brokers joined or left, and retry saves of owned keys."""
        try:
            await self._ownership.look_again()
        except PenstockError as failure:
            await self._find_out(batch, failure)
            return
        self._again(batch, error)

    def _again(self, batch: Iterable[Pending], reason: object) -> None:
        for pending in batch:
            pending.attempts += 1
            if pending.attempts < SAVE_ATTEMPTS_MAX:
                self._gathered.append(pending)
            else:
                pending.failed(reason)

    async def _find_out(self, batch: list[Pending], failure: PenstockError | None) -> None:
        """Read the rows of keys whose save failed or was rejected, and report the outcomes."""
        try:
            found = await self._read(batch)
        except PenstockError as error:
            for pending in batch:
                pending.rows.in_doubt(pending.save)
                pending.failed(failure or error)
            return
        for pending in batch:
            stored = found.get(pending.record_key, [])
            recognised = pending.rows.recognise(stored, pending.save)
            if recognised is Recognised.SAVED:
                pending.end(Saved(key=pending.save.key))
            elif recognised is Recognised.FOREIGN:
                pending.end(Lost(stored))
            elif failure is None:
                self._again([pending], "the records of the key changed before every attempt")
            else:
                pending.failed(failure)

    async def _read(self, batch: list[Pending]) -> Mapping[RecordKey, list[CoordinationRecord]]:
        found: dict[RecordKey, list[CoordinationRecord]] = {}
        ordered = sorted(pending.record_key for pending in batch)
        for kind, keys in groupby(ordered, key=lambda record_key: record_key[0]):
            for row in await self._plane.records(kind, [key for _, key in keys]):
                found.setdefault((kind, row.key), []).append(row)
        return found


# Ownership of keys: the hash of a key selects the broker that coordinates it.
#
# The candidates are the registered brokers with the ingestion role; all brokers if none has the
# role.


class CoordinatorNotAvailable(RetriableError):
    """No registered broker can coordinate the key, or this broker cannot at present."""

    code: ClassVar[str] = "coordinator_not_available"


class CoordinatorLoading(RetriableError):
    """This broker is loading the key, and too many requests wait for it."""

    code: ClassVar[str] = "coordinator_load_in_progress"


class NotCoordinator(RetriableError):
    code: ClassVar[str] = "not_coordinator"


class Cluster(Protocol):
    @property
    def image(self) -> MetadataImage: ...

    async def refresh(self) -> None: ...


def owner_of(image: MetadataImage, key: str) -> Broker:
    """Return the broker that coordinates a group or a transactional id.

    Raises:
        CoordinatorNotAvailable: no broker is registered.
    """
    return _owner(_ordered(image), key)


def _ordered(image: MetadataImage) -> Sequence[Broker]:
    return sorted(image.serving, key=lambda broker: broker.broker_id)


def _owner(brokers: Sequence[Broker], key: str) -> Broker:
    if not brokers:
        raise CoordinatorNotAvailable(f"no broker is registered, so {key!r} has no coordinator")
    return brokers[zlib.crc32(key.encode()) % len(brokers)]


class Ownership:
    def __init__(self, node_id: int, cluster: Cluster) -> None:
        self.node_id = node_id
        self._cluster = cluster
        self._image: MetadataImage | None = None
        self._brokers: Sequence[Broker] = ()

    @property
    def cluster_epoch(self) -> int:
        """Cluster epoch, which rises whenever brokers join or leave and keys may change owners."""
        return self._cluster.image.cluster_epoch

    async def look_again(self) -> None:
        await self._cluster.refresh()

    def owns(self, key: str) -> bool:
        brokers = self._ordered()
        return bool(brokers) and _owner(brokers, key).broker_id == self.node_id

    def check(self, key: str) -> None:
        """Raise unless this broker coordinates a key.

        Raises:
            NotCoordinator, CoordinatorNotAvailable: another broker coordinates it, or none.
        """
        owner = _owner(self._ordered(), key)
        if owner.broker_id != self.node_id:
            raise NotCoordinator(f"broker {owner.broker_id} coordinates {key!r}")

    def _ordered(self) -> Sequence[Broker]:
        image = self._cluster.image
        if image is not self._image:
            self._image, self._brokers = image, _ordered(image)
        return self._brokers


# Loading of a coordinator's keys: single keys for requests, and all keys of this broker in rounds.
#
# 1. A round begins with each cluster epoch. All keys count as not loaded.
#
# 2. The loader lists all stored keys, and reads those that this broker owns, many at a time. Keys
#    for which requests wait are read first.
#
# 3. When the round is complete, a key that the core does not have is not stored either. Requests
#    then need no further read.
#
# Only one read is under way at a time. The rows that it finds are compared with those that the core
# has: other versions mean that another broker has coordinated the key meanwhile.
#
# All keys are loaded, not only requested ones, because sessions must expire and groups must be
# listed even if their members never return. If a read fails, the waiting requests fail; the next
# request resumes the round.


LOAD_KEYS_MAX: Final = 500
LOADS_WAITING_MAX: Final = 10_000
"""Maximum number of requests that wait for their key; more get COORDINATOR_LOAD_IN_PROGRESS."""


class FoundKey(Struct, frozen=True, kw_only=True):
    rows: Sequence[CoordinationRecord] = ()
    has_offsets: bool = False


NOTHING = FoundKey()


class Source(Protocol):
    async def keys(self) -> Collection[str]: ...

    async def read(self, keys: Sequence[str]) -> Mapping[str, FoundKey]:
        """Return the stored rows of the given keys; keys that are not stored are absent."""
        ...


class Loads:
    """Loader of the keys of one runtime; belongs to the event-loop thread."""

    def __init__(
        self,
        source: Source,
        *,
        owns: Callable[[str], bool],
        known: Callable[[], Collection[str]],
        before: Callable[[Sequence[str]], Mapping[str, Any]],
        take: Callable[[str, FoundKey, Any], None],
        completed: Callable[[], None],
    ) -> None:
        """Create the loader with callbacks of the runtime.

        `owns(key)` returns whether this broker owns a key; `known()` returns the keys of the core.
        Before a read, `before(keys)` returns the version of each known key. After it,
        `take(key, found, version)` receives the rows that were read. `completed()` is called each
        time when all keys are loaded.
        """
        self._source = source
        self._owns = owns
        self._known = known
        self._before = before
        self._take = take
        self._completed = completed
        self._round = 0
        self._complete = False
        self._loaded: set[str] = set()
        self._backlog: list[str] | None = None
        self._requested: dict[str, asyncio.Future[None]] = {}
        self._all: asyncio.Future[None] | None = None
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    def ready(self, key: str | None) -> bool:
        """Whether a key is loaded; for None, whether all keys are."""
        return self._complete or key in self._loaded

    def begin(self) -> None:
        """Begin to load all keys again, because other brokers may have owned them meanwhile."""
        self._round += 1
        self._complete = False
        self._loaded.clear()
        self._backlog = None
        self.start()

    async def load(self, key: str | None) -> None:
        """Wait until a key is loaded; for None, until all keys are.

        Raises:
            CoordinatorLoading: too many requests wait.
            NotCoordinator: the key belongs to another broker now.
            PenstockError: the key cannot be read.
        """
        if self._waiting >= LOADS_WAITING_MAX:
            raise CoordinatorLoading(
                f"{self._waiting} requests already wait for keys to be loaded; no more may wait"
            )
        self._waiting += 1
        try:
            while not self.ready(key):
                self.start()
                await asyncio.shield(self._future(key))
        finally:
            self._waiting -= 1

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _future(self, key: str | None) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if key is None:
            if self._all is None:
                self._all = loop.create_future()
            return self._all
        future = self._requested.get(key)
        if future is None:
            future = self._requested[key] = loop.create_future()
        return future

    def start(self) -> None:
        """Continue to load keys unless all are loaded. Idempotent."""
        if self._task is None and not self._complete:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while not self._complete:
                await self._step()
            for future in self._requested.values():
                _resolve(future)
            self._requested.clear()
            _resolve(self._all)
            self._all = None
        except PenstockError as error:
            logger.warning("the keys of this coordinator cannot be read: %s", error)
            self._fail(error)
        except BaseException:
            self._fail(CoordinatorNotAvailable("the coordinator stopped loading"))
            raise
        finally:
            self._task = None

    async def _step(self) -> None:
        if self._requested:
            await self._read(list(self._requested)[:LOAD_KEYS_MAX])
        elif self._backlog is None:
            number = self._round
            listed = await self._source.keys()
            if number == self._round:
                left = {*listed, *self._known()} - self._loaded
                self._backlog = sorted(filter(self._owns, left), reverse=True)
        elif self._backlog:
            backlog, keys = self._backlog, self._backlog[-LOAD_KEYS_MAX:]
            await self._read([key for key in keys if key not in self._loaded])
            del backlog[-len(keys) :]
        else:
            self._complete = True
            self._loaded.clear()
            self._completed()

    async def _read(self, keys: Sequence[str]) -> None:
        number, versions = self._round, self._before(keys)
        found = await self._source.read(keys)
        if number != self._round:
            return
        for key in keys:
            future = self._requested.pop(key, None)
            if not self._owns(key):
                _resolve(future, NotCoordinator(f"another broker coordinates {key!r} now"))
            elif key not in self._loaded:
                self._take(key, found.get(key, NOTHING), versions.get(key))
                self._loaded.add(key)
            _resolve(future)

    def _fail(self, error: PenstockError) -> None:
        waiting, self._requested = list(self._requested.values()), {}
        if self._all is not None:
            waiting.append(self._all)
            self._all = None
        for future in waiting:
            _resolve(future, error)


def _resolve(future: asyncio.Future[None] | None, error: PenstockError | None = None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # retrieved, in case no request waits any more
