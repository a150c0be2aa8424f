"""Locations of files: a directory, or a prefix of an object store, which a URL names.

A new file is written to a temporary file first. `publish` makes it visible as a whole: a directory
renames it after a sync, an object store receives it in one upload.

Paths are relative to the location. Names that begin with a dot are not listed.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from penstock.base.errors import InvalidSetting
from penstock.base.files import MACHINE_FILES, make_directories, sync_directory
from penstock.base.urls import without_credentials, without_credentials_in
from penstock.objects import StoreRefused, StoreUnavailable
from penstock.objects.opening import REMOTE_SCHEMES, REQUEST_TIMEOUT_MS, remote_client

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

PARTIAL: Final = ".partial"
"""Directory of unfinished files."""
REMOTE_BUFFER_BYTES: Final = 1 << 20
LIST_PAGE_OBJECTS: Final = 1000


class FileEntry(NamedTuple):
    """File of a location."""

    path: str
    size_bytes: int


class Location(Protocol):
    """Files of a directory or of an object store.

    Every method may raise `StoreUnavailable`, and `StoreRefused` if permissions are missing.
    """

    shown: str
    """Name in messages."""

    def entries(self) -> Iterator[FileEntry]:
        """Yield all files, in any order."""
        ...

    def open(self, entry: FileEntry) -> pa.NativeFile:
        """Open a file for random access."""
        ...

    def create(self, name: str) -> Path:
        """Return the path of a new temporary file. `name` begins with the connector's name."""
        ...

    def publish(self, written: Path, path: str) -> None:
        """Store a temporary file under `path`, durably and as a whole."""
        ...

    def remove(self, path: str) -> None: ...

    def prepare(self, name: str) -> None:
        """Create a directory for `create`; remove files whose names begin with `name`, which a
        crash has left."""
        ...

    def problems(self, *, writing: bool) -> list[str]:
        """Return what prevents reading or writing, without changing anything."""
        ...


def location(url: str, options: tuple[str, ...] = ()) -> Location:
    """Return the location of a path, or of a URL (`file`, `s3`, `gs`, `az`).

    Args:
        options: options of the object store as `name=value`, such as `aws_endpoint`.

    Raises:
        InvalidSetting: the URL or an option is invalid.
    """
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme in ("", "file"):
        path = unquote(urlsplit(url).path) if scheme else url
        return Directory(Path(path).absolute())
    if scheme not in REMOTE_SCHEMES:
        known = ", ".join(("file", *REMOTE_SCHEMES))
        raise InvalidSetting(
            "url", without_credentials(url), f"must be a path, or begin with one of {known}"
        )
    pairs = [option.partition("=") for option in options]
    if not all(equals for _, equals, _ in pairs):
        raise InvalidSetting("options", "…", "each option must have the form name=value")
    given = {name.strip(): value.strip() for name, _, value in pairs}
    return Bucket(remote_client(url, given, REQUEST_TIMEOUT_MS), without_credentials(url))


def matcher(pattern: str) -> re.Pattern[str]:
    """Return the pattern of paths: `*` and `?` match within a name, `**/` any directories."""
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts), re.DOTALL)


class Directory:
    """Location in a directory of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shown = str(root)

    def entries(self) -> Iterator[FileEntry]:
        with self._errors("list"):
            for directory, below, names in os.walk(self.root, onerror=_raise):
                below[:] = [name for name in below if not name.startswith(".")]
                for name in names:
                    path = os.path.join(directory, name)
                    with suppress(FileNotFoundError):
                        if not name.startswith("."):
                            size = os.stat(path).st_size
                            yield FileEntry(os.path.relpath(path, self.root), size)

    def open(self, entry: FileEntry) -> pa.NativeFile:
        with self._errors(f"read {entry.path} in"):
            return pa.OSFile(str(self.root / entry.path), "rb")

    def create(self, name: str) -> Path:
        return self.root / PARTIAL / name

    def publish(self, written: Path, path: str) -> None:
        target = self.root / path
        with self._errors(f"write {path} to"):
            file = MACHINE_FILES.open_file(written)
            try:
                MACHINE_FILES.sync_file(file)
            finally:
                MACHINE_FILES.close(file)
            make_directories(MACHINE_FILES, str(target.parent))
            MACHINE_FILES.rename(written, target)
            sync_directory(MACHINE_FILES, target.parent)

    def remove(self, path: str) -> None:
        with self._errors(f"remove {path} from"), suppress(FileNotFoundError):
            MACHINE_FILES.remove(self.root / path)

    def prepare(self, name: str) -> None:
        with self._errors("write to"):
            make_directories(MACHINE_FILES, str(self.root / PARTIAL))
            for path in (self.root / PARTIAL).glob(f"{name}*"):
                path.unlink(missing_ok=True)

    def problems(self, *, writing: bool) -> list[str]:
        found = self.root
        while writing and not found.exists() and found != found.parent:
            found = found.parent
        if not found.is_dir():
            reason = "there is no directory" if not found.exists() else "is not a directory:"
            return [f"url: {reason} {found}; create it, or correct the path"]
        allowed = os.R_OK | os.X_OK | (os.W_OK if writing else 0)
        if not os.access(found, allowed):
            words = "write to" if writing else "read"
            return [f"url: this user may not {words} {found}; change its permissions"]
        return []

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise StoreRefused(f"cannot {doing} {self.shown}: {error.strerror}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreUnavailable(f"cannot {doing} {self.shown}: {reason}") from error


def _raise(error: OSError) -> None:
    raise error


class Bucket:
    """Location under a prefix of an object store."""

    def __init__(self, client: Client, shown: str) -> None:
        self._client = client
        self.shown = shown

    def entries(self) -> Iterator[FileEntry]:
        import obstore

        with self._errors("list"):
            for page in obstore.list(self._client, chunk_size=LIST_PAGE_OBJECTS):
                for found in page:
                    if "/." not in f"/{found['path']}":
                        yield FileEntry(found["path"], found["size"])

    def open(self, entry: FileEntry) -> pa.NativeFile:
        raw = _RemoteFile(self, entry)
        return pa.PythonFile(io.BufferedReader(raw, REMOTE_BUFFER_BYTES), mode="r")

    def range(self, path: str, start: int, end: int) -> Any:
        """Return bytes of an object as a buffer."""
        import obstore

        with self._errors(f"read {path} in"):
            return obstore.get_range(self._client, path, start=start, end=end)

    def create(self, name: str) -> Path:
        handle, path = tempfile.mkstemp(prefix=f"penstock-{name}-")
        os.close(handle)
        return Path(path)

    def publish(self, written: Path, path: str) -> None:
        import obstore

        with self._errors(f"write {path} to"):
            obstore.put(self._client, path, written)
        written.unlink(missing_ok=True)

    def remove(self, path: str) -> None:
        import obstore

        with self._errors(f"remove {path} from"), suppress(FileNotFoundError):
            obstore.delete(self._client, path)

    def prepare(self, name: str) -> None:
        for path in Path(tempfile.gettempdir()).glob(f"penstock-{name}*"):
            path.unlink(missing_ok=True)

    def problems(self, *, writing: bool) -> list[str]:
        try:
            next(self.entries(), None)
        except (StoreUnavailable, StoreRefused) as error:
            return [f"url: {error}; check the URL, the options and the network"]
        return []

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (BaseError, OSError) as error:
            reason = without_credentials_in(str(error).partition("\n")[0])
            refused = isinstance(error, (PermissionDeniedError, UnauthenticatedError))
            kind = StoreRefused if refused else StoreUnavailable
            raise kind(f"cannot {doing} {self.shown}: {reason}") from error


class _RemoteFile(io.RawIOBase):
    """Object as a file that is read by ranges."""

    def __init__(self, bucket: Bucket, entry: FileEntry) -> None:
        super().__init__()
        self._bucket = bucket
        self._entry = entry
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._entry.size_bytes}
        self._at = base[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._entry.size_bytes)
        if end <= self._at:
            return 0
        found = memoryview(self._bucket.range(self._entry.path, self._at, end))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)
