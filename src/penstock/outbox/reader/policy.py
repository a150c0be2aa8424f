"""What to do about a payload that cannot be read: try again, give the record up, or stop.

A consumer that gives up too early fills the dead-letter topic with good batches; one that never
gives up stands still behind one bad batch. What decides is whose fault it may be:

| what went wrong                    | may heal because                    | then                  |
|------------------------------------|-------------------------------------|-----------------------|
| unreadable (EIO, ESTALE, EACCES …) | the mount or its server comes back  | stop: nothing is lost |
| missing                            | another client's cache hides it yet | dead letter           |
| corrupt (size, checksum)           | a cache served a stale page         | dead letter           |
| invalid (pointer, path), too large | nothing                             | dead letter           |

Missing is believed only `missing_grace_ms` after the record was written: an NFS client keeps the
answer "no such file" for up to a minute. Unreadable never becomes a dead letter, because a mount
that is gone would send a whole topic there; the consumer stops and its supervisor starts it again
at the committed offset. For the same reason more than `dead_letters_in_a_row_max` records given
up one after the other stop it as well: an empty mount point looks like missing files.

A core: no clock, no files, no dice. Source: `design/host-and-outbox.md`, Read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.base.retry import Backoff
from penstock.outbox.settings import check_numbers


class Trouble(Enum):
    """What went wrong with one payload."""

    UNREADABLE = "unreadable"
    MISSING = "missing"
    CORRUPT = "corrupt"
    INVALID = "invalid"
    TOO_LARGE = "too-large"


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Read the payload again after a pause."""

    pause_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Send the record to the dead-letter topic."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End with the error; the record is read again after a restart."""


GIVE_UP: Final = GiveUp()
STOP: Final = Stop()
Judgement = TryAgain | GiveUp | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """How long a payload is tried; the defaults are in `limits`.

    `attempts_max` counts readings of one payload for each trouble that may heal, the first
    included; the pause doubles from `pause_first_ms` to `pause_max_ms`.

    Raises:
        InvalidSetting: no attempt, or a time below 0.
    """

    attempts_max: int = 8
    corrupt_attempts_max: int = 2
    missing_grace_ms: int = 60_000
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
        """What follows the `attempts`-th reading in vain (1 is the first).

        `record_age_ms` is how long ago the record was written, by the record's own timestamp.
        """
        if trouble in (Trouble.INVALID, Trouble.TOO_LARGE):
            return GIVE_UP
        if trouble is Trouble.MISSING:
            return self._judge_missing(attempts, record_age_ms)
        most = self.attempts_max if trouble is Trouble.UNREADABLE else self.corrupt_attempts_max
        if attempts < most:
            return TryAgain(self._pause_ms(attempts))
        return STOP if trouble is Trouble.UNREADABLE else GIVE_UP

    def _judge_missing(self, attempts: int, record_age_ms: int) -> Judgement:
        left_ms = self.missing_grace_ms - record_age_ms
        if left_ms <= 0 or attempts >= self._missing_attempts_max:
            return GIVE_UP
        return TryAgain(min(self._pause_ms(attempts), max(1, left_ms)))

    @property
    def _missing_attempts_max(self) -> int:
        # A record from a clock that is ahead must not be waited for beyond the grace itself.
        return self.attempts_max + self.missing_grace_ms // max(1, self.pause_max_ms) + 1

    def _pause_ms(self, attempts: int) -> int:
        backoff = Backoff(first_ms=self.pause_first_ms, ceiling_ms=self.pause_max_ms)
        return int(backoff.pause_ms(attempts))
