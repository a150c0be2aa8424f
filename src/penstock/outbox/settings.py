"""Settings of the outbox writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, check, setting

PAYLOAD_BYTES_MAX: Final = 1 << 30
"""Bytes of a payload."""
THRESHOLD_BYTES: Final = 64 << 10
"""Bytes up to which `send` puts a payload into the record itself.

This saves the two syncs of a file. A topic accepts records of up to 1 MiB by default.
"""
INLINE_BYTES_MAX: Final = 16 << 20
"""Largest threshold that can be set, in bytes."""
IN_FLIGHT_BYTES: Final = 256 << 20
"""Payload bytes of all writes in progress."""
IN_FLIGHT_OPERATIONS: Final = 16
"""Writes in progress, including those whose pointer is being published."""
PENDING_MAX: Final = 1024
"""Writes that wait for admission."""
IO_THREADS: Final = 8
"""Threads that perform file calls."""
ACQUIRE_TIMEOUT_MS: Final = 30_000
"""Time for which a write waits for admission."""
WRITE_TIMEOUT_MS: Final = 60_000
"""Time for which a caller waits for its file, including admission and all attempts."""
PUBLISH_TIMEOUT_MS: Final = 60_000
"""Time for which a caller waits for the acknowledgement of its record."""
ATTEMPTS_MAX: Final = 5
"""Attempts to write one file."""
BACKOFF_FIRST_MS: Final = 20
"""Maximum pause before the second attempt. It doubles, up to `BACKOFF_MAX_MS`."""
BACKOFF_MAX_MS: Final = 2_000
PUBLISH_QUEUE_RECORDS: Final = 8192
"""Records that wait to be published."""
PUBLISH_QUEUE_BYTES: Final = 64 << 20
"""Bytes of keys and values that wait to be published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """Settings of one writer, which writes below one root and publishes to one topic.

    Raises:
        InvalidSetting: a value has the wrong type or is out of its bounds.
    """

    PREFIX: ClassVar = "outbox."

    root: str = setting(
        "", "Root directory, on a file system that writers and readers share. It must exist. It is"
        " never created, because a missing directory may mean a missing mount.",
    )  # fmt: skip
    topic: str = setting("", "Topic of the pointers and inline payloads.")
    durable: bool = setting(
        True, "Whether files and their directories are synced before a write succeeds. Without it,"
        " a crash of the machine may lose acknowledged writes. A crash of the process loses"
        " nothing.",
    )  # fmt: skip
    access: str = setting(
        "owner", "Users that may read the written files, whatever the umask: the writer's user"
        " (files 0600, directories 0700), also its group (0640, 0750), or all (0644, 0755). An"
        " existing directory stays unchanged. With the setgid bit, it passes its group on to new"
        " entries.",
        choices=("owner", "group", "all"),
    )  # fmt: skip
    threshold_bytes: int = setting(
        THRESHOLD_BYTES, "Largest payload that is sent in the record itself. Larger ones are"
        " written to files. Must be below the topic's max.message.bytes. -1 writes all payloads to"
        " files.", -1, INLINE_BYTES_MAX, name="outbox.inline.threshold.bytes",
    )  # fmt: skip
    payload_bytes_max: int = setting(
        PAYLOAD_BYTES_MAX, "Largest payload. A larger one is rejected.", 1, 1 << 40
    )
    in_flight_bytes: int = setting(
        IN_FLIGHT_BYTES, "Payload bytes of all writes in progress. A payload above this limit is"
        " written alone.", 1, 1 << 40,
    )  # fmt: skip
    in_flight_operations: int = setting(
        IN_FLIGHT_OPERATIONS, "Writes in progress, including those whose pointer is being"
        " published.", 1, 4096,
    )  # fmt: skip
    pending_max: int = setting(
        PENDING_MAX, "Writes that may wait for admission. Further ones are rejected.",
        0, INT_MAX,
    )  # fmt: skip
    io_threads: int = setting(IO_THREADS, "Threads that perform file calls.", 1, 256)
    acquire_timeout_ms: int = setting(
        ACQUIRE_TIMEOUT_MS, "Time for which a write waits for admission.", 1, INT_MAX
    )
    write_timeout_ms: int = setting(
        WRITE_TIMEOUT_MS, "Time for which a caller waits for its file, including admission and all"
        " attempts. After it, a file call in progress continues, and keeps the payload and its"
        " share of the limits.", 1, INT_MAX,
    )  # fmt: skip
    publish_timeout_ms: int = setting(
        PUBLISH_TIMEOUT_MS, "Time for which a caller waits for the acknowledgement of its record.",
        1, INT_MAX,
    )  # fmt: skip
    attempts_max: int = setting(ATTEMPTS_MAX, "Attempts to write one file.", 1, 1000)
    backoff_first_ms: int = setting(
        BACKOFF_FIRST_MS, "Maximum random pause before the second attempt. It doubles with every"
        " further attempt.", 1, INT_MAX,
    )  # fmt: skip
    backoff_max_ms: int = setting(
        BACKOFF_MAX_MS, "Maximum random pause between attempts.", 1, INT_MAX
    )
    publish_queue_records: int = setting(
        PUBLISH_QUEUE_RECORDS, "Records that may wait to be published. Further ones are rejected.",
        1, INT_MAX,
    )  # fmt: skip
    publish_queue_bytes: int = setting(
        PUBLISH_QUEUE_BYTES, "Bytes of keys and values that may wait to be published. Further"
        " records are rejected.", 1, 1 << 40,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)


def check_numbers(given: Any, **least: int) -> None:
    """Check numeric attributes of an object that is not a settings class.

    `least` maps attribute names to their minimum.

    Raises:
        InvalidSetting: a value is not a whole number, or is too small.
    """
    for name, minimum in least.items():
        value = getattr(given, name)
        if type(value) is not int or not minimum <= value <= LONG_MAX:
            raise InvalidSetting(name, value, f"must be a whole number of at least {minimum}")
