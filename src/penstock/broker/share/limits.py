"""Bounds of share groups at a broker."""

from __future__ import annotations

from typing import Final

LOAD_KEYS_MAX: Final = 500
SHARES_HELD_MAX: Final = 50_000
"""Share partitions in memory; the least recently used one is dropped above."""

SESSION_IDLE_SECONDS: Final = 120.0
"""Idle time after which a share session may be replaced by a new one."""

FETCH_ROUNDS_MAX: Final = 100
"""Reads of one partition by one request while they yield no records."""

READ_BYTES: Final = 256 << 10
"""Bytes of a partition's first read, before the size of its records is known."""

READ_BYTES_MIN: Final = 16 << 10
READ_SPARE: Final = 1.25
"""Factor by which a read exceeds the estimated size of the requested records."""

CHANGE_ATTEMPTS_MAX: Final = 5
"""Attempts of a manual change that conflicts with saves of leaders."""

DEAD_LETTER_TASKS_MAX: Final = 8
"""Share partitions whose dead letters are written concurrently."""

DEAD_LETTER_READ_BYTES: Final = 1 << 20
"""Bytes of one read for dead letters; a single batch may be larger."""

DEAD_LETTER_WAIT_SECONDS: Final = 30.0
"""Time limit of a load from an object store for dead letters."""

DEAD_LETTER_TIMEOUT_MS: Final = 30_000
"""Time limit of one append of dead letters; its share partition pauses after that."""

DEAD_LETTER_PRODUCERS_IDLE_MAX: Final = 8
"""Idle producers of dead letters that are kept for reuse."""

DEAD_LETTER_LOOK_SECONDS: Final = 60.0
"""Interval of the search for dead letters of idle share partitions."""
