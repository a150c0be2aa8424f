"""Keyring in a directory: one SQLite file with a row for each subject, wrapped by a master key.

    DIRECTORY/               0700
      master.key             0600, unless the master key is elsewhere
      keys.sqlite            0600

SQLite is used for three reasons. Its index finds one of millions of subjects, with some 200 bytes
each. A new key is durable when its transaction ends. The processes of a machine share the file by
its locks, which the file system must support: a local one, or a shared one with working `fcntl`
locks.

A row is found by a digest of the subject, computed with the ring's secret. It has the subject's
data key, wrapped by the master key. When a subject is shredded, its row keeps only the digest, so
that the subject does not get a new key. SQLite overwrites the deleted bytes with zeros
(`secure_delete`). If other pages of the file have copies of the row, the file is rebuilt. The
rollback journal is deleted when the transaction ends. Blocks that the file system released, and
earlier copies of the file, may still contain the wrapped key. A rotation of the master key makes
such copies worthless, once the old master key is destroyed.

Processes cache keys in memory. The ring counts its changes, and every call first compares this
count, so a process drops a shredded key at its next call.

Source: SQLite's documentation of `secure_delete`, `synchronous` and journal modes.
"""

from __future__ import annotations

import hmac
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.security.data.key_ring import (
    KEY_BYTES,
    KEY_ID_BYTES,
    SUBJECT_BYTES_MAX,
    KeyRingBusy,
    KeyRingUnusable,
    SubjectKey,
    SubjectTooLong,
)
from penstock.security.data.master_keys import MasterKey, MasterKeys, master_keys
from penstock.security.data.secret_files import FILE_MODE, check_private, make_private_folder

FILE: Final = "keys.sqlite"
MASTER_KEY_FILE: Final = "master.key"
_RINGS_MAX: Final = 8
"""Most keyrings that one process has open."""
VERSION: Final = 1
CACHED_MAX: Final = 50_000
"""Most keys that a process caches in memory, about 1 KB each."""
BUSY_SECONDS: Final = 30.0
_PAGES_KIB: Final = 32 << 10
"""Size of SQLite's page cache; a larger transaction writes to disk before it ends."""
_ROWS: Final = 500
"""Most rows of one SQL statement."""
_DIGESTS_OF_A_ROW: Final = 2
"""Copies of a digest that the file contains for one row: in the table and in its index."""
_NONCE_BYTES: Final = 12
_DIGEST_BYTES: Final = 16
_SECRET: Final = b"secret"
_SCHEMA: Final = """
create table ring (
    version integer not null, master_id blob not null, changes integer not null,
    secret blob not null
);
create table keys (
    digest blob primary key, key_id blob, subject text, wrapped blob,
    made_ms integer not null, shredded_ms integer
) without rowid;
create unique index keys_by_id on keys (key_id);
"""
_Row = tuple[bytes, bytes | None, bytes | None]
"""Digest of a subject, key id and wrapped key; the last two are None after shredding."""


class SubjectEntry(Struct, frozen=True, kw_only=True):
    subject: str
    made_ms: int


class RingCounts(Struct, frozen=True, kw_only=True):
    """Numbers of subjects that have a key, and of shredded subjects."""

    living: int
    shredded: int


class FileKeyRing:
    """Keyring in a directory, which any number of threads and processes may use.

    Raises:
        KeyRingUnusable: the keyring is missing, other users may read it, or the master key is not
            the one that wraps its keys.
    """

    def __init__(
        self,
        folder: Path,
        master: MasterKeys,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        cached_max: int = CACHED_MAX,
    ) -> None:
        self._folder = folder
        self._masters = master
        self._clock = clock
        self._randomness = randomness
        self._cached_max = cached_max
        self._lock = threading.Lock()
        self._cached: dict[str, SubjectKey] = {}
        self._changes = -1
        self._master: MasterKey | None = None
        self._secret = self._digest_key = b""
        self._process = 0
        self._connection: sqlite3.Connection
        with self._calling():
            pass

    def __repr__(self) -> str:
        return f"FileKeyRing({str(self._folder)!r})"

    @classmethod
    def create(
        cls, folder: Path, master: MasterKeys, *, randomness: Randomness = SYSTEM_RANDOMNESS
    ) -> FileKeyRing:
        """Create a keyring, and its master key if `master` is a file that does not exist yet.

        Raises:
            KeyRingUnusable: the directory already has a keyring, or other users may read it.
        """
        make_private_folder(folder)
        os.close(os.open(folder / FILE, os.O_CREAT | os.O_WRONLY, FILE_MODE))
        master.make()
        key = master.read()[0]
        with _told_of(folder):
            connection = _opened(folder)
            with _transaction(connection):
                if _has_tables(connection):
                    raise KeyRingUnusable(f"{folder} already contains a keyring")
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                secret = _wrap(key, AESGCM.generate_key(8 * KEY_BYTES), _SECRET, randomness)
                connection.execute(
                    "insert into ring values (?, ?, 0, ?)", (VERSION, key.key_id, secret)
                )
            connection.close()
        return cls(folder, master, randomness=randomness)

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            self._connection.close()
            self._process = 0

    # The port

    def secret(self, purpose: str) -> bytes:
        with self._calling():
            return self._derived(purpose)

    def for_encryption(self, subjects: Sequence[str]) -> list[SubjectKey | None]:
        with self._calling():
            found = self._found(subjects)
            missing = [subject for subject in dict.fromkeys(subjects) if subject not in found]
            if missing:
                found |= self._made(missing)
            return [found[subject] for subject in subjects]

    def for_decryption(self, subjects: Sequence[str]) -> list[SubjectKey | None]:
        with self._calling():
            found = self._found(subjects)
            return [found.get(subject) for subject in subjects]

    def known(self, key_ids: Collection[bytes]) -> set[bytes]:
        with self._calling():
            found: set[bytes] = set()
            for part in _parts(list(key_ids)):
                placeholders = ", ".join("?" * len(part))
                rows = self._connection.execute(
                    f"select key_id from keys where key_id in ({placeholders})", part
                )
                found |= {row[0] for row in rows}
            return found

    # Management

    def counts(self) -> RingCounts:
        """Return the numbers of subjects in the ring."""
        with self._calling():
            living, shredded = self._connection.execute(
                "select count(wrapped), count(shredded_ms) from keys"
            ).fetchone()
            return RingCounts(living=living, shredded=shredded)

    def entries(self, limit: int) -> list[SubjectEntry]:
        """Return at most `limit` subjects that have keys, oldest first."""
        with self._calling():
            rows = self._connection.execute(
                "select subject, made_ms from keys where wrapped is not null"
                " order by made_ms, subject limit ?", (limit,),
            )  # fmt: skip
            return [SubjectEntry(subject=name, made_ms=made) for name, made in rows]

    def shred(self, subject: str) -> bool:
        """Delete a subject's key permanently; return False if it has none.

        On return the deletion is durable, and no file of the ring contains the key.
        """
        with self._calling():
            with self._transaction():
                digest = self._digest(subject)
                done = self._connection.execute(
                    "update keys set key_id = null, subject = null, wrapped = null, shredded_ms = ?"
                    " where digest = ? and wrapped is not null",
                    (self._clock.now_ms(), digest),
                )
                shredded = self._changed(done.rowcount)
            # Page splits leave copies of rows in unused bytes, which a deletion does not overwrite.
            if self._connection.serialize().count(digest) > _DIGESTS_OF_A_ROW:
                self._connection.execute("vacuum")
            return shredded

    def readmit(self, subject: str) -> bool:
        """Allow a shredded subject to get a new key; return False if it was not shredded."""
        with self._calling(), self._transaction():
            done = self._connection.execute(
                "delete from keys where digest = ? and wrapped is null", (self._digest(subject),)
            )
            return self._changed(done.rowcount)

    def rotate(self) -> tuple[int, str]:
        """Wrap all keys with a new master key.

        After a crash, the keys are wrapped by either the old or the new master key, and both are
        available.

        Returns:
            The number of keys, and the step that the operator still has to do (may be empty).
        """
        with self._calling():
            with self._transaction():  # concurrent rotations wait here
                self._promote_next()
                new = self._masters.prepare()
                if new.key_id == self._present().key_id:
                    raise KeyRingUnusable(
                        "the next master key equals the present one. Provide a new key"
                    )
                count = self._wrap_again(new)
                secret = _wrap(new, self._secret, _SECRET, self._randomness)
                self._connection.execute(
                    "update ring set master_id = ?, secret = ?", (new.key_id, secret)
                )
                self._changed(1)
            with self._transaction():
                return count, self._promote_next()

    # Inside of a call

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Hold the lock during a call; open the file again in a forked process, and refresh the
        cache.
        """
        with self._lock, _told_of(self._folder):
            if self._process != os.getpid():
                self._connection = self._connect()
            self._refresh()
            yield

    def _connect(self) -> sqlite3.Connection:
        check_private(self._folder)
        check_private(self._folder / FILE)
        connection = _opened(self._folder)
        if not _has_tables(connection):
            raise KeyRingUnusable(
                f"{self._folder / FILE} is not a keyring. Create one with `penstock keys init`"
            )
        self._process = os.getpid()
        self._changes = -1
        return connection

    def _refresh(self) -> None:
        """Drop cached keys if another process has changed the ring."""
        version, master_id, changes, secret = self._connection.execute(
            "select * from ring"
        ).fetchone()
        if changes == self._changes:
            return
        if version != VERSION:
            raise KeyRingUnusable(
                f"{self._folder} has version {version}, but only {VERSION} is supported"
            )
        self._cached.clear()
        if self._master is None or self._master.key_id != master_id:
            self._master = self._fitting(master_id)
        self._secret = _unwrap(self._master, secret, _SECRET, self._folder)
        self._digest_key = self._derived("subject")
        self._changes = changes

    def _fitting(self, master_id: bytes) -> MasterKey:
        there = self._masters.read()
        for key in there:
            if key.key_id == master_id:
                return key
        names = " and ".join(key.key_id.hex() for key in there)
        raise KeyRingUnusable(
            f"the keys of {self._folder} are wrapped by master key {master_id.hex()}, "
            f"but the given master key is {names}"
        )

    def _promote_next(self) -> str:
        """Finish a rotation: if the keys are wrapped by the next master key, make it the present
        one.

        Returns the step that the operator still has to do (may be empty).
        """
        there = self._masters.read()
        if there[-1].key_id == self._present().key_id != there[0].key_id:
            return self._masters.promote()
        return ""

    def _present(self) -> MasterKey:
        if self._master is None:
            raise KeyRingUnusable(f"{self._folder} has not been opened")
        return self._master

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a transaction, after refreshing the cache inside it."""
        with _transaction(self._connection):
            self._refresh()
            yield

    def _changed(self, rows: int) -> bool:
        if rows:
            self._connection.execute("update ring set changes = changes + 1")
        return rows > 0

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self._secret, b"penstock\0" + purpose.encode(), "sha256")

    def _digest(self, subject: str) -> bytes:
        encoded = subject.encode()
        if len(encoded) > SUBJECT_BYTES_MAX:
            raise SubjectTooLong(
                f"a subject's id has {len(encoded)} bytes; the limit is {SUBJECT_BYTES_MAX}"
            )
        return hmac.digest(self._digest_key, encoded, "sha256")[:_DIGEST_BYTES]

    # Keys

    def _found(self, subjects: Sequence[str]) -> dict[str, SubjectKey | None]:
        """Return the keys of those subjects that have a row; None for a shredded subject."""
        found: dict[str, SubjectKey | None] = {}
        asked: dict[bytes, str] = {}
        for subject in dict.fromkeys(subjects):
            key = self._cached.get(subject)
            if key is None:
                asked[self._digest(subject)] = subject
            else:
                found[subject] = key
        for digest, key_id, wrapped in self._rows(list(asked)):
            subject = asked[digest]
            found[subject] = self._unwrapped(subject, digest, key_id, wrapped)
        return found

    def _rows(self, digests: list[bytes]) -> Iterator[_Row]:
        for part in _parts(digests):
            placeholders = ", ".join("?" * len(part))
            yield from self._connection.execute(
                f"select digest, key_id, wrapped from keys where digest in ({placeholders})", part
            )

    def _unwrapped(
        self, subject: str, digest: bytes, key_id: bytes | None, wrapped: bytes | None
    ) -> SubjectKey | None:
        if key_id is None or wrapped is None:
            return None
        raw = _unwrap(self._present(), wrapped, key_id + digest, self._folder)
        return self._remember(subject, SubjectKey(key_id, subject.encode(), AESGCM(raw)))

    def _remember(self, subject: str, key: SubjectKey) -> SubjectKey:
        """Cache a key; if the cache is full, drop the oldest tenth."""
        if len(self._cached) >= self._cached_max:
            for oldest in list(islice(self._cached, max(1, self._cached_max // 10))):
                del self._cached[oldest]
        self._cached[subject] = key
        return key

    def _made(self, subjects: Sequence[str]) -> dict[str, SubjectKey | None]:
        """Create durable keys; if another process has just created one, use that."""
        now_ms = self._clock.now_ms()
        with self._transaction():
            rows = []
            for subject in subjects:
                digest = self._digest(subject)
                key_id = self._randomness.bits(8 * KEY_ID_BYTES).to_bytes(KEY_ID_BYTES, "little")
                raw = AESGCM.generate_key(8 * KEY_BYTES)
                wrapped = _wrap(self._present(), raw, key_id + digest, self._randomness)
                rows.append((digest, key_id, subject, wrapped, now_ms))
            self._connection.executemany(
                "insert into keys values (?, ?, ?, ?, ?, null)"
                " on conflict (digest) do nothing", rows,
            )  # fmt: skip
        return self._found(subjects)

    def _wrap_again(self, new: MasterKey) -> int:
        """Wrap every key with a new master key, in the order of digests; return their number."""
        count, last = 0, b""
        while True:
            rows = self._connection.execute(
                "select digest, key_id, wrapped from keys where digest > ?"
                " order by digest limit ?", (last, _ROWS),
            ).fetchall()  # fmt: skip
            if not rows:
                return count
            last = rows[-1][0]
            again = []
            for digest, key_id, wrapped in rows:
                if wrapped is not None:
                    raw = _unwrap(self._present(), wrapped, key_id + digest, self._folder)
                    again.append((_wrap(new, raw, key_id + digest, self._randomness), digest))
            self._connection.executemany("update keys set wrapped = ? where digest = ?", again)
            count += len(again)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run an exclusive transaction; roll it back after an error."""
    connection.execute("begin immediate")
    try:
        yield
        connection.execute("commit")
    finally:
        if connection.in_transaction:
            connection.execute("rollback")


@contextmanager
def _told_of(folder: Path) -> Iterator[None]:
    """Convert errors of SQLite to errors of the keyring."""
    try:
        yield
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise KeyRingBusy(
                f"another process has locked {folder / FILE} for {BUSY_SECONDS:.0f} seconds"
            ) from error
        raise KeyRingUnusable(f"{folder / FILE}: {error}") from error


def _opened(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{(folder / FILE).absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    for pragma in (
        "journal_mode = delete",
        "synchronous = extra",
        "secure_delete = on",
        "temp_store = memory",
        f"cache_size = -{_PAGES_KIB}",
    ):
        connection.execute(f"pragma {pragma}")
    connection.execute("select 1 from sqlite_master").fetchall()
    return connection


def _has_tables(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("select 1 from sqlite_master where name = 'ring'").fetchall())


def _parts(values: list[bytes]) -> Iterator[list[bytes]]:
    for first in range(0, len(values), _ROWS):
        yield values[first : first + _ROWS]


def _wrap(master: MasterKey, key: bytes, whose: bytes, randomness: Randomness) -> bytes:
    nonce = randomness.bits(8 * _NONCE_BYTES).to_bytes(_NONCE_BYTES, "little")
    return nonce + master.cipher.encrypt(nonce, key, whose)


def _unwrap(master: MasterKey, wrapped: bytes, whose: bytes, folder: Path) -> bytes:
    try:
        return master.cipher.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], whose)
    except InvalidTag:
        raise KeyRingUnusable(
            f"{folder / FILE} is damaged: the master key cannot unwrap a key"
        ) from None


class KeyPlace(Struct, frozen=True, kw_only=True):
    """Location of a keyring and of its master key; neither location is secret.

    Attributes:
        ring: directory of the keyring.
        master: path of the master key's file, or `env:NAME`; None is the file `master.key` in the
            directory.
    """

    ring: Path
    master: str | None = None

    @property
    def master_place(self) -> str:
        return self.master or str(self.ring / MASTER_KEY_FILE)


@lru_cache(maxsize=_RINGS_MAX)
def ring_at(place: KeyPlace) -> FileKeyRing:
    """Return the keyring at a location; it is opened once per process.

    Raises:
        KeyRingUnusable: the keyring is missing, other users may read it, or the master key is not
            the one that wraps its keys.
    """
    return FileKeyRing(place.ring, master_keys(place.master_place))
