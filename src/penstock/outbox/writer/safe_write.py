"""The safe write as a machine: which file call comes next, and what its failure means.

    walk to the hour's directory, making what is missing
    -> make the batch directory -> look for data.bin, unless the directory is new, and compare
    -> create data.bin.tmp.<token>.<attempt>, exclusively -> write, 1,024 buffers at a time,
       taking the checksum of each slice just before it, while the disk begins with the ones before
    -> record the checksum -> sync -> close
    -> rename to data.bin, never over one that is there
    -> sync the batch's directory and every one above it whose entry may not be durable -> done

`SafeWrite` has no I/O: `step` is the next call, and the shell answers with `done` or `failed`.
`TRANSITIONS` is the whole protocol. What it holds:

- **Nothing half visible.** A reader looks for `data.bin` only, and that appears by one rename of a
  file that is complete, closed (a network file system reports failed writes at close) and, when
  durable, synced.
- **Never over another file.** With a probe before a plain rename, two writers of one batch can both
  find nothing, and the second would replace what the first has been acknowledged for. So the
  rename is `renameat2(RENAME_NOREPLACE)`; where a file system lacks it (NFS), `link` and removal
  of the temporary name: a link fails when the name is taken. One that has neither is refused.
- **Idempotent by content.** A `data.bin` with the payload's size and checksum is success, anything
  else a conflict. A durable write records its checksum with the file before it syncs (an extended
  attribute, which is renamed and linked with it), so a retry reads it back in one call; a file
  without one, of an older writer, of a write that was not durable (a power loss may have torn it)
  or on a file system that has no such attributes, is read once. What is found is synced again all
  the same, with its directories, when durable: its writer may have died, or may just be, between
  its rename and its syncs.
- **Directories too.** A crash loses a file whose directory entry was not synced, at any level. A
  process cannot know that a directory it merely found was synced by whoever made it (who may have
  been killed in between), so the first durable write to an hour syncs all levels from the root, and
  the later ones of the same process only the batch's directory and the hour's.
- **A failed sync ends the attempt.** The kernel may have dropped the pages and would report a
  second sync of the same file as success (the "fsyncgate" of PostgreSQL), so the file is given up
  and a retry writes a new one. Directories have no second copy to write; there a retry opens and
  syncs them anew, which is sound where it can happen at all: a file system that fails to write its
  metadata stops taking writes.

Source: `filesystem-outbox.txt`, "The safe-write protocol, in detail"; renameat2(2), fsync(2).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.errors import PenstockError
from penstock.outbox import limits
from penstock.outbox.errors import (
    BatchConflict,
    OutboxBug,
    PathEscapes,
    UnfitFileSystem,
    WriteFailed,
    storage_error,
)
from penstock.outbox.layout import BATCH_PREFIX, DATA_FILE
from penstock.outbox.writer.payload import checksum
from penstock.outbox.writer.table import (
    CLOSES,
    MISSING_ERRNOS,
    NO_HANDLE,
    RETREAT,
    TRANSITIONS,
    UNSUPPORTED_ERRNOS,
    WORDS,
    Action,
    Event,
    Step,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """One attempt at one batch.

    `hour_directory` and `batch_name` come from `layout`, the buffers from `as_buffers`; their
    memory must stay as it is until the attempt has ended.
    """

    hour_directory: str
    batch_name: str
    temporary_name: str
    buffers: Sequence[memoryview]
    size_bytes: int
    durable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that is there whole. `existing`: another attempt wrote it, this one found it."""

    size_bytes: int
    crc32c: int
    existing: bool


class SafeWrite:
    """One attempt to write one batch; `step` is the next call, `outcome` what it came to.

    `root` is the root's handle. `hour` is a handle of the hour's directory that the shell has kept,
    or `NO_HANDLE`; `hour_settled` says that all directories above it are durable. The machine
    closes what it opens, but for the hour's directory: `opened_hour` is the shell's, to keep or to
    close, and after `hour_is_stale` the one that it passed in must not be used again.
    """

    def __init__(
        self,
        plan: WritePlan,
        *,
        root: int,
        hour: int = NO_HANDLE,
        hour_settled: bool = False,
    ) -> None:
        self._plan = plan
        self._root = root
        self._names = (".", *plan.hour_directory.split("/"))
        self._levels: list[int] = []  # handles of the root and the directories below it
        self._hour = hour if hour_settled or not plan.durable else NO_HANDLE
        self._batch = NO_HANDLE
        self._file = NO_HANDLE
        self._temporary = False  # our temporary name is there
        self._fresh = False  # nobody can have written the batch before us
        self._unsynced: list[int] | None = None
        self._next_buffer = 0
        self._next_byte = 0  # within that buffer
        self._slice: list[memoryview] = []  # what is left of the slice under way
        self._slice_bytes = 0
        self._crc = 0  # of what was written, or of the payload that was compared
        self._found_bytes = 0  # the size of what is there
        self._read_bytes = self._found_crc = 0  # of it, as far as it was read
        self._buffer: memoryview | None = None  # what is there is read into it
        self._resting_bytes = 0  # written, and the disk was not asked to begin with them
        self._missing = 0
        self.opened_hour = NO_HANDLE
        self.hour_settled = hour_settled
        self.hour_is_stale = False
        self.existing = False
        self.error: PenstockError | None = None
        self._action = Action.OPEN_LEVEL
        self._enter(Action.OPEN_LEVEL)

    @property
    def path(self) -> str:
        """The payload's path, relative to the root."""
        return f"{self._plan.hour_directory}/{self._plan.batch_name}/{DATA_FILE}"

    @property
    def step(self) -> Step | None:
        """The call to make; None at the end."""
        if self._action is Action.END:
            return None
        return self._steps[self._action](self)

    def outcome(self) -> Written:
        """What the attempt came to.

        Raises:
            PenstockError: it failed; nothing of it is visible, unless only a directory's sync
                failed, after which the payload is there and may not survive a crash.
            OutboxBug: it has not ended.
        """
        if self._action is not Action.END:
            raise OutboxBug(f"safe write of {self.path}: asked for its outcome in {self._action}")
        if self.error is not None:
            raise self.error
        return Written(size_bytes=self._plan.size_bytes, crc32c=self._crc, existing=self.existing)

    def done(self, value: int = 0) -> None:
        """The step's call returned `value`; see `Action` for its meaning."""
        action = self._action
        effect = self._effects.get(action)
        if effect is not None:
            effect(self, value)
        following = TRANSITIONS[action][Event.DONE]
        self._enter(following if self.error is None or action in RETREAT else Action.CLOSE_FAILED)

    def failed(self, number: int) -> None:
        """The step's call failed with errno `number`."""
        action = self._action
        if action in CLOSES:
            # Linux gives the descriptor back whatever close says.
            self._forget_handle(action)
        event = self._event(action, number)
        following = TRANSITIONS[action].get(event)
        if following is None:
            self._give_up(action, number)
            following = Action.CLOSE_FAILED
        elif event is Event.EXISTS:
            self._fresh = False
            self._temporary = False
        elif following is Action.CLOSE_STALE:
            self._begin_again()
        self._enter(following)

    def _event(self, action: Action, number: int) -> Event:
        if number in UNSUPPORTED_ERRNOS.get(action, ()):
            return Event.UNSUPPORTED
        row = TRANSITIONS[action]
        if number == errno.EEXIST and Event.EXISTS in row:
            return Event.EXISTS
        if number in MISSING_ERRNOS and Event.MISSING in row:
            self._missing += 1
            if self._missing <= limits.MISSING_MAX:
                return Event.MISSING
        return Event.FAILED

    def _give_up(self, action: Action, number: int) -> None:
        word = WORDS.get(action, action.name.lower().replace("_", " "))
        if action is Action.SYNC_DIRECTORY and self._unsynced and self._unsynced[-1] == self._hour:
            self.hour_is_stale = True  # a handle whose sync failed is never synced again
        if action is Action.LINK and number in UNSUPPORTED_ERRNOS[Action.LINK]:
            self.error = UnfitFileSystem(
                f"{self.path}: the file system can neither rename without replacing nor link"
                f" ({errno.errorcode.get(number, number)})"
            )
        elif number == errno.ELOOP:
            self.error = PathEscapes(self.path, f"{word}: leads through a symlink")
        else:
            self.error = storage_error(number, word, self.path)

    def _enter(self, action: Action) -> None:
        while (needless := self._needless.get(action)) is not None and needless(self):
            action = TRANSITIONS[action][Event.SKIP]
        if action is Action.SYNC_DIRECTORY and self._unsynced is None:
            self._unsynced = [*self._levels, self._hour, self._batch]
        elif action is Action.WRITE and not self._slice:
            self._take_slice()
        elif action is Action.READ and self._buffer is None:
            self._buffer = memoryview(bytearray(limits.SLICE_BYTES))
            self._read_bytes = self._found_crc = 0
        self._action = action

    def _begin_again(self) -> None:
        if self.opened_hour == NO_HANDLE:
            self.hour_is_stale = True
        else:
            self._levels.append(self.opened_hour)
            self.opened_hour = NO_HANDLE
        self._hour = NO_HANDLE
        self.hour_settled = False

    def _forget_handle(self, action: Action) -> None:
        if action not in {Action.CLOSE_DIRECTORY, Action.CLOSE_STALE}:
            self._file = NO_HANDLE
        elif self._batch != NO_HANDLE:
            self._batch = NO_HANDLE
        else:
            self._levels.pop()

    # What a call that was made changes.

    def _level_opened(self, handle: int) -> None:
        if len(self._levels) + 1 < len(self._names):
            self._levels.append(handle)
        else:
            self._hour = self.opened_hour = handle

    def _batch_made(self, _: int) -> None:
        self._fresh = True

    def _batch_opened(self, handle: int) -> None:
        self._batch = handle

    def _found(self, size_bytes: int) -> None:
        self._found_bytes = size_bytes

    def _data_opened(self, handle: int) -> None:
        self._file = handle

    def _recalled(self, crc: int) -> None:
        self._compare(self._found_bytes, crc)

    def _read_on(self, count: int) -> None:
        if self._buffer is not None:
            self._found_crc = checksum([self._buffer[:count]], self._found_crc)
        self._read_bytes += count
        if not count or self._read_bytes >= self._found_bytes:
            self._compare(self._read_bytes, self._found_crc)

    def _compare(self, size_bytes: int, crc: int) -> None:
        """Whether what is there is the payload."""
        self._buffer = None
        self._crc = checksum(self._plan.buffers)
        self.existing = (size_bytes, crc) == (self._plan.size_bytes, self._crc)
        if not self.existing:
            self.error = BatchConflict(
                self._plan.batch_name.removeprefix(BATCH_PREFIX),
                self.path,
                found=(size_bytes, crc),
                expected=(self._plan.size_bytes, self._crc),
            )

    def _created(self, handle: int) -> None:
        self._file = handle
        self._temporary = True
        self._next_buffer = self._next_byte = self._crc = 0
        self._slice = []

    def _closed(self, _: int) -> None:
        self._forget_handle(self._action)

    def _renamed(self, _: int) -> None:
        self._temporary = False

    def _directory_synced(self, _: int) -> None:
        if self._unsynced:
            self._unsynced.pop()
        self.hour_settled = not self._unsynced

    def _wrote(self, count: int) -> None:
        if count <= 0:
            self.error = WriteFailed(f"write {self.path}: the call took none of its bytes")
        self._slice_bytes -= count
        self._resting_bytes += count
        if not self._slice_bytes:
            self._slice = []
        while count and self._slice:  # a short write
            first = self._slice[0]
            if count < first.nbytes:
                self._slice[0] = first[count:]
                return
            count -= first.nbytes
            del self._slice[0]

    def _write_back_begun(self, _: int) -> None:
        self._resting_bytes = 0

    def _take_slice(self) -> None:
        """Gather the next buffers, or parts of large ones, and take their checksum."""
        buffers, room = self._plan.buffers, limits.SLICE_BYTES
        while (
            room
            and self._next_buffer < len(buffers)
            and len(self._slice) < limits.GATHER_BUFFERS_MAX
        ):
            view = buffers[self._next_buffer]
            part = view[self._next_byte : self._next_byte + room]
            room -= part.nbytes
            self._slice.append(part)
            self._next_byte += part.nbytes
            if self._next_byte == view.nbytes:
                self._next_buffer += 1
                self._next_byte = 0
        self._slice_bytes = limits.SLICE_BYTES - room
        self._crc = checksum(self._slice, self._crc)

    def _nothing_to_write(self) -> bool:
        return not self._slice and self._next_buffer == len(self._plan.buffers)

    def _no_hint_wanted(self) -> bool:
        """A last slice needs none: its sync comes at once."""
        few = self._resting_bytes < limits.SLICE_BYTES
        return few or not self._plan.durable or self._nothing_to_write()

    def _nothing_to_close(self) -> bool:
        return self._batch == NO_HANDLE and not self._levels

    def _nothing_to_sync(self) -> bool:
        return not self._plan.durable or self._unsynced == []

    # What a call takes.

    def _level_step(self) -> Step:
        above = self._levels[-1] if self._levels else self._root
        return Step(self._action, above, self._names[len(self._levels)])

    def _batch_step(self) -> Step:
        return Step(self._action, self._hour, self._plan.batch_name)

    def _data_step(self) -> Step:
        return Step(self._action, self._batch, DATA_FILE)

    def _temporary_step(self) -> Step:
        return Step(self._action, self._batch, self._plan.temporary_name, DATA_FILE)

    def _file_step(self) -> Step:
        return Step(self._action, self._file)

    def _write_step(self) -> Step:
        return Step(self._action, self._file, buffers=self._slice)

    def _read_step(self) -> Step:
        return Step(self._action, self._file, buffers=(self._buffer,) if self._buffer else ())

    def _record_step(self) -> Step:
        return Step(self._action, self._file, crc32c=self._crc)

    def _sync_directory_step(self) -> Step:
        return Step(self._action, self._unsynced[-1] if self._unsynced else NO_HANDLE)

    def _close_directory_step(self) -> Step:
        return Step(self._action, self._batch if self._batch != NO_HANDLE else self._levels[-1])

    _needless: ClassVar[Mapping[Action, Callable[[SafeWrite], bool]]] = {
        Action.OPEN_LEVEL: lambda self: self._hour != NO_HANDLE,
        Action.LOOK: lambda self: self._fresh,
        Action.READ: lambda self: self.existing,
        Action.SYNC_DATA: lambda self: not self._plan.durable,
        Action.WRITE: _nothing_to_write,
        Action.WRITE_BACK: _no_hint_wanted,
        Action.RECORD: lambda self: not self._plan.durable,
        Action.SYNC: lambda self: not self._plan.durable,
        Action.SYNC_DIRECTORY: _nothing_to_sync,
        Action.CLOSE_FAILED: lambda self: self._file == NO_HANDLE,
        Action.REMOVE_FAILED: lambda self: not self._temporary,
        Action.CLOSE_STALE: _nothing_to_close,
        Action.CLOSE_DIRECTORY: _nothing_to_close,
    }
    _effects: ClassVar[Mapping[Action, Callable[[SafeWrite, int], None]]] = {
        Action.OPEN_LEVEL: _level_opened,
        Action.MAKE_BATCH: _batch_made,
        Action.OPEN_BATCH: _batch_opened,
        Action.LOOK: _found,
        Action.OPEN_DATA: _data_opened,
        Action.RECALL: _recalled,
        Action.READ: _read_on,
        Action.CREATE: _created,
        Action.WRITE: _wrote,
        Action.WRITE_BACK: _write_back_begun,
        Action.RENAME: _renamed,
        Action.LINK: _renamed,
        Action.SYNC_DIRECTORY: _directory_synced,
        **dict.fromkeys(CLOSES, _closed),
    }
    _steps: ClassVar[Mapping[Action, Callable[[SafeWrite], Step]]] = {
        Action.OPEN_LEVEL: _level_step,
        Action.MAKE_LEVEL: _level_step,
        Action.MAKE_BATCH: _batch_step,
        Action.OPEN_BATCH: _batch_step,
        Action.LOOK: _data_step,
        Action.OPEN_DATA: _data_step,
        Action.RECALL: _file_step,
        Action.READ: _read_step,
        Action.SYNC_DATA: _file_step,
        Action.CLOSE_DATA: _file_step,
        Action.CREATE: _temporary_step,
        Action.WRITE: _write_step,
        Action.WRITE_BACK: _file_step,
        Action.RECORD: _record_step,
        Action.SYNC: _file_step,
        Action.CLOSE: _file_step,
        Action.RENAME: _temporary_step,
        Action.LINK: _temporary_step,
        Action.REMOVE_LINKED: _temporary_step,
        Action.REMOVE_LOSER: _temporary_step,
        Action.SYNC_DIRECTORY: _sync_directory_step,
        Action.CLOSE_FAILED: _file_step,
        Action.REMOVE_FAILED: _temporary_step,
        Action.CLOSE_STALE: _close_directory_step,
        Action.CLOSE_DIRECTORY: _close_directory_step,
    }
