"""Socket file of an agent: ownership, replacement and removal.

A file that a killed agent left behind looks like one that is in use. So a starting agent connects
to it. If the connection succeeds, another agent uses the file, and the start is rejected. If it is
refused, the file may be deleted. Files that are not sockets are never changed.

Two agents that start at the same time would both find the same unused file, and the slower one
would delete the file of the faster. So the decision is made under a lock on the directory, which
needs no file of its own. The lock is held for a few milliseconds, from the check of the path until
the new socket listens. A socket accepts no connections before it listens, and its permissions are
set by then.

A stopping agent removes the file only if it is still its own, by device and inode. While the
listener is open, no other file can have this inode.

Source: `host-ipc.txt`, the socket file's life; `unix(7)`, `flock(2)`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
from typing import ClassVar, Final, NamedTuple

from penstock.base.errors import InvalidError, RetriableError, UnavailableError
from penstock.base.settings import whole_number

PATH_BYTES_MAX: Final = 107
"""Maximum bytes of a path in `sockaddr_un`, without the zero at its end."""

BACKLOG: Final = 1024

_DEAD: Final = (errno.ECONNREFUSED, errno.ENOENT)
_ALIVE: Final = (0, errno.EAGAIN, errno.EINPROGRESS)
"""Error numbers of a connection that was accepted, or waits in the listener's queue."""


class SocketPathUnusable(InvalidError):
    """The path cannot be used for a socket file."""

    code: ClassVar[str] = "invalid_config"


class SocketAlive(UnavailableError):
    """Another agent uses this socket file."""

    code: ClassVar[str] = "invalid_config"


class SocketDirectoryBusy(RetriableError):
    """Another agent holds the lock of the socket's directory at this moment."""


class _Identity(NamedTuple):
    device: int
    inode: int


class SocketFile:
    """Listening socket and its file; created by `claim`."""

    def __init__(self, path: str, listener: socket.socket, identity: _Identity) -> None:
        self.path = path
        self.listener = listener
        self._identity = identity
        self._removed = False

    @classmethod
    def claim(
        cls,
        path: str,
        *,
        mode: int,
        directory_mode: int,
        takeover: bool = False,
        group: str = "",
    ) -> SocketFile:
        """Listen on `path` with a socket that does not block.

        The directory is created if only its last part is missing. With `takeover`, a file that
        another agent uses is replaced; that agent keeps its connections. `group` is a name or a
        number.

        Raises:
            SocketPathUnusable: the path is too long, is not a socket, or its directory cannot be
                used.
            SocketAlive: another agent uses the file, or the check failed.
            SocketDirectoryBusy: another agent holds the directory's lock; retry in a moment.
        """
        check_path(path)
        parent, name = os.path.split(path)
        directory = _open_directory(parent or ".", directory_mode)
        try:
            _lock(directory, path)
            if _look(path, name, directory, takeover=takeover):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
            return cls._listen(path, name, directory, mode, group)
        finally:
            os.close(directory)

    @classmethod
    def _listen(cls, path: str, name: str, directory: int, mode: int, group: str) -> SocketFile:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            try:
                listener.bind(path)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise SocketAlive(
                        f"socket {path}: another process has just created it"
                    ) from None
                raise SocketPathUnusable(f"socket {path}: {error.strerror}") from None
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if group:
                _give(path, name, directory, group)
            os.chmod(name, mode, dir_fd=directory)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        return cls(path, listener, _Identity(found.st_dev, found.st_ino))

    @property
    def ours(self) -> bool:
        """Whether the path still refers to this socket."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return self._identity == (found.st_dev, found.st_ino)

    def remove(self) -> bool:
        """Remove the file if it still refers to this socket.

        Returns:
            False if the directory's lock is held, and nothing was done; retry in a moment.
        """
        if self._removed:
            return True
        parent, name = os.path.split(self.path)
        try:
            directory = os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            try:
                _lock(directory, self.path)
            except SocketDirectoryBusy:
                return False
            if self.ours:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)
            self._removed = True
            return True
        finally:
            os.close(directory)

    def close(self) -> None:
        """Stop listening, after `remove`; connections that wait to be accepted are closed."""
        self.listener.close()


def _give(path: str, name: str, directory: int, group: str) -> None:
    """Change the file's group, before the socket listens."""
    try:
        number = whole_number(group)
        if number is None:
            number = grp.getgrnam(group).gr_gid
        os.chown(name, -1, number, dir_fd=directory, follow_symlinks=False)
    except KeyError:
        raise SocketPathUnusable(
            f"socket {path}: group {group!r} does not exist on this host"
        ) from None
    except (OSError, OverflowError) as error:
        raise SocketPathUnusable(f"socket {path}: group {group}: {error}") from None


def check_path(path: str) -> None:
    """Check that a path fits a socket address.

    Raises:
        SocketPathUnusable: the path is empty, contains a zero byte, or is too long.
    """
    size = len(os.fsencode(path))
    if not path or path.endswith("/") or "\0" in path:
        raise SocketPathUnusable(f"socket {path!r}: must name a file")
    if size > PATH_BYTES_MAX:
        raise SocketPathUnusable(
            f"socket {path}: the path has {size} bytes, but at most {PATH_BYTES_MAX} are allowed"
        )


def _open_directory(parent: str, mode: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        try:
            return os.open(parent, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, mode)
                os.chmod(parent, mode)  # whatever the umask
            return os.open(parent, flags)
    except OSError as error:
        raise SocketPathUnusable(f"socket directory {parent}: {error.strerror}") from None


def _lock(directory: int, path: str) -> None:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SocketDirectoryBusy(
            f"socket {path}: another agent is starting or stopping in its directory"
        ) from None


def _look(path: str, name: str, directory: int, *, takeover: bool) -> bool:
    """Return whether there is a socket file at `path` that may be deleted; False if there is none.

    It raises an error if the file is not a socket, or if another agent uses it. With `takeover`, a
    file in use may be deleted too.
    """
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SocketPathUnusable(f"socket {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketPathUnusable(
            f"socket {path}: the path is {_kind(found.st_mode)}; it is not deleted"
        )
    failure = probe(path)
    if failure in _DEAD or (takeover and failure in _ALIVE):
        return True
    if failure in _ALIVE:
        raise SocketAlive(f"socket {path}: another agent uses it; stop that agent first")
    raise SocketAlive(
        f"socket {path}: cannot check whether another agent uses it: {os.strerror(failure)}"
    )


def probe(path: str) -> int:
    """Connect to a socket file and disconnect; return the error number, 0 if an agent listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        return client.connect_ex(path)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link"}
    return kinds.get(stat.S_IFMT(mode), "a file of another type")
