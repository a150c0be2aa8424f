"""Policy for a payload that cannot be read: read it again, make its record a dead letter, or stop.

With too few attempts, good batches become dead letters. With unlimited attempts, one bad batch
blocks the consumer. So the reaction depends on the possible cause:

| failure                            | possible recovery                   | then                  |
|------------------------------------|-------------------------------------|-----------------------|
| unreadable (EIO, ESTALE, EACCES …) | the mount or its server comes back  | stop: nothing is lost |
| missing                            | the NFS client's cache expires      | dead letter           |
| corrupt (size, checksum)           | the cache no longer has an old page | dead letter           |
| invalid (pointer, path), too large | none                                | dead letter           |

A missing payload becomes a dead letter only `missing_grace_ms` after its record was written. The
reason is that an NFS client caches "no such file" for up to a minute. An unreadable payload never
becomes a dead letter, because a lost mount would send a whole topic there. Instead, the consumer
stops, and its supervisor restarts it at the committed offset. It also stops after
`dead_letters_in_a_row_max` dead letters in a row, because an empty mount point looks like missing
files.

The policy has no clock, files or randomness. Source: `design/host-and-outbox.md`, Read.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final

from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError, UnavailableError
from penstock.base.retry import Backoff
from penstock.outbox.errors import (
    InvalidPath,
    InvalidPointer,
    NotAFile,
    PathEscapes,
    PayloadCorrupt,
    PayloadMissing,
)
from penstock.outbox.settings import check_numbers


class Trouble(Enum):
    """Kind of failure to read a payload, which decides the reaction."""

    UNREADABLE = "unreadable"
    MISSING = "missing"
    CORRUPT = "corrupt"
    INVALID = "invalid"
    TOO_LARGE = "too-large"


class TryAgain(Struct, frozen=True):
    """Reaction: read the payload again after a pause."""

    pause_ms: int


class DeadLetter(Struct, frozen=True):
    """Reaction: send the record to the dead-letter topic."""


class Stop(Struct, frozen=True):
    """Reaction: end with the error. The record is read again after a restart."""


DEAD_LETTER: Final = DeadLetter()
STOP: Final = Stop()
Judgement = TryAgain | DeadLetter | Stop


class ReadPolicy(Struct, frozen=True, kw_only=True):
    """Limits for reading one payload again.

    `attempts_max` limits the reads of an unreadable payload, including the first. The pause between
    reads doubles from `pause_first_ms` to `pause_max_ms`.

    Raises:
        InvalidSetting: a number of attempts is below 1, or a time is below 0.
    """

    attempts_max: int = 8
    corrupt_attempts_max: int = 2
    """Reads of a corrupt payload before its record becomes a dead letter, with the first."""
    missing_grace_ms: int = 60_000
    """Age of a record from which its payload counts as missing.

    NFS clients cache "no such file" for up to `acdirmax` seconds, 60 by default.
    """
    pause_first_ms: int = 50
    pause_max_ms: int = 5_000

    def __post_init__(self) -> None:
        check_numbers(
            self,
            attempts_max=1,
            corrupt_attempts_max=1,
            missing_grace_ms=0,
            pause_first_ms=0,
            pause_max_ms=0,
        )

    def judge(self, trouble: Trouble, *, attempts: int, record_age_ms: int) -> Judgement:
        """Return the reaction to a failed read. `attempts` is its number, from 1.

        `record_age_ms` is the time since the record's timestamp.
        """
        if trouble in (Trouble.INVALID, Trouble.TOO_LARGE):
            return DEAD_LETTER
        if trouble is Trouble.MISSING:
            return self._judge_missing(attempts, record_age_ms)
        most = self.attempts_max if trouble is Trouble.UNREADABLE else self.corrupt_attempts_max
        if attempts < most:
            return TryAgain(self._pause_ms(attempts))
        return STOP if trouble is Trouble.UNREADABLE else DEAD_LETTER

    def _judge_missing(self, attempts: int, record_age_ms: int) -> Judgement:
        left_ms = self.missing_grace_ms - record_age_ms
        if left_ms <= 0 or attempts >= self._missing_attempts_max:
            return DEAD_LETTER
        return TryAgain(min(self._pause_ms(attempts), max(1, left_ms)))

    @property
    def _missing_attempts_max(self) -> int:
        # A record's clock may be ahead: never wait longer than the grace itself.
        return self.attempts_max + self.missing_grace_ms // max(1, self.pause_max_ms) + 1

    def _pause_ms(self, attempts: int) -> int:
        backoff = Backoff(first_ms=self.pause_first_ms, ceiling_ms=self.pause_max_ms)
        return int(backoff.pause_ms(attempts))


# Errors of reading a payload, and the `Trouble` under which `ReadPolicy` handles each.
#
# | error                              | trouble    |
# |------------------------------------|------------|
# | `PayloadUnreadable`                | unreadable |
# | `PayloadMissing`                   | missing    |
# | `SizeMismatch`, `ChecksumMismatch` | corrupt    |
# | `PayloadTooLarge`                  | too large  |
# | `InvalidPointer`, `InvalidPath`, `PathEscapes`, `NotAFile`, `BatchReused` | invalid |


class SizeMismatch(PayloadCorrupt):
    """The file has another size than its pointer: it is torn, or another batch's file."""

    def __init__(self, path: str, found: int, expected: int) -> None:
        super().__init__(path, f"has {found} bytes, but its pointer says {expected}")
        self.found = found
        self.expected = expected


class ChecksumMismatch(PayloadCorrupt):
    """The payload has another checksum than expected: it is damaged, or another batch's."""

    def __init__(self, path: str, found: int, expected: int) -> None:
        super().__init__(path, f"has CRC32C {found:08x} instead of {expected:08x}")
        self.found = found
        self.expected = expected


class BatchReused(InvalidError):
    """The record has the id of a recently processed batch, but another payload."""

    def __init__(self, partition_id: str, batch_id: str, found: int, before: int) -> None:
        super().__init__(
            f"batch {batch_id} of {partition_id} has a payload with CRC32C {found:08x}, but was"
            f" processed before with CRC32C {before:08x}: use a batch id for one payload only"
        )


class PayloadTooLarge(InvalidError):
    """A pointer's size exceeds the reader's limit. The file was not opened."""

    def __init__(self, path: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{path}: its pointer has a size of {size_bytes} bytes; the limit is {limit_bytes}"
        )
        self.path = path
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class PayloadUnreadable(UnavailableError):
    """The file system failed. The payload may be intact."""

    def __init__(self, path: str, number: int) -> None:
        name = errno.errorcode.get(number, f"errno {number}")
        super().__init__(f"{path}: cannot be read: {name}")
        self.path = path
        self.errno = number


class MountSuspected(UnavailableError):
    """So many records in a row became dead letters that the file system may not be mounted."""


_TROUBLES: Final[tuple[tuple[type[PenstockError], Trouble, str], ...]] = (
    (PayloadMissing, Trouble.MISSING, "missing"),
    (SizeMismatch, Trouble.CORRUPT, "size-mismatch"),
    (ChecksumMismatch, Trouble.CORRUPT, "checksum-mismatch"),
    (PayloadCorrupt, Trouble.CORRUPT, "corrupt"),
    (PayloadTooLarge, Trouble.TOO_LARGE, "too-large"),
    (PayloadUnreadable, Trouble.UNREADABLE, "unreadable"),
    (PathEscapes, Trouble.INVALID, "path-escapes"),
    (InvalidPath, Trouble.INVALID, "invalid-path"),
    (InvalidPointer, Trouble.INVALID, "invalid-pointer"),
    (NotAFile, Trouble.INVALID, "not-a-file"),
    (BatchReused, Trouble.INVALID, "batch-reused"),
)


def classify(error: PenstockError) -> tuple[Trouble, str]:
    """Return the `Trouble` of a reader's error, and the word for it in dead letters.

    Errors of other types count as unreadable, which never makes a dead letter.
    """
    for kind, trouble, word in _TROUBLES:
        if isinstance(error, kind):
            return trouble, word
    return Trouble.UNREADABLE, "unreadable"


_ESCAPES: Final = frozenset({errno.ELOOP, errno.EXDEV})
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


def open_error(path: str, number: int) -> PenstockError:
    """Return the error for an `open` below the root that failed with errno `number`."""
    if number in _ABSENT:
        return PayloadMissing(path)
    if number in _ESCAPES:
        return PathEscapes(path, "leads through a symlink or out of the root")
    if number == errno.ENAMETOOLONG:
        return InvalidPath(path, "has a component that is too long for the file system")
    return PayloadUnreadable(path, number)
