"""The bounds of what a broker does for share groups."""

from __future__ import annotations

from typing import Final

LOAD_KEYS_MAX: Final = 500
"""Share partitions that are read at once."""

SHARES_HELD_MAX: Final = 50_000
"""Share partitions in memory; the one that was longest not asked for goes, and is read again."""

SESSION_IDLE_SECONDS: Final = 120.0
"""How long a share session may be idle before it makes room for a new one."""

FETCH_ROUNDS_MAX: Final = 100
"""How often one request looks at a partition again where all that it read was not for records."""

READ_BYTES: Final = 256 << 10
"""What is read of a partition of whose records nothing is known yet."""

READ_BYTES_MIN: Final = 16 << 10
"""What is read of a partition at least."""

READ_SPARE: Final = 1.25
"""How much more is read than the wanted records would take, were they as those before."""

CHANGE_ATTEMPTS_MAX: Final = 5
"""How often a change by hand is tried that leaders come before with theirs."""

LETTER_TASKS_MAX: Final = 8
"""Share partitions whose dead letters are written at once."""

LETTER_READ_BYTES: Final = 1 << 20
"""What is read of a partition for dead letters at once; one batch may be more."""

LETTER_WAIT_SECONDS: Final = 30.0
"""How long they wait for what has to be loaded."""

LETTER_TIMEOUT_MS: Final = 30_000
"""How long one append of dead letters is tried before its share partition pauses."""

LETTER_PRODUCERS_IDLE_MAX: Final = 8
"""Producers of dead letters that are kept for the next."""

LETTER_LOOK_SECONDS: Final = 60.0
"""How often it is looked whether records wait for dead letters of whom nobody asks for more."""
