"""Versions of the formats in a data directory, read without changing anything.

    control.sqlite, -wal     number of the last migration (SQLite's user_version)
    partitions.checkpoint    magic PCP1 or PCP2
    journal/*.journal        magic PJE1
    partition.metadata       version 0
    *.log                    Kafka's record batches, version 2
    *.snapshot, *.batches    versions 1 and 101

A broker may be using the directory. SQLite itself could not read the database then, because the
broker has locked it; its header is read from the file and from the write-ahead log instead.

Source: SQLite's file format, "The Database Header" and "The Write-Ahead Log".
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from typing import Final, Literal

from penstock.apps.doctor.storage import SQLITE_MAGIC
from penstock.apps.process.wiring import CONTROL
from penstock.base.errors import CorruptError, InvalidError
from penstock.control.migrations import missing
from penstock.records import header
from penstock.storage.files import checkpoint, journal
from penstock.storage.files.producers import BATCHES_VERSION, SNAPSHOT_VERSION
from penstock.storage.files.values import (
    CHECKPOINT_COPY_FILE,
    CHECKPOINT_FILE,
    JOURNAL_DIRECTORY,
    JOURNAL_SUFFIX,
    LOCK_FILE,
    LOG,
    METADATA_FILE,
    RECENT_BATCHES,
    decode_partition_metadata,
)
from penstock.storage.inspection.directories import PartitionFiles, find_roots, partitions_of

_PAGES_AT: Final = 28
_USER_VERSION_AT: Final = 60
_HEADER_BYTES: Final = 100
_WAL_MAGICS: Final = (0x377F0682, 0x377F0683)
_WAL_HEAD: Final = Struct(">II II 8s 8s")
_WAL_FRAME: Final = Struct(">II 8s 8s")
_BATCH_MAGIC_AT: Final = 16
_SNAPSHOT_VERSION_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Format that is used in a data directory or a database.

    Attributes:
        what: name of the format.
        where: path, or the database.
        version: version that was found, as text.
        change: what the first start of this version changes; empty if nothing.
        problem: why this version cannot read it; empty if it can.
    """

    what: str
    where: str
    version: str
    change: str = ""
    problem: str = ""


@dataclass(slots=True)
class Survey:
    """Formats of a data directory.

    Attributes:
        in_use: whether a process has a log of the directory open.
    """

    found: list[Found] = field(default_factory=list)
    in_use: bool = False


def survey(directory: Path) -> Survey:
    """Read the versions of all formats in a data directory.

    Raises:
        InvalidError: the directory does not exist, or is no data directory of Penstock.
        OSError: a file cannot be read.
    """
    if not directory.is_dir():
        raise InvalidError(f"the data directory {directory} does not exist")
    made = Survey()
    database = directory / CONTROL
    roots = [Path(root) for root in find_roots(directory)]
    if not roots and not database.exists():
        raise InvalidError(f"{directory} has no data of Penstock: neither {CONTROL} nor a log")
    if database.exists():
        made.found.append(sqlite_schema(database))
    for root in roots:
        made.in_use = made.in_use or _locked(root)
        made.found += _log_formats(root)
    return made


def schema(database: Literal["sqlite", "postgres"], where: str, version: int) -> Found:
    """Return the format of a database with the given number of its last migration; 0 if empty."""
    found = Found(what="control database", where=where, version=str(version))
    try:
        numbers = [number for number, _ in missing(database, version, where=where)]
    except InvalidError as error:
        return replace(found, problem=str(error))
    if not numbers:
        return found
    listed = ", ".join(map(str, numbers))
    change = f"runs the {database} migrations {listed}, to schema version {numbers[-1]}"
    return replace(found, change=change)


def sqlite_schema(path: Path) -> Found:
    """Read the schema version of a SQLite file."""
    head = _first(path, _HEADER_BYTES)
    if head and not head.startswith(SQLITE_MAGIC):
        problem = f"{path} is not a SQLite database"
        return Found(what="control database", where=str(path), version="?", problem=problem)
    newest = _newest_page(path) or head
    found = schema("sqlite", str(path), _number(newest, _USER_VERSION_AT))
    if found.version == "0" and _number(newest, _PAGES_AT) > 1:
        return replace(found, problem=f"{path} is a SQLite database of another program")
    return found


def _number(head: bytes, at: int) -> int:
    return int.from_bytes(head[at : at + 4], "big")


def _newest_page(path: Path) -> bytes:
    """Return the header of the first page in the write-ahead log, as of its last commit."""
    try:
        content = Path(f"{path}-wal").read_bytes()
    except FileNotFoundError:
        return b""
    if len(content) < _WAL_HEAD.size:
        return b""
    magic, _, page_bytes, _, salts, _ = _WAL_HEAD.unpack_from(content)
    if magic not in _WAL_MAGICS:
        return b""
    newest = pending = b""
    for at in range(_WAL_HEAD.size, len(content) - page_bytes, _WAL_FRAME.size + page_bytes):
        page, committed, frame_salts, _ = _WAL_FRAME.unpack_from(content, at)
        if frame_salts != salts:
            break
        if page == 1:
            begin = at + _WAL_FRAME.size
            pending = content[begin : begin + _HEADER_BYTES]
        newest = pending if committed else newest
    return newest


def _log_formats(root: Path) -> Iterator[Found]:
    for name in (CHECKPOINT_FILE, CHECKPOINT_COPY_FILE):
        if (root / name).exists():
            yield _checkpoint(root / name)
    files = sorted((root / JOURNAL_DIRECTORY).glob(f"*{JOURNAL_SUFFIX}"))
    yield from _worst("journal", [_journal(path) for path in files])
    partitions = [_partition(files) for files in partitions_of(str(root), lambda _: True)]
    yield from _worst("log", partitions)


def _worst(what: str, found: list[Found]) -> Iterator[Found]:
    """Yield the files with problems; if there are none, a line for all of them."""
    wrong = [item for item in found if item.problem]
    yield from wrong
    if found and not wrong:
        parent = str(Path(found[0].where).parent)
        yield Found(what=what, where=f"{parent} ({len(found)})", version=found[0].version)


def _checkpoint(path: Path) -> Found:
    magic = _first(path, len(checkpoint.MAGIC)) or checkpoint.MAGIC
    found = _magic("checkpoint", path, magic, *checkpoint.MAGICS)
    if found.problem or magic == checkpoint.MAGIC:
        return found
    return replace(found, change=f"rewrites it as {checkpoint.MAGIC.decode()}")


def _journal(path: Path) -> Found:
    magic = _first(path, len(journal.MAGIC))
    if not magic.strip(b"\0"):  # the file is allocated, but has no entry
        magic = journal.MAGIC
    return _magic("journal", path, magic, journal.MAGIC)


def _magic(what: str, path: Path, magic: bytes, *known: bytes) -> Found:
    version = magic.decode("latin-1")
    problem = _problem(path, version, *(item.decode() for item in known))
    return Found(what=what, where=str(path), version=version, problem=problem)


def _partition(files: PartitionFiles) -> Found:
    version = f"record batches {header.MAGIC}"
    problem = next(filter(None, _problems(files)), "")
    return Found(what="log", where=files.path, version=version, problem=problem)


def _problems(files: PartitionFiles) -> Iterator[str]:
    """Check the versions of a partition: its id, first and last segment, and its snapshots."""
    metadata = Path(files.path) / METADATA_FILE
    try:
        decode_partition_metadata(metadata.read_bytes())
    except FileNotFoundError:
        pass
    except CorruptError as error:
        yield f"{metadata}: {error}"
    for offset in {*files.segments[:1], *files.segments[-1:]}:
        path = Path(files.file(offset, LOG))
        head = _first(path, _BATCH_MAGIC_AT + 1)
        if len(head) > _BATCH_MAGIC_AT and head.strip(b"\0"):
            yield _problem(path, head[-1], header.MAGIC)
    for offset, suffix in files.snapshots:
        path = Path(files.file(offset, suffix))
        known = BATCHES_VERSION if suffix == RECENT_BATCHES else SNAPSHOT_VERSION
        head = _first(path, _SNAPSHOT_VERSION_BYTES)
        if len(head) == _SNAPSHOT_VERSION_BYTES:
            yield _problem(path, int.from_bytes(head, "big", signed=True), known)


def _problem(path: Path, version: object, *known: object) -> str:
    if version in known:
        return ""
    listed = ", ".join(map(str, known))
    return f"{path} has format version {version!r}; this version of Penstock reads {listed}"


def _first(path: Path, size: int) -> bytes:
    """Return the first bytes of a file; none if a broker has removed it."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except FileNotFoundError:
        return b""


def _locked(root: Path) -> bool:
    """Return whether a process holds the lock of a log's directory."""
    try:
        descriptor = os.open(root / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
