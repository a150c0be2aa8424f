"""The safe write as a table: which file call follows which, by how the call ended.

`safe_write.SafeWrite` walks it; what it holds is said there. A state is a file call, an event the
way it ended. `SKIP` is entered without a call, where a state has nothing to do: nothing left to
write, or no sync wanted.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

NO_HANDLE: Final = -1


class Action(Enum):
    """A file call; in brackets what it takes of a step, and what `done` is given."""

    OPEN_LEVEL = auto()  # open a directory, no symlink (handle, name) -> handle
    MAKE_LEVEL = auto()  # make a directory (handle, name)
    MAKE_BATCH = auto()  # the same
    OPEN_BATCH = auto()  # as OPEN_LEVEL
    LOOK = auto()  # size of a regular file, following no symlink (handle, name) -> bytes
    OPEN_DATA = auto()  # open a file for reading (handle, name) -> handle
    RECALL = auto()  # the checksum that was recorded with a file (handle) -> CRC32C
    READ = auto()  # read some of a file (handle, one buffer to fill) -> bytes read, 0 at its end
    SYNC_DATA = auto()  # sync a file (handle)
    CLOSE_DATA = auto()  # close (handle)
    CREATE = auto()  # create a file, exclusively (handle, name) -> handle
    WRITE = auto()  # write some of the buffers (handle, buffers) -> bytes written
    WRITE_BACK = auto()  # let the disk begin with what was written; only a hint (handle)
    RECORD = auto()  # record a checksum with a file (handle, crc32c)
    SYNC = auto()  # sync a file (handle)
    CLOSE = auto()  # close (handle)
    RENAME = auto()  # rename where the new name is free (handle, name, target)
    LINK = auto()  # give a second name where it is free (handle, name, target)
    REMOVE_LINKED = auto()  # remove a name (handle, name)
    REMOVE_LOSER = auto()  # the same
    SYNC_DIRECTORY = auto()  # sync a directory (handle)
    CLOSE_FAILED = auto()  # close (handle)
    REMOVE_FAILED = auto()  # remove a name (handle, name)
    CLOSE_STALE = auto()  # close (handle)
    CLOSE_DIRECTORY = auto()  # close (handle)
    END = auto()  # nothing more to do


class Event(Enum):
    """How a call ended; `SKIP`: the state had nothing to do."""

    DONE = auto()
    EXISTS = auto()
    MISSING = auto()
    UNSUPPORTED = auto()
    FAILED = auto()
    SKIP = auto()


class Step(NamedTuple):
    """One call for the shell to make."""

    action: Action
    handle: int = NO_HANDLE
    name: str = ""
    target: str = ""
    buffers: Sequence[memoryview] = ()
    crc32c: int = 0


_A, _E = Action, Event
# A failure that a row does not name gives the attempt up: it goes to CLOSE_FAILED.
TRANSITIONS: Final[Mapping[Action, Mapping[Event, Action]]] = {
    _A.OPEN_LEVEL: {
        _E.DONE: _A.OPEN_LEVEL,
        _E.SKIP: _A.MAKE_BATCH,
        _E.MISSING: _A.MAKE_LEVEL,
    },
    _A.MAKE_LEVEL: {
        _E.DONE: _A.OPEN_LEVEL,
        _E.EXISTS: _A.OPEN_LEVEL,
        _E.MISSING: _A.CLOSE_STALE,
    },
    _A.MAKE_BATCH: {
        _E.DONE: _A.OPEN_BATCH,
        _E.EXISTS: _A.OPEN_BATCH,
        _E.MISSING: _A.CLOSE_STALE,
    },
    _A.OPEN_BATCH: {_E.DONE: _A.LOOK, _E.MISSING: _A.CLOSE_STALE},
    _A.LOOK: {_E.DONE: _A.OPEN_DATA, _E.SKIP: _A.CREATE, _E.MISSING: _A.CREATE},
    _A.OPEN_DATA: {
        _E.DONE: _A.RECALL,
        _E.MISSING: _A.CREATE,
    },
    # Where no checksum was recorded, or none can be, the file is read.
    _A.RECALL: {_E.DONE: _A.SYNC_DATA, _E.FAILED: _A.READ},
    _A.READ: {_E.DONE: _A.READ, _E.SKIP: _A.SYNC_DATA},
    _A.SYNC_DATA: {_E.DONE: _A.CLOSE_DATA, _E.SKIP: _A.CLOSE_DATA},
    _A.CLOSE_DATA: {_E.DONE: _A.SYNC_DIRECTORY, _E.FAILED: _A.SYNC_DIRECTORY},
    _A.CREATE: {_E.DONE: _A.WRITE, _E.MISSING: _A.CLOSE_STALE},
    _A.WRITE: {_E.DONE: _A.WRITE_BACK, _E.SKIP: _A.RECORD},
    # A hint that fails says nothing of the bytes: the sync will.
    _A.WRITE_BACK: {_E.DONE: _A.WRITE, _E.SKIP: _A.WRITE, _E.FAILED: _A.WRITE},
    # Not every file system can; a retry reads the file then.
    _A.RECORD: {_E.DONE: _A.SYNC, _E.SKIP: _A.SYNC, _E.FAILED: _A.SYNC},
    _A.SYNC: {_E.DONE: _A.CLOSE, _E.SKIP: _A.CLOSE},
    _A.CLOSE: {_E.DONE: _A.RENAME},
    _A.RENAME: {
        _E.DONE: _A.SYNC_DIRECTORY,
        _E.EXISTS: _A.REMOVE_LOSER,
        _E.UNSUPPORTED: _A.LINK,
    },
    _A.LINK: {_E.DONE: _A.REMOVE_LINKED, _E.EXISTS: _A.REMOVE_LOSER},
    # A temporary name that cannot be removed is an orphan, the sweeper's work, and no failure.
    _A.REMOVE_LINKED: {
        _E.DONE: _A.SYNC_DIRECTORY,
        _E.MISSING: _A.SYNC_DIRECTORY,
        _E.FAILED: _A.SYNC_DIRECTORY,
    },
    _A.REMOVE_LOSER: {_E.DONE: _A.LOOK, _E.MISSING: _A.LOOK, _E.FAILED: _A.LOOK},
    _A.SYNC_DIRECTORY: {_E.DONE: _A.SYNC_DIRECTORY, _E.SKIP: _A.CLOSE_DIRECTORY},
    _A.CLOSE_FAILED: {
        _E.DONE: _A.REMOVE_FAILED,
        _E.SKIP: _A.REMOVE_FAILED,
        _E.FAILED: _A.REMOVE_FAILED,
    },
    _A.REMOVE_FAILED: {
        _E.DONE: _A.CLOSE_DIRECTORY,
        _E.SKIP: _A.CLOSE_DIRECTORY,
        _E.MISSING: _A.CLOSE_DIRECTORY,
        _E.FAILED: _A.CLOSE_DIRECTORY,
    },
    # A directory was removed under the write (by the sweeper): begin again from the root.
    _A.CLOSE_STALE: {
        _E.DONE: _A.CLOSE_STALE,
        _E.SKIP: _A.OPEN_LEVEL,
        _E.FAILED: _A.CLOSE_STALE,
    },
    _A.CLOSE_DIRECTORY: {
        _E.DONE: _A.CLOSE_DIRECTORY,
        _E.SKIP: _A.END,
        _E.FAILED: _A.CLOSE_DIRECTORY,
    },
    _A.END: {},
}

MISSING_ERRNOS: Final = frozenset({errno.ENOENT, errno.ESTALE})
UNSUPPORTED_ERRNOS: Final[Mapping[Action, frozenset[int]]] = {
    # EPERM: a container's filter that does not know the call.
    Action.RENAME: frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}),
    Action.LINK: frozenset(
        {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK}
    ),
}
WORDS: Final[Mapping[Action, str]] = {
    Action.SYNC_DATA: "sync",
    Action.OPEN_LEVEL: "open directory",
    Action.OPEN_BATCH: "open directory",
    Action.MAKE_LEVEL: "make directory",
    Action.MAKE_BATCH: "make directory",
}
CLOSES: Final = frozenset(
    {
        Action.CLOSE,
        Action.CLOSE_DATA,
        Action.CLOSE_FAILED,
        Action.CLOSE_STALE,
        Action.CLOSE_DIRECTORY,
    }
)
RETREAT: Final = frozenset({Action.CLOSE_FAILED, Action.REMOVE_FAILED, Action.CLOSE_DIRECTORY})
"""States in which an attempt that failed puts things in order."""
